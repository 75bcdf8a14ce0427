package console

import (
	"io"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/permissions"
)

// FormatConf is the format of nats-server's configuration.
const FormatConf = "nats-conf"

// Permissions writes down who may do what on a bus.
type Permissions struct {
	Pools  []string
	Shards int
	// Format is [FormatConf] or json.
	Format string
	// Credentials is the directory of the users' nkeys; empty: they have
	// passwords.
	Credentials string
}

// Write makes the keys that are missing and writes the permissions.
func (p *Permissions) Write(w io.Writer) error {
	if p.Format != FormatConf && p.Format != "json" {
		return cli.Usage("--format: %q is not known; use %s or json", p.Format, FormatConf)
	}
	layout := permissions.Layout{Pools: p.Pools, Shards: p.Shards}
	var keys map[string]string
	if p.Credentials != "" {
		var err error
		if keys, err = permissions.Keys(p.Credentials, layout); err != nil {
			return err
		}
	}
	c, err := permissions.New(layout, keys)
	if err != nil {
		return err
	}
	c.Command = p.command()
	if p.Format == "json" {
		return c.WriteJSON(w)
	}
	return c.WriteConf(w)
}

// command is what is said again to make the same.
func (p *Permissions) command() string {
	words := []string{"moorebus init --print-permissions"}
	if p.Shards > 1 {
		words = append(words, "--shards "+strconv.Itoa(p.Shards))
	}
	if len(p.Pools) > 0 {
		words = append(words, "--pools "+strings.Join(p.Pools, ","))
	}
	if p.Credentials != "" {
		words = append(words, "--credentials "+p.Credentials)
	}
	return strings.Join(words, " ")
}

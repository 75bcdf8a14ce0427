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

// Permissions writes the users of a bus and their permissions.
type Permissions struct {
	Pools  []string
	Shards int
	// Storage are the agents whose storage roles may use, as NAMESPACE/AGENT.
	Storage []string
	// Format is [FormatConf] or json.
	Format string
	// Credentials is the directory of the users' nkeys. Empty: users have passwords.
	Credentials string
}

// Write creates missing keys and writes the permissions.
func (p *Permissions) Write(w io.Writer) error {
	if p.Format != FormatConf && p.Format != "json" {
		return cli.Usage("--format: %q is not known; use %s or json", p.Format, FormatConf)
	}
	storage, err := parseStorage(p.Storage)
	if err != nil {
		return err
	}
	layout := permissions.Layout{Pools: p.Pools, Shards: p.Shards, Storage: storage}
	var keys map[string]string
	if p.Credentials != "" {
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

// command returns the command that generates this output.
func (p *Permissions) command() string {
	words := []string{"moorebus init --print-permissions"}
	if p.Shards > 1 {
		words = append(words, "--shards "+strconv.Itoa(p.Shards))
	}
	if len(p.Pools) > 0 {
		words = append(words, "--pools "+strings.Join(p.Pools, ","))
	}
	for _, of := range p.Storage {
		words = append(words, "--storage "+of)
	}
	if p.Credentials != "" {
		words = append(words, "--credentials "+p.Credentials)
	}
	return strings.Join(words, " ")
}

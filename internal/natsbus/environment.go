package natsbus

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"
)

// FromEnv reads the options from NATS_URL, NATS_CREDS, NATS_USER, NATS_PASSWORD,
// NATS_TOKEN, NATS_NKEY, NATS_CA, NATS_CERT, NATS_KEY, NATS_INBOX_PREFIX and
// NATS_CONTEXT. NATS_CONTEXT names one of the nats CLI's contexts,
// `$XDG_CONFIG_HOME/nats/context/<name>.json`; what the other variables say goes
// before what is in the file. A context that wants something of a connection that
// cannot be had here is an error. The context that is selected in the nats CLI does
// not count, see [SelectedContext].
func FromEnv(getenv func(string) string) (ConnectOptions, error) {
	name := getenv("NATS_CONTEXT")
	if name == "" {
		return overlay(ConnectOptions{}, getenv)
	}
	o, err := FromContext(getenv, name)
	if err != nil {
		return ConnectOptions{}, fmt.Errorf("NATS_CONTEXT=%s: %w", name, err)
	}
	return o, nil
}

// FromContext is [FromEnv] with the context of that name, whatever NATS_CONTEXT says.
func FromContext(getenv func(string) string, name string) (ConnectOptions, error) {
	o, err := readContext(getenv, name)
	if err != nil {
		return ConnectOptions{}, err
	}
	return overlay(o, getenv)
}

// overlay puts what the environment says over o.
func overlay(o ConnectOptions, getenv func(string) string) (ConnectOptions, error) {
	// Credentials of the environment replace those of the context altogether.
	for _, key := range []string{"NATS_CREDS", "NATS_USER", "NATS_TOKEN", "NATS_NKEY"} {
		if getenv(key) != "" {
			o.Creds, o.User, o.Password, o.Token, o.NKey = "", "", "", "", ""
		}
	}
	for key, field := range map[string]*string{
		"NATS_URL": &o.URL, "NATS_CREDS": &o.Creds, "NATS_USER": &o.User, "NATS_PASSWORD": &o.Password,
		"NATS_TOKEN": &o.Token, "NATS_NKEY": &o.NKey, "NATS_CA": &o.CA,
		"NATS_CERT": &o.Cert, "NATS_KEY": &o.Key, "NATS_INBOX_PREFIX": &o.InboxPrefix,
	} {
		if value := getenv(key); value != "" {
			*field = value
		}
	}
	if o.Password != "" && o.User == "" {
		return ConnectOptions{}, errors.New("NATS_PASSWORD is set without NATS_USER: set both or neither")
	}
	if (o.Cert == "") != (o.Key == "") {
		return ConnectOptions{}, errors.New("one of NATS_CERT and NATS_KEY is set without the other: set both or neither")
	}
	return o, nil
}

// SelectedContext returns the name of the context that the nats CLI uses where it is
// given none (`nats context select`), empty if none is selected.
func SelectedContext(getenv func(string) string) string {
	name, err := os.ReadFile(filepath.Join(contextDir(getenv), "context.txt"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// contextDir is where the nats CLI keeps its settings.
func contextDir(getenv func(string) string) string {
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		dir = filepath.Join(getenv("HOME"), ".config")
	}
	return filepath.Join(dir, "nats")
}

// contextFile is a context of the nats CLI; what is not named here does not matter.
type contextFile struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	CA          string `json:"ca"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	InboxPrefix string `json:"inbox_prefix"`

	// What follows cannot be had.
	SocksProxy string `json:"socks_proxy"`
	NSC        string `json:"nsc"`
	JWT        string `json:"user_jwt"`
	Seed       string `json:"user_seed"`
	Domain     string `json:"jetstream_domain"`
	APIPrefix  string `json:"jetstream_api_prefix"`
	TLSFirst   bool   `json:"tls_first"`
}

// check returns an error that names what the context wants and cannot be had.
func (c *contextFile) check() error {
	first := ""
	if c.TLSFirst {
		first = "true"
	}
	for _, setting := range [][2]string{
		{"socks_proxy", c.SocksProxy}, {"nsc", c.NSC}, {"user_jwt", c.JWT}, {"user_seed", c.Seed},
		{"jetstream_domain", c.Domain}, {"jetstream_api_prefix", c.APIPrefix}, {"tls_first", first},
	} {
		if setting[1] != "" {
			return fmt.Errorf("the context sets %s, which moorebus cannot do; use another context, or set NATS_URL and NATS_CREDS or their like", setting[0])
		}
	}
	return nil
}

func readContext(getenv func(string) string, name string) (ConnectOptions, error) {
	if name != filepath.Base(name) || name == "." || name == ".." {
		return ConnectOptions{}, errors.New("it is the name of a context, not a path: see `nats context ls`")
	}
	path := filepath.Join(contextDir(getenv), "context", name+".json")
	body, err := os.ReadFile(path)
	if err != nil {
		return ConnectOptions{}, fmt.Errorf("read the context, see `nats context ls`: %w", err)
	}
	var c contextFile
	if err := json.Unmarshal(body, &c); err != nil {
		return ConnectOptions{}, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.check(); err != nil {
		return ConnectOptions{}, fmt.Errorf("%s: %w", path, err)
	}
	o := ConnectOptions{
		URL: cmp.Or(c.URL, nats.DefaultURL), User: c.User, Password: c.Password, Token: c.Token, Creds: c.Creds,
		NKey: c.NKey, CA: c.CA, Cert: c.Cert, Key: c.Key, InboxPrefix: c.InboxPrefix,
	}
	for _, field := range []*string{&o.Creds, &o.NKey, &o.CA, &o.Cert, &o.Key} {
		if rest, ok := strings.CutPrefix(*field, "~/"); ok {
			*field = filepath.Join(getenv("HOME"), rest)
		}
	}
	return o, nil
}

// Server returns where the bus is, for people: without passwords.
func (o ConnectOptions) Server() string { return redact(cmp.Or(o.URL, nats.DefaultURL)) }

// redact takes passwords out of a list of URLs.
func redact(list string) string {
	parts := strings.Split(list, ",")
	for i, part := range parts {
		if u, err := url.Parse(strings.TrimSpace(part)); err == nil && u.User != nil {
			u.User = url.User("xxxxx")
			parts[i] = u.String()
		}
	}
	return strings.Join(parts, ",")
}

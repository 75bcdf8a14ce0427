package natsbus

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// FromEnv reads the options from NATS_URL, NATS_CREDS, NATS_USER, NATS_PASSWORD,
// NATS_TOKEN, NATS_NKEY, NATS_CA, NATS_CERT, NATS_KEY, NATS_INBOX_PREFIX and
// NATS_CONTEXT. NATS_CONTEXT names one of the nats CLI's contexts, `$XDG_CONFIG_HOME/nats/context/<name>.json`; what the
// other variables say goes before what is in the file.
func FromEnv(getenv func(string) string) (ConnectOptions, error) {
	var o ConnectOptions
	if name := getenv("NATS_CONTEXT"); name != "" {
		var err error
		if o, err = fromContext(getenv, name); err != nil {
			return ConnectOptions{}, fmt.Errorf("NATS_CONTEXT=%s: %w", name, err)
		}
	}
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

// contextFile is a context of the nats CLI; what is not named here is not used.
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
}

func fromContext(getenv func(string) string, name string) (ConnectOptions, error) {
	if name != filepath.Base(name) || name == "." || name == ".." {
		return ConnectOptions{}, errors.New("it is the name of a context, not a path: see `nats context ls`")
	}
	dir := getenv("XDG_CONFIG_HOME")
	home := getenv("HOME")
	if dir == "" {
		dir = filepath.Join(home, ".config")
	}
	path := filepath.Join(dir, "nats", "context", name+".json")
	body, err := os.ReadFile(path)
	if err != nil {
		return ConnectOptions{}, fmt.Errorf("read the context, see `nats context ls`: %w", err)
	}
	var c contextFile
	if err := json.Unmarshal(body, &c); err != nil {
		return ConnectOptions{}, fmt.Errorf("%s: %w", path, err)
	}
	o := ConnectOptions{
		URL: c.URL, User: c.User, Password: c.Password, Token: c.Token, Creds: c.Creds,
		NKey: c.NKey, CA: c.CA, Cert: c.Cert, Key: c.Key, InboxPrefix: c.InboxPrefix,
	}
	for _, field := range []*string{&o.Creds, &o.NKey, &o.CA, &o.Cert, &o.Key} {
		if rest, ok := strings.CutPrefix(*field, "~/"); ok {
			*field = filepath.Join(home, rest)
		}
	}
	return o, nil
}

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

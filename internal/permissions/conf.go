package permissions

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/moorebus/moorebus/internal/natsbus"
)

// Config are the accounts and users of the configuration.
type Config struct {
	// Command is the command that generated it, for readers of the file.
	Command string `json:"command,omitempty"`
	// Operator is the user of the account LOG and may do everything there.
	Operator User `json:"operator"`
	// Users are the users of the account ROLES.
	Users []User `json:"users"`
	// Services are the services that LOG exports to ROLES, Streamed those that answer with
	// several messages. Feeds are the streams from LOG to ROLES, Chunks those from ROLES to
	// LOG.
	Services []string `json:"services"`
	Streamed []string `json:"streamed_services"`
	Feeds    []string `json:"feeds"`
	Chunks   []string `json:"chunks"`
}

// New returns the configuration of a layout. keys are the public nkeys of all users, by name.
// Without any, users have passwords.
func New(l Layout, keys map[string]string) (*Config, error) {
	users, err := Users(l)
	if err != nil {
		return nil, err
	}
	c := &Config{
		Operator: User{Name: Operator, InboxPrefix: "_INBOX_" + Operator, Publish: []string{">"}, Subscribe: []string{">"}},
		Users:    users, Feeds: append(natsbus.Feeds(), natsbus.Asks()...), Chunks: natsbus.Chunks(),
	}
	c.Services, c.Streamed = natsbus.Services()
	if len(keys) == 0 {
		return c, c.checkVariables()
	}
	all := []*User{&c.Operator}
	for i := range c.Users {
		all = append(all, &c.Users[i])
	}
	for _, u := range all {
		if u.NKey = keys[u.Name]; u.NKey == "" {
			return nil, fmt.Errorf("user %s has no key", u.Name)
		}
	}
	return c, nil
}

// checkVariables refuses two users whose passwords have the same variable.
func (c *Config) checkVariables() error {
	users := map[string]string{}
	for _, u := range c.Users {
		variable := PasswordVariable(u.Name)
		if other, taken := users[variable]; taken {
			return fmt.Errorf("the passwords of the users %s and %s have the same variable %s: rename one pool, or use keys (--credentials)",
				other, u.Name, variable)
		}
		users[variable] = u.Name
	}
	return nil
}

// PasswordVariable returns the name of the server's environment variable with a user's password or
// its bcrypt hash.
func PasswordVariable(user string) string {
	return "MOOREBUS_" + strings.ToUpper(strings.ReplaceAll(user, "-", "_")) + "_PASSWORD"
}

// WriteJSON writes the configuration for other programs.
func (c *Config) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(c)
}

// WriteConf writes the configuration as a file that nats-server's configuration includes.
func (c *Config) WriteConf(w io.Writer) error {
	p := printer{}
	p.line("# Generated: do not edit; generate it again with")
	p.line("#   %s", c.Command)
	if c.Operator.NKey == "" {
		p.line("# The passwords, or their bcrypt hashes, are in the environment of the server.")
	}
	p.block("accounts {", func() {
		p.line("# The streams, and the operator, who may do everything with them.")
		p.block("LOG {", func() { c.logAccount(&p) })
		p.line("# All other users. Their reply subjects stay in this account, so the server")
		p.line("# cannot store an answer in the log.")
		p.block("ROLES {", func() { c.rolesAccount(&p) })
	})
	_, err := io.WriteString(w, p.text.String())
	return err
}

func (c *Config) logAccount(p *printer) {
	p.line("jetstream: enabled")
	p.list("exports", func() {
		for _, subject := range c.Services {
			p.line("{ service: %q, accounts: [ROLES] }", subject)
		}
		for _, subject := range c.Streamed {
			p.line("{ service: %q, response_type: stream, accounts: [ROLES] }", subject)
		}
		for _, subject := range c.Feeds {
			p.line("{ stream: %q, accounts: [ROLES] }", subject)
		}
	})
	p.list("imports", func() { imports(p, "stream", "ROLES", c.Chunks) })
	p.list("users", func() { p.line("{ %s }", c.Operator.identity()) })
}

func (c *Config) rolesAccount(p *printer) {
	p.list("exports", func() {
		for _, subject := range c.Chunks {
			p.line("{ stream: %q, accounts: [LOG] }", subject)
		}
	})
	p.list("imports", func() {
		imports(p, "service", "LOG", c.Services)
		imports(p, "service", "LOG", c.Streamed)
		imports(p, "stream", "LOG", c.Feeds)
	})
	p.list("users", func() {
		for _, u := range c.Users {
			p.line("# %s connects with NATS_INBOX_PREFIX=%s.", u.Name, u.InboxPrefix)
			p.block("{", func() {
				p.line("%s", u.identity())
				p.block("permissions {", func() {
					p.subjects("publish", u.Publish)
					p.subjects("subscribe", u.Subscribe)
				})
			})
		}
	})
}

func imports(p *printer, kind, account string, subjects []string) {
	for _, subject := range subjects {
		p.line("{ %s: { account: %s, subject: %q } }", kind, account, subject)
	}
}

// identity returns the user's credentials in the configuration.
func (u User) identity() string {
	if u.NKey != "" {
		return "nkey: " + u.NKey
	}
	return "user: " + strconv.Quote(u.Name) + ", password: $" + PasswordVariable(u.Name)
}

// printer writes indented lines.
type printer struct {
	text  strings.Builder
	depth int
}

func (p *printer) line(format string, args ...any) {
	p.text.WriteString(strings.Repeat("  ", p.depth))
	fmt.Fprintf(&p.text, format, args...)
	p.text.WriteByte('\n')
}

func (p *printer) block(head string, body func()) { p.within(head, "}", body) }

func (p *printer) list(name string, body func()) { p.within(name+": [", "]", body) }

func (p *printer) within(head, end string, body func()) {
	p.line("%s", head)
	p.depth++
	body()
	p.depth--
	p.line("%s", end)
}

func (p *printer) subjects(name string, allow []string) {
	p.within(name+" { allow: [", "] }", func() {
		for _, subject := range allow {
			p.line("%q", subject)
		}
	})
}

// KeyFile returns the path of a user's seed, for NATS_NKEY.
func KeyFile(dir, user string) string { return filepath.Join(dir, user+".nk") }

// Keys reads the seed files in a directory and returns the public keys of the operator and all users
// of a layout, by name. It creates missing files, readable by their owner only, and never changes
// existing ones.
func Keys(dir string, l Layout) (map[string]string, error) {
	users, err := Users(l)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of keys: %w", err)
	}
	keys := map[string]string{}
	for _, name := range append([]string{Operator}, names(users)...) {
		if keys[name], err = publicKey(KeyFile(dir, name)); err != nil {
			return nil, fmt.Errorf("key of %s: %w", name, err)
		}
	}
	return keys, nil
}

func names(users []User) []string {
	all := make([]string, len(users))
	for i, u := range users {
		all[i] = u.Name
	}
	return all
}

func publicKey(file string) (string, error) {
	seed, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(file)
	}
	if err != nil {
		return "", err
	}
	pair, err := nkeys.ParseDecoratedNKey(seed)
	if err != nil {
		return "", fmt.Errorf("%s does not contain the seed of an nkey: %w", file, err)
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err == nil && !nkeys.IsValidPublicUserKey(public) {
		err = fmt.Errorf("%s contains a key that is not a user key", file)
	}
	return public, err
}

func makeKey(file string) (string, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return "", err
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = out.Write(append(seed, '\n'))
	if err := errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	return pair.PublicKey()
}

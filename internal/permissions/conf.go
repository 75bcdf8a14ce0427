package permissions

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	// Users are the users of the other accounts.
	Users []User `json:"users"`
	// Accounts are all accounts, with what each one imports.
	Accounts []Account `json:"accounts"`
}

// New returns the configuration of a layout. keys are the public nkeys of all users, by name.
// Without any, users have passwords.
func New(l Layout, keys map[string]string) (*Config, error) {
	users, err := Users(l)
	if err != nil {
		return nil, err
	}
	c := &Config{
		Operator: User{Name: Operator, Account: Log, InboxPrefix: inboxOf(Operator), Publish: []string{">"}, Subscribe: []string{">"}},
		Users:    users, Accounts: accounts(users),
	}
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
		for _, a := range c.Accounts {
			p.line("# %s", a.About)
			p.block(a.Name+" {", func() { c.account(&p, a) })
		}
	})
	_, err := io.WriteString(w, p.text.String())
	return err
}

func (c *Config) account(p *printer, a Account) {
	if a.Name == Log {
		p.line("jetstream: enabled")
	}
	if exports := c.exports(a.Name); len(exports) > 0 {
		p.list("exports", func() {
			for _, line := range exports {
				p.line("%s", line)
			}
		})
	}
	p.list("imports", func() {
		for _, subject := range slices.Concat(a.Services, a.Streamed) {
			p.line("{ service: { account: %s, subject: %q } }", Log, subject)
		}
		for _, s := range a.Streams {
			p.line("{ stream: { account: %s, subject: %q } }", s.Account, s.Subject)
		}
	})
	p.list("users", func() {
		if a.Name == Log {
			p.line("{ %s }", c.Operator.identity())
		}
		for _, u := range c.Users {
			if u.Account == a.Name {
				p.user(u)
			}
		}
	})
}

// exports returns what an account offers: all that others import from it, and nothing to anyone
// else.
func (c *Config) exports(account string) []string {
	var lines []string
	offer := func(form, subject string, imports func(Account) bool) {
		var to []string
		for _, a := range c.Accounts {
			if imports(a) {
				to = append(to, a.Name)
			}
		}
		if len(to) > 0 {
			lines = append(lines, fmt.Sprintf(form, subject, strings.Join(to, ", ")))
		}
	}
	if account == Log {
		single, streamed := natsbus.Services()
		for _, subject := range single {
			offer("{ service: %q, accounts: [%s] }", subject, func(a Account) bool { return slices.Contains(a.Services, subject) })
		}
		for _, subject := range streamed {
			offer("{ service: %q, response_type: stream, accounts: [%s] }", subject, func(a Account) bool { return slices.Contains(a.Streamed, subject) })
		}
	}
	for _, subject := range slices.Concat(natsbus.Feeds(), natsbus.Asks(), natsbus.Chunks()) {
		offer("{ stream: %q, accounts: [%s] }", subject, func(a Account) bool { return slices.Contains(a.Streams, Stream{account, subject}) })
	}
	return lines
}

func (p *printer) user(u User) {
	p.line("# %s connects with NATS_INBOX_PREFIX=%s.", u.Name, u.InboxPrefix)
	p.block("{", func() {
		p.line("%s", u.identity())
		p.block("permissions {", func() {
			p.subjects("publish", u.Publish)
			p.subjects("subscribe", u.Subscribe)
		})
	})
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

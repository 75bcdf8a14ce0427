package setup

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/permissions"
)

// Secure is a server with TLS and a user for each role, in one directory: tls has certificates,
// as `moorebus certs` makes them, and keys the users' nkeys.
type Secure struct {
	Dir string
	// Hosts are those of [certs.Options].
	Hosts []string
	// File has the accounts and users, as `moorebus init --print-permissions` writes them. Empty:
	// those of Users, whose Format and Credentials do not count.
	File  string
	Users Permissions
}

// serverFor is how long the certificate of a server is valid.
const serverFor = 825 * 24 * time.Hour

// Certificates is the folder of the certificates.
func (s *Secure) Certificates() string { return filepath.Join(s.Dir, "tls") }

// Config makes the certificates and keys that are missing. It returns the part of nats-server's
// configuration that has the users, and the path of the operator's key.
func (s *Secure) Config() (config, nkey string, err error) {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return "", "", err
	}
	tls, keys := filepath.Join(dir, "tls"), filepath.Join(dir, "keys")
	o := certs.Options{Dir: tls, Server: certs.Server, Hosts: s.Hosts, For: serverFor, Now: time.Now()}
	if _, err := certs.Make(o); err != nil {
		return "", "", err
	}
	var text strings.Builder
	nkey = permissions.KeyFile(keys, permissions.Operator)
	if s.File != "" {
		users, err := os.ReadFile(s.File)
		text.Write(users)
		return text.String(), nkey, err
	}
	p := s.Users
	p.Format, p.Credentials = FormatConf, keys
	err = p.Write(&text)
	return text.String(), nkey, err
}

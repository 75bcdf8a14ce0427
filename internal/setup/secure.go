package setup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/permissions"
)

// Secure is a server with TLS and a user for each role, in one directory: tls has certificates,
// as `moorebus certs` makes them, and keys the users' nkeys.
type Secure struct {
	Dir string
	// Hosts are the names by which the server is reached; nil: those of its certificate, or of this
	// machine alone.
	Hosts []string
	// File has the accounts and users, as `moorebus init --print-permissions` writes them. Empty:
	// those of Users, whose Format and Credentials do not count.
	File  string
	Users Permissions
}

// LocalHosts are the names of a server that only its own machine reaches.
func LocalHosts() []string { return []string{"localhost", "127.0.0.1", "::1"} }

// serverFor is how long the certificate of a server is valid.
const serverFor = 825 * 24 * time.Hour

// Config makes the certificates and keys that are missing. It returns the part of nats-server's
// configuration that names them, and the path of the operator's key.
func (s *Secure) Config() (config, nkey string, err error) {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return "", "", err
	}
	tls, keys := filepath.Join(dir, "tls"), filepath.Join(dir, "keys")
	o := certs.Options{Dir: tls, Server: "server", Hosts: s.Hosts, For: serverFor, Now: time.Now()}
	if _, err := os.Stat(filepath.Join(tls, "server.pem")); errors.Is(err, fs.ErrNotExist) && o.Hosts == nil {
		o.Hosts = LocalHosts()
	}
	if _, err := certs.Make(o); err != nil {
		return "", "", err
	}
	var text strings.Builder
	text.WriteString("tls { cert_file: " + strconv.Quote(filepath.Join(tls, "server.pem")) + ", key_file: " + strconv.Quote(filepath.Join(tls, "server.key")) + " }\n")
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

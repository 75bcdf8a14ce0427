// Package certs makes the certificates of a bus: an authority, a certificate for the servers,
// and one for each client that presents its own. Keys are ECDSA on P-256.
//
// Certificates have the names ca.pem, NAME.pem and keys the names ca.key, NAME.key. A key is
// readable by its owner only and is never replaced. A certificate is replaced only if asked for.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Options say what is made.
type Options struct {
	// Dir is the directory of the files; it is made if it is not there.
	Dir string
	// Server is the name of the server's certificate, which servers also present to each other.
	// Empty: none is made.
	Server string
	// Hosts are the DNS names and IP addresses by which clients and servers reach the server. Nil:
	// those of its certificate if there is one, else of this machine alone.
	Hosts []string
	// Clients are the names of clients' certificates.
	Clients []string
	// For is how long the certificates of servers and clients are valid.
	For time.Duration
	// Renew makes certificates anew, for the keys that are there. The authority's is made anew
	// only if it would end before the others.
	Renew bool
	// Now is the time.
	Now time.Time
}

// authorityFor is how long an authority is valid.
const authorityFor = 10 * 365 * 24 * time.Hour

// early is how much earlier a certificate is valid, for clocks that are behind.
const early = time.Hour

// local are the names of a server that only its own machine reaches.
var local = []string{"localhost", "127.0.0.1", "::1"}

// Authority is the name of the authority's files.
const Authority = "ca"

// Made is a certificate.
type Made struct {
	// Path is the file of the certificate.
	Path string
	// Kept says that it was there before.
	Kept bool
	*x509.Certificate
}

// Make makes the certificates that are missing and returns all of them, the authority's first.
// An error says, too, that one that is kept has ended or lacks one of the hosts.
func Make(o Options) ([]Made, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	m := &maker{Options: o}
	if err := m.authority(); err != nil {
		return nil, err
	}
	for _, name := range append([]string{o.Server}, o.Clients...) {
		if name == "" {
			continue
		}
		if err := m.leaf(name, name == o.Server); err != nil {
			return m.made, err
		}
	}
	return m.made, nil
}

type maker struct {
	Options
	ca   *x509.Certificate
	made []Made
}

func (m *maker) path(name, suffix string) string { return filepath.Join(m.Dir, name+suffix) }

// authority reads the authority, or makes it.
func (m *maker) authority() error {
	old, err := m.read(Authority)
	if err != nil {
		return err
	}
	_, missing := os.Stat(m.path(Authority, ".key"))
	switch {
	case old != nil && missing != nil: // its key is kept elsewhere
	case old == nil || m.Renew && old.NotAfter.Before(m.Now.Add(m.For)):
		wanted := &x509.Certificate{
			Subject: pkix.Name{CommonName: "Moorebus authority"}, NotAfter: m.Now.Add(authorityFor),
			IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}
		m.ca, err = m.write(Authority, wanted, nil)
		return err
	}
	if old.NotAfter.Before(m.Now) {
		return fmt.Errorf("%s ended on %s: make it anew with --renew, where %s.key is", m.path(Authority, ".pem"), date(old.NotAfter), Authority)
	}
	m.ca, m.made = old, append(m.made, Made{m.path(Authority, ".pem"), true, old})
	return nil
}

// leaf reads the certificate of a server or a client, or makes it.
func (m *maker) leaf(name string, server bool) error {
	var hosts []string
	if server {
		hosts = m.Hosts
	}
	old, err := m.read(name)
	if err != nil {
		return err
	}
	if old != nil && !m.Renew {
		m.made = append(m.made, Made{m.path(name, ".pem"), true, old})
		return m.check(name, old, hosts)
	}
	switch {
	case !server || hosts != nil:
	case old != nil:
		hosts = HostsOf(old)
	default:
		hosts = local
	}
	wanted := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: m.Now.Add(m.For), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if wanted.NotAfter.After(m.ca.NotAfter) {
		wanted.NotAfter = m.ca.NotAfter
	}
	if server {
		wanted.ExtKeyUsage = append(wanted.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			wanted.IPAddresses = append(wanted.IPAddresses, ip)
		} else {
			wanted.DNSNames = append(wanted.DNSNames, host)
		}
	}
	_, err = m.write(name, wanted, m.ca)
	return err
}

// check returns an error unless a certificate that is kept is of use.
func (m *maker) check(name string, c *x509.Certificate, hosts []string) error {
	path := m.path(name, ".pem")
	if c.NotAfter.Before(m.Now) {
		return fmt.Errorf("%s ended on %s: make it anew with --renew", path, date(c.NotAfter))
	}
	if err := c.CheckSignatureFrom(m.ca); err != nil {
		return fmt.Errorf("%s is not of the authority %s: make it anew with --renew: %w", path, m.path(Authority, ".pem"), err)
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			host = ip.String()
		}
		if !slices.Contains(HostsOf(c), host) {
			return fmt.Errorf("%s is kept, and is not for %s: make it anew with --renew", path, host)
		}
	}
	return nil
}

// HostsOf returns the names and addresses that a certificate is for.
func HostsOf(c *x509.Certificate) []string {
	hosts := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

func date(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// write signs a certificate and writes it. signer nil: it signs itself.
func (m *maker) write(name string, wanted, signer *x509.Certificate) (*x509.Certificate, error) {
	key, err := m.key(name, true)
	if err != nil {
		return nil, err
	}
	by := key
	if signer == nil {
		signer = wanted
	} else if by, err = m.key(Authority, false); err != nil {
		return nil, err
	}
	if wanted.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	wanted.NotBefore = m.Now.Add(-early)
	der, err := x509.CreateCertificate(rand.Reader, wanted, signer, &key.PublicKey, by)
	if err != nil {
		return nil, err
	}
	path := m.path(name, ".pem")
	if err := replace(path, "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	m.made = append(m.made, Made{path, false, cert})
	return cert, err
}

// read reads a certificate; nil: there is none.
func (m *maker) read(name string) (*x509.Certificate, error) {
	der, err := decode(m.path(name, ".pem"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// key reads a key, or makes it.
func (m *maker) key(name string, create bool) (*ecdsa.PrivateKey, error) {
	path := m.path(name, ".key")
	der, err := decode(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && create:
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
			return nil, err
		}
		return key, replace(path, "PRIVATE KEY", der, 0o600)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s is not here, and certificates cannot be signed without it: run this where it is", path)
	case err != nil:
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an ECDSA key", path)
	}
	return key, nil
}

// decode returns the first block of a PEM file.
func decode(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not a PEM file", path)
	}
	return block.Bytes, nil
}

// replace writes a PEM file at once: readers see the old one or the new one.
func replace(path, kind string, der []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	err = errors.Join(f.Chmod(mode), pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

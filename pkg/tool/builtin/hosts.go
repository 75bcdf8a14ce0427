package builtin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// trust is how much an entry of the list of hosts vouches for an address.
type trust int

const (
	trustNone    trust = iota
	trustPublic        // matched by a wildcard: public addresses only
	trustName          // listed by name: also private and loopback addresses
	trustAddress       // listed by address: that address, whatever it is
)

// hostRule is one entry of the list.
type hostRule struct {
	host  string // lower case; without "*" where it is a wildcard
	port  string // "" stands for 80 and 443
	trust trust
}

// hostList decides whom http_get may ask.
type hostList []hostRule

func newHostList(entries []string) (hostList, error) {
	if len(entries) == 0 {
		return nil, errors.New("http_get needs a list of allowed hosts")
	}
	var list hostList
	for _, entry := range entries {
		rule, err := parseHost(strings.ToLower(strings.TrimSpace(entry)))
		if err != nil {
			return nil, fmt.Errorf("http_get: host %q: %w", entry, err)
		}
		list = append(list, rule)
	}
	return list, nil
}

func parseHost(entry string) (hostRule, error) {
	rule := hostRule{host: strings.Trim(entry, "[]"), trust: trustName}
	if host, port, err := net.SplitHostPort(entry); err == nil {
		rule.host, rule.port = host, port
	}
	if _, err := strconv.ParseUint(rule.port, 10, 16); rule.port != "" && err != nil {
		return hostRule{}, errHostForm
	}
	if addr, err := netip.ParseAddr(rule.host); err == nil {
		rule.host, rule.trust = addr.String(), trustAddress
		return rule, nil
	}
	if below, ok := strings.CutPrefix(rule.host, "*."); ok {
		rule.host, rule.trust = "."+below, trustPublic
	}
	rule.host = strings.TrimSuffix(rule.host, ".")
	if rule.host == "" || rule.host == "." || strings.ContainsAny(rule.host, "*/:@?# ") {
		return hostRule{}, errHostForm
	}
	return rule, nil
}

var errHostForm = errors.New("write example.org, example.org:8080, *.example.org or an IP address")

// match returns how far host and port are trusted.
func (l hostList) match(host, port string) trust {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
	}
	best := trustNone
	for _, rule := range l {
		if rule.port != port && (rule.port != "" || port != "80" && port != "443") {
			continue
		}
		if rule.host == host || rule.trust == trustPublic && strings.HasSuffix(host, rule.host) {
			best = max(best, rule.trust)
		}
	}
	return best
}

// check refuses what is not an http or https URL of an allowed host.
func (l hostList) check(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return invalid("the URL must begin with http:// or https://")
	}
	if u.User != nil {
		return invalid("the URL must not contain a user name or password")
	}
	if u.Hostname() == "" {
		return invalid("the URL has no host")
	}
	if l.match(u.Hostname(), portOf(u)) == trustNone {
		return invalid("the host %q is not allowed; allowed are: %s", u.Host, l)
	}
	return nil
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

// String lists the hosts as they are written in the settings.
func (l hostList) String() string {
	names := make([]string, len(l))
	for i, rule := range l {
		names[i] = rule.host
		if rule.trust == trustPublic {
			names[i] = "*" + rule.host
		}
		if rule.port != "" {
			names[i] = net.JoinHostPort(names[i], rule.port)
		}
	}
	return strings.Join(names, ", ")
}

// special are the ranges that netip does not know as private but that are not
// the public internet either.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
}

// mayDial decides on the address that a name was resolved to. Link-local ones
// (where clouds keep credentials) have to be listed by address.
func mayDial(t trust, addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if t == trustAddress {
		return true
	}
	if addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() {
		return false
	}
	if t == trustName {
		return true
	}
	for _, p := range special {
		if p.Contains(addr) {
			return false
		}
	}
	return t == trustPublic && !addr.IsPrivate() && !addr.IsLoopback()
}

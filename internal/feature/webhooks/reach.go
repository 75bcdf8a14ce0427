package webhooks

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// special are networks that reach no other machine of the internet, besides those that package
// netip knows: shared, reserved and test networks, and those that hold IPv4 addresses.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// Networks are those that messages may reach besides public addresses.
type Networks []netip.Prefix

// MayReach reports whether messages may go to an address, whatever its form.
func (n Networks) MayReach(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	within := func(p netip.Prefix) bool { return p.Contains(address) }
	return slices.ContainsFunc(n, within) ||
		address.IsGlobalUnicast() && !address.IsPrivate() && !slices.ContainsFunc(special, within)
}

// errForbidden says that the operator does not allow an address.
type errForbidden struct{ address string }

func (e *errForbidden) Error() string {
	return fmt.Sprintf("the address %s is not public; the operator of the gateway may allow it with --webhook-allow", e.address)
}

// loopback is what names of this machine resolve to.
var loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// Check returns why no message can ever go to the host of a URL; nil if one may. A name is not
// resolved: a message that is sent is checked again, with the address that the name has then.
func (n Networks) Check(u *url.URL) error {
	if port := u.Port(); port != "" {
		if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
			return fmt.Errorf("%.20q is no port; use a number from 1 to 65535", port)
		}
	}
	host := u.Hostname()
	if ascii, err := idna.Lookup.ToASCII(host); err == nil && !strings.Contains(host, ":") {
		host = ascii // as the sender asks for it, in lower case
	}
	if address, err := netip.ParseAddr(host); err == nil {
		if !n.MayReach(address) {
			return &errForbidden{address.String()}
		}
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case endsInNumber(name):
		return fmt.Errorf("%.100q is no host: write an IPv4 address as four decimal numbers, such as 203.0.113.7", host)
	case !isName(name):
		return fmt.Errorf("%.100q is neither the name of a host nor an address", host)
	case (name == "localhost" || strings.HasSuffix(name, ".localhost")) && !slices.ContainsFunc(loopback, n.MayReach):
		return &errForbidden{host}
	}
	return nil
}

// endsInNumber reports whether the last part of a name is a number. No name of the internet ends
// so, and some resolvers read it as an address: 0x7f.1, 2130706433.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if rest, hex := strings.CutPrefix(last, "0x"); hex {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// isName reports whether a resolver asks for a name: letters, digits, - and _ in parts of at most
// 63 bytes.
func isName(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || len(part) > 63 || strings.HasPrefix(part, "-") || strings.HasSuffix(part, "-") || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return len(name) <= 253
}

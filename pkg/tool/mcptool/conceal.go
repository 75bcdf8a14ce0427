package mcptool

import (
	"net/url"
	"slices"
	"strings"
)

// shortestSecret is the length below which a value is no secret worth looking for.
const shortestSecret = 6

// concealer takes what may be secret out of words about a server: of its URL all
// but scheme and host, the values of its headers, and those of a command's own
// environment, line by line.
func concealer(o Options) *strings.Replacer {
	var secrets [][2]string
	hide := func(value, as string) {
		if len(value) >= shortestSecret {
			secrets = append(secrets, [2]string{value, as})
		}
	}
	if u, err := url.Parse(o.URL); err == nil && o.URL != "" {
		shown := u.Scheme + "://" + u.Host
		hide(o.URL, shown)
		hide(u.String(), shown)
		if u.User != nil { // as an error of net/http has it
			bare := *u
			bare.User = nil
			hide(strings.Replace(bare.String(), "://", "://"+url.User(u.User.Username()).String()+":***@", 1), shown)
			hide(u.User.String()+"@", "")
			password, _ := u.User.Password()
			hide(password, hidden)
			hide(u.User.Username(), hidden)
		}
		hide(u.RawQuery, hidden)
		for _, values := range u.Query() {
			for _, value := range values {
				hide(value, hidden)
				hide(url.QueryEscape(value), hidden)
			}
		}
	}
	for _, value := range o.Headers {
		hide(value, hidden)
		if _, token, found := strings.Cut(value, " "); found {
			hide(token, hidden)
		}
	}
	for _, entry := range o.Env {
		_, value, _ := strings.Cut(entry, "=")
		for line := range strings.Lines(value) {
			hide(strings.TrimSpace(line), hidden)
		}
	}
	// The longest first: one may be the beginning of another.
	slices.SortStableFunc(secrets, func(a, b [2]string) int { return len(b[0]) - len(a[0]) })
	var pairs []string
	for _, secret := range secrets {
		pairs = append(pairs, secret[:]...)
	}
	return strings.NewReplacer(pairs...)
}

// hidden stands for a secret.
const hidden = "[REDACTED]"

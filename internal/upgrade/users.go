package upgrade

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/conf"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/permissions"
)

// variable is what a configuration has in place of a password. The variables are set where the
// server runs, and not here.
var variable = regexp.MustCompile(`\$MOOREBUS_\w+`)

const printAgain = "print the permissions again (`moorebus init --print-permissions`), and have the servers reload them, before roles of this build start"

// users compares the users of a configuration with those that this build needs for the same
// pools.
func users(text string, shards int) ([]natsbus.Finding, error) {
	served, err := readUsers(text)
	if err != nil {
		return nil, err
	}
	layout := permissions.Layout{Shards: shards}
	for name := range served {
		if pool, ok := strings.CutPrefix(name, permissions.ActorPrefix); ok {
			layout.Pools = append(layout.Pools, pool)
		}
	}
	wanted, err := permissions.Users(layout)
	if err != nil {
		return nil, err
	}
	var found []natsbus.Finding
	for _, want := range wanted {
		has, there := served[want.Name]
		if !there {
			found = append(found, natsbus.Finding{Level: natsbus.Warning, What: "there is no user " + want.Name, Mend: printAgain})
			continue
		}
		if has.account != want.Account {
			found = append(found, natsbus.Finding{Level: natsbus.Warning, Mend: printAgain,
				What: fmt.Sprintf("user %s is in the account %s, where others can forge messages to it; its account is %s now", want.Name, has.account, want.Account)})
		}
		lacks := append(missing(want.Publish, has.publish), missing(want.Subscribe, has.subscribe)...)
		if len(lacks) > 0 {
			found = append(found, natsbus.Finding{Level: natsbus.Warning,
				What: fmt.Sprintf("user %s may not use %d subjects, such as %s", want.Name, len(lacks), lacks[0]), Mend: printAgain})
		}
	}
	if len(found) == 0 {
		found = append(found, natsbus.Finding{Level: natsbus.Good, What: fmt.Sprintf("%d users have the permissions that this build needs", len(wanted))})
	}
	return found, nil
}

// allowed is the account of a user, and the subjects that it may use.
type allowed struct {
	account            string
	publish, subscribe []string
}

// readUsers reads the users of all accounts but that of the operator, named after their inboxes.
func readUsers(text string) (map[string]allowed, error) {
	parsed, err := conf.Parse(variable.ReplaceAllString(text, `"x"`))
	if err != nil {
		return nil, fmt.Errorf("the permissions: %w", err)
	}
	served := map[string]allowed{}
	for _, account := range []string{permissions.Roles, permissions.Tools, permissions.Readers} {
		list, _ := at(parsed, "accounts", account, "users").([]any)
		addUsers(served, account, list)
	}
	if len(served) == 0 {
		return nil, fmt.Errorf("the permissions have no users of the account %s: name the file that `moorebus init --print-permissions` wrote", permissions.Roles)
	}
	return served, nil
}

// addUsers adds the users of one account.
func addUsers(served map[string]allowed, account string, list []any) {
	for _, user := range list {
		of := allowed{account, texts(at(user, "permissions", "publish", "allow")), texts(at(user, "permissions", "subscribe", "allow"))}
		for _, subject := range of.subscribe {
			if name, ok := strings.CutPrefix(subject, "_INBOX_"); ok {
				served[strings.TrimSuffix(name, ".>")] = of
			}
		}
	}
}

// at returns what lies at a path of maps, or nil.
func at(v any, path ...string) any {
	for _, name := range path {
		of, _ := v.(map[string]any)
		v = of[name]
	}
	return v
}

func texts(v any) []string {
	list, _ := v.([]any)
	var all []string
	for _, s := range list {
		if s, ok := s.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// missing returns the subjects of wanted that nothing allowed covers.
func missing(wanted, allowed []string) []string {
	return slices.DeleteFunc(slices.Clone(wanted), func(subject string) bool {
		return slices.ContainsFunc(allowed, func(filter string) bool { return covers(filter, subject) })
	})
}

// covers reports whether all that matches the subject, which may have wildcards, matches the
// filter.
func covers(filter, subject string) bool {
	f, s := strings.Split(filter, "."), strings.Split(subject, ".")
	for i, token := range f {
		switch {
		case token == ">":
			return len(s) > i
		case i >= len(s), s[i] == ">", token != "*" && token != s[i]:
			return false
		}
	}
	return len(f) == len(s)
}

package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// userInfoSubject is where a server says who asks it.
const userInfoSubject = "$SYS.REQ.USER.INFO"

// globalAccount is the account of a server's users where its configuration has
// none.
const globalAccount = "$G"

// Identity is who a connection is to the server.
type Identity struct {
	// User is a name, or the public key of an nkey; empty: the server asks nobody
	// who they are.
	User    string
	Account string
	// publish is nil for a user that may publish everything.
	publish *subjectRules
}

type subjectRules struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// WhoIs asks the server who a connection is. The error is ErrDenied where the
// user may not even ask that.
func WhoIs(ctx context.Context, conn *nats.Conn, o Options) (Identity, error) {
	o = o.withDefaults()
	b, unhook, err := api.New(conn, o.RequestTimeout, o.Logger)
	if err != nil {
		return Identity{}, err
	}
	defer unhook()
	msg, err := b.Request(ctx, 0, &nats.Msg{Subject: userInfoSubject})
	if err != nil {
		return Identity{}, fmt.Errorf("who this user is: %w", api.Classify(err))
	}
	var answer struct {
		Data struct {
			User        string `json:"user"`
			Account     string `json:"account"`
			Permissions *struct {
				Publish *subjectRules `json:"publish"`
			} `json:"permissions"`
		} `json:"data"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return Identity{}, fmt.Errorf("who this user is: %w", err)
	}
	id := Identity{User: answer.Data.User, Account: answer.Data.Account}
	if id.Account == "" {
		return id, errors.New("who this user is: the server does not say")
	}
	if p := answer.Data.Permissions; p != nil {
		id.publish = p.Publish
	}
	return id, nil
}

// Limited reports whether there is anything that the user may not publish on.
func (id Identity) Limited() bool {
	return id.publish != nil && (len(id.publish.Deny) > 0 || !id.MayPublish(">"))
}

// MayPublish reports whether the user may publish on a subject, or on all of
// those that one with wildcards stands for.
func (id Identity) MayPublish(subject string) bool {
	if id.publish == nil {
		return true
	}
	covers := func(rule string) bool { return subjectCovers(rule, subject) }
	return (len(id.publish.Allow) == 0 || slices.ContainsFunc(id.publish.Allow, covers)) && !slices.ContainsFunc(id.publish.Deny, covers)
}

// subjectCovers reports whether a rule stands for every subject that the other
// one stands for.
func subjectCovers(rule, subject string) bool {
	rules, tokens := strings.Split(rule, "."), strings.Split(subject, ".")
	for i, r := range rules {
		switch {
		case i >= len(tokens):
			return false
		case r == ">":
			return true
		case tokens[i] == ">" || r != "*" && r != tokens[i]:
			return false
		}
	}
	return len(rules) == len(tokens)
}

// operators are subjects that nobody but an operator needs: by one of them the
// log can be changed, or an answer of the server's be directed into it.
var operators = []string{
	api.Prefix + "STREAM.UPDATE.MOORE_0", api.Prefix + "STREAM.DELETE.MOORE_0", api.Prefix + "STREAM.PURGE.MOORE_0",
	api.Prefix + "STREAM.CREATE.moorebus", api.Prefix + "CONSUMER.CREATE.MOORE_0.moorebus", api.Prefix + "CONSUMER.DELETE.MOORE_0.planning",
	timerDue + "x.x.x",
}

// Check says what is to be said of what the user may do, beside the edges that it
// may publish on.
func (id Identity) Check() Finding {
	may := slices.DeleteFunc(slices.Clone(operators), func(s string) bool { return !id.MayPublish(s) })
	switch {
	case !id.Limited() && id.Account == globalAccount:
		return Finding{Warning, "every user of the server may do everything with the log, since its configuration has no accounts and permissions",
			"nothing, if all who reach the server may do that; else `moorebus init --print-permissions`, see deploy/nats"}
	case !id.Limited():
		return Finding{Good, fmt.Sprintf("this user of account %s may do everything: it is an operator's, and no role should have it", id.Account), ""}
	case len(may) > 0:
		return Finding{Warning, "this user may publish on " + strings.Join(may, ", ") + ", which only an operator needs",
			"take its permissions from `moorebus init --print-permissions`"}
	case id.Account == globalAccount:
		return Finding{Warning, "this user has permissions, but its account is the server's only one: a reply subject of the log gets past them",
			"put the streams and the users into accounts of their own, as `moorebus init --print-permissions` does"}
	}
	return Finding{Good, fmt.Sprintf("this user of account %s has limited permissions", id.Account), ""}
}

// denied reports whether an error says that this user may not look.
func denied(err error) bool { return errors.Is(err, journal.ErrDenied) }

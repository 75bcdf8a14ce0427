package natsconn

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/nats-io/nats.go"
)

// UserInfoSubject is the subject of requests for the connection's own user.
const UserInfoSubject = "$SYS.REQ.USER.INFO"

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

// WhoIs asks the server who a connection is. It waits for the timeout, 0: 5 s; a nil log is
// slog's default. The error is ErrDenied of package journal if the user may not even ask that.
func WhoIs(ctx context.Context, conn *nats.Conn, timeout time.Duration, log *slog.Logger) (Identity, error) {
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	client, unhook, err := api.New(conn, timeout, cmp.Or(log, slog.Default()))
	if err != nil {
		return Identity{}, err
	}
	defer unhook()
	msg, err := client.Request(ctx, 0, &nats.Msg{Subject: UserInfoSubject})
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

package permissions

import (
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
)

// The accounts. A server sends an answer to any reply subject that a request names, without
// checking permissions, and a subscriber there takes it for a message. It does so only within the
// account of the user that asked. So everything that must not be forged is in another account: the
// log, and the users that act on a message alone, which are actors and services.
const (
	Log     = "LOG"
	Roles   = "ROLES"
	Tools   = "TOOLS"
	Readers = "READERS"
)

// Account is an account with what it imports.
type Account struct {
	Name string `json:"name"`
	// About says who is in it, for readers of the configuration.
	About string `json:"about"`
	// Services are the services of LOG that its users need, Streamed those that answer with
	// several messages.
	Services []string `json:"services,omitempty"`
	Streamed []string `json:"streamed_services,omitempty"`
	// Streams are the messages of other accounts that its users receive.
	Streams []Stream `json:"streams,omitempty"`
}

// Stream is what an account sends to others.
type Stream struct {
	Account string `json:"account"`
	Subject string `json:"subject"`
}

// accountOf returns the account of a user.
func accountOf(user string) string {
	switch {
	case user == ActorPrefix+events.AgentsPool:
		return Roles // it runs no tools, and may call no services
	case strings.HasPrefix(user, ActorPrefix), strings.HasPrefix(user, ServicePrefix):
		return Tools
	case user == Tap, user == Backup, user == Telemetry:
		return Readers
	default:
		return Roles
	}
}

// accounts returns all accounts. Each imports the services that one of its users may ask, and the
// streams that one of them may hear.
func accounts(users []User) []Account {
	all := []Account{
		{Name: Log, About: "The streams, and the operator, who may do everything with them."},
		{Name: Roles, About: "The roles that act on what the log says. Their reply subjects stay in this account, so the server cannot store an answer in the log."},
		{Name: Tools, About: "Actors and services, which act on requests. Nobody else's reply subjects reach them."},
		{Name: Readers, About: "Users that read the log and change no run."},
	}
	streams := map[string][]Stream{
		Log:     from(natsbus.Chunks(), Roles), // for the commands of the operator
		Roles:   slices.Concat(from(natsbus.Feeds(), Log), from(natsbus.Asks(), Log), from(natsbus.Asks(), Readers)),
		Tools:   from(natsbus.Feeds(), Log),
		Readers: slices.Concat(from(natsbus.Feeds(), Log), from(natsbus.Chunks(), Roles)),
	}
	single, streamed := natsbus.Services()
	for i := range all {
		a := &all[i]
		a.Streams = streams[a.Name]
		if a.Name == Log {
			continue
		}
		a.Services, a.Streamed = asked(users, a.Name, single), asked(users, a.Name, streamed)
	}
	return all
}

// from returns the streams of these subjects that an account sends.
func from(subjects []string, account string) []Stream {
	all := make([]Stream, len(subjects))
	for i, subject := range subjects {
		all[i] = Stream{account, subject}
	}
	return all
}

// asked returns the services, which end in a wildcard, that a user of the account may ask.
func asked(users []User, account string, services []string) []string {
	return slices.DeleteFunc(slices.Clone(services), func(service string) bool {
		prefix := strings.TrimSuffix(service, ">")
		return !slices.ContainsFunc(users, func(u User) bool {
			return u.Account == account && slices.ContainsFunc(u.Publish, func(s string) bool { return strings.HasPrefix(s, prefix) })
		})
	})
}

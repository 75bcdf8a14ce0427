package embedded

import (
	"crypto/rand"
	"crypto/subtle"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// watcherAccount is the account of processes that present the token of the lock file. It is not
// the account of the streams: there, a watcher could have the server store an answer to one of
// its questions on any subject of the log.
const watcherAccount = "WATCHERS"

// What a watcher may use: all that reads streams, and nothing that makes a consumer, since that
// chooses where its messages go. chunk, catchup and feed are the subjects of live text and events.
var (
	watcherAsks = []string{
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.MSG.GET.>", "$JS.API.DIRECT.GET.>",
		"$JS.API.CONSUMER.INFO.>", "$SYS.REQ.USER.INFO", "moore_flush.>", "catchup.>",
	}
	watcherHears = []string{"_INBOX.>", "feed.>", "chunk.>"}
)

// tokens lets in who presents one of two tokens.
type tokens struct {
	// operator may do everything, watcher may watch.
	operator, watcher string
	// mu is held while a server starts: a watcher that connects then waits for its account.
	mu       sync.Mutex
	watchers *server.Account
}

func newTokens(operator string) *tokens { return &tokens{operator: operator, watcher: rand.Text()} }

// watching returns the token of watchers, or "" if nobody needs a token.
func watching(settings *server.Options) string {
	if t, ok := settings.CustomClientAuthentication.(*tokens); ok {
		return t.watcher
	}
	return ""
}

// Check implements [server.Authentication].
func (t *tokens) Check(c server.ClientAuthentication) bool {
	presented := []byte(c.GetOpts().Token)
	if subtle.ConstantTimeCompare(presented, []byte(t.operator)) == 1 {
		return true
	}
	if subtle.ConstantTimeCompare(presented, []byte(t.watcher)) != 1 {
		return false
	}
	t.mu.Lock()
	account := t.watchers
	t.mu.Unlock()
	if account == nil {
		return false // the server did not start
	}
	c.RegisterUser(&server.User{Username: "watcher", Account: account, Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: watcherAsks}, Subscribe: &server.SubjectPermission{Allow: watcherHears},
	}})
	return true
}

// link is called with the lock held. It makes the account of watchers on a server that has started, and links it to the account of
// the streams. A server that has it earlier does not enable JetStream for the latter.
func (t *tokens) link(inner *server.Server) error {
	log := inner.GlobalAccount()
	account, err := inner.RegisterAccount(watcherAccount)
	if err != nil {
		return err
	}
	for subject, answers := range map[string]server.ServiceRespType{"$JS.API.>": server.Streamed, "moore_flush.>": server.Singleton} {
		if err := log.AddServiceExportWithResponse(subject, answers, []*server.Account{account}); err != nil {
			return err
		}
		if err := account.AddServiceImport(log, subject, subject); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		from, to *server.Account
		subject  string
	}{{log, account, "feed.>"}, {log, account, "chunk.>"}, {account, log, "catchup.>"}} {
		if err := s.from.AddStreamExport(s.subject, []*server.Account{s.to}); err != nil {
			return err
		}
		if err := s.to.AddStreamImport(s.from, s.subject, ""); err != nil {
			return err
		}
	}
	t.watchers = account
	return nil
}

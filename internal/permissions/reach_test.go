package permissions

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

// reached is what the server delivers of answers that one user had asked for to what another one
// listens to: the accounts of both, and the subject's first token. All are hints, or subjects that
// nobody can guess, or refused by who listens.
var reached = []string{
	"READERS to READERS: _INBOX", "READERS to READERS: chunk", "READERS to READERS: feed",
	"ROLES to ROLES: _INBOX", "ROLES to ROLES: catchup", "ROLES to ROLES: chunk", "ROLES to ROLES: feed", "ROLES to ROLES: loan", "ROLES to ROLES: question",
	"TOOLS to TOOLS: $SRV", "TOOLS to TOOLS: _INBOX", "TOOLS to TOOLS: _SERVICES", "TOOLS to TOOLS: feed", "TOOLS to TOOLS: loan",
}

// literal returns a subject that matches a filter.
func literal(filter string) string {
	return strings.NewReplacer("*", "x", ">", "y.z").Replace(filter)
}

// listener hears one subject as one user.
type listener struct {
	user, account string
	subject       string
}

// TestRepliesReachNobody: whatever a user asks, the server delivers the answer to no subject that
// another user listens to, but for those that are listed.
func TestRepliesReachNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wake(t, r)
	all, err := Users(layout)
	require.NoError(t, err)
	heard := map[listener]chan *nats.Msg{}
	ears, askers := map[string]*nats.Conn{}, map[string]*nats.Conn{}
	for _, u := range all {
		ears[u.Name], askers[u.Name] = r.connect(t, u.Name, nil), r.connect(t, u.Name, nil)
		for _, filter := range u.Subscribe {
			l := listener{u.Name, u.Account, literal(filter)}
			heard[l] = make(chan *nats.Msg, 1000)
			_, err := ears[u.Name].ChanSubscribe(l.subject, heard[l])
			require.NoError(t, err)
		}
		require.NoError(t, ears[u.Name].Flush())
	}
	fell := map[string]bool{}
	for _, a := range all {
		for l := range heard {
			if l.user != a.Name && !mayPublish(a, l.subject) {
				askAll(t, r, askers[a.Name], a, l.subject)
			}
		}
		settle(t, r, askers[a.Name], a, heard)
		for _, conn := range ears { // behind all that the server has sent there
			require.NoError(t, conn.Flush())
		}
		for l, messages := range heard {
			if len(messages) > 0 && !mayPublish(a, l.subject) && l.user != a.Name {
				first, _, _ := strings.Cut(l.subject, ".")
				if strings.HasPrefix(first, "_INBOX") {
					first = "_INBOX"
				}
				fell[a.Account+" to "+l.account+": "+first] = true
			}
			for len(messages) > 0 {
				<-messages
			}
		}
	}
	require.Equal(t, reached, slices.Sorted(maps.Keys(fell)))
}

func mayPublish(u User, subject string) bool {
	return slices.ContainsFunc(u.Publish, func(filter string) bool { return matches(filter, subject) })
}

// matches reports whether a subject matches a filter.
func matches(filter, subject string) bool {
	f, s := strings.Split(filter, "."), strings.Split(subject, ".")
	for i, token := range f {
		if token == ">" {
			return len(s) > i
		}
		if i >= len(s) || token != "*" && token != s[i] {
			return false
		}
	}
	return len(f) == len(s)
}

// askAll sends a message on every subject that a user may publish on, with a reply subject.
func askAll(t *testing.T, r *rig, conn *nats.Conn, u User, reply string) {
	t.Helper()
	for _, m := range messagesOf(t, r, u) {
		m.Reply = reply
		require.NoError(t, conn.PublishMsg(m))
	}
	require.NoError(t, conn.Flush())
}

// messagesOf are those of every subject that a user may publish on.
func messagesOf(t *testing.T, r *rig, u User) (all []*nats.Msg) {
	t.Helper()
	for _, filter := range u.Publish {
		for _, body := range questions(filter) {
			subject := literal(filter)
			if strings.HasPrefix(filter, "moore.") {
				tokens := strings.Split(subject, ".")
				subject = "moore.0.default." + strings.Join(tokens[3:6], ".") + "." + journaltest.NewRun(t, r.log).ID
			}
			all = append(all, &nats.Msg{Subject: subject, Data: []byte(body)})
		}
	}
	return all
}

// questions are the bodies that are worth a try on a subject.
func questions(filter string) []string {
	switch {
	case strings.Contains(filter, ".DIRECT.GET."):
		return []string{`{"last_by_subj":">"}`, `{"seq":1,"next_by_subj":">","batch":2}`, `{"multi_last":[">"]}`}
	case strings.Contains(filter, ".MSG.GET."):
		return []string{`{"last_by_subj":">"}`}
	case strings.Contains(filter, ".MSG.NEXT."):
		return []string{`{"batch":1,"no_wait":true}`}
	case strings.Contains(filter, ".STREAM.PURGE."):
		return []string{`{"filter":"nothing"}`}
	default:
		return []string{""}
	}
}

// settle returns when the server has sent its answers to what a user asked before: it asks the
// same again, with its own inbox, and each part of the server works on its questions in order.
func settle(t *testing.T, r *rig, conn *nats.Conn, u User, heard map[listener]chan *nats.Msg) {
	t.Helper()
	js, err := r.operator.JetStream()
	require.NoError(t, err)
	answer := func(m *nats.Msg) {
		if _, err := conn.RequestMsg(m, patience); !errors.Is(err, nats.ErrNoResponders) {
			require.NoError(t, err, m.Subject)
		}
	}
	for _, m := range messagesOf(t, r, u) {
		if listened(heard, m.Subject) { // it went straight to whoever listens, and nobody answers
			continue
		}
		answer(m)
		consumer, pulls := strings.CutPrefix(m.Subject, "$JS.API.CONSUMER.MSG.NEXT.")
		if !pulls {
			continue
		}
		stream, name, _ := strings.Cut(consumer, ".") // a consumer may say that it has nothing more before it delivers
		require.Eventually(t, func() bool {
			info, err := js.ConsumerInfo(stream, name)
			return err == nil && info.NumWaiting == 0
		}, patience, time.Millisecond)
		answer(m)
	}
}

func listened(heard map[listener]chan *nats.Msg, subject string) bool {
	for l := range heard {
		if l.subject == subject {
			return true
		}
	}
	return false
}

// TestForgedAcks: what is sent as the reply subject of a question is not the acknowledgement of
// another user's delivery.
func TestForgedAcks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wake(t, r)
	js, err := r.operator.JetStream()
	require.NoError(t, err)
	next := func() string {
		msg, err := r.connect(t, Planner, nil).Request("$JS.API.CONSUMER.MSG.NEXT.MOORE_0.planning", []byte(`{"batch":1}`), patience)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(msg.Reply, "$JS.ACK.MOORE_0.planning."), msg.Reply)
		return msg.Reply
	}
	target, own := next(), next()
	ask := func(conn *nats.Conn, ack, subject, body string) {
		require.NoError(t, conn.PublishMsg(&nats.Msg{Subject: subject, Reply: ack, Data: []byte(body)}))
		_, err := conn.Request(subject, []byte(body), patience)
		require.NoError(t, err)
	}
	nothing := `{"last_by_subj":"moore.0.none"}` // its answer is empty, as an acknowledgement is
	for _, user := range []string{Tap, Backup, Telemetry, Observer, Gateway, "actor_web"} {
		conn := r.connect(t, user, nil)
		ask(conn, target, "$JS.API.DIRECT.GET.MOORE_0", nothing)
		ask(conn, target, "$JS.API.DIRECT.GET.MOORE_0", `{"seq":99999,"next_by_subj":"moore.0.none","batch":2}`)
		ask(conn, target, "$JS.API.STREAM.MSG.GET.MOORE_0", nothing)
		if durable := ownDurable[user]; durable != "" {
			ask(conn, target, "$JS.API.CONSUMER.MSG.NEXT.MOORE_0."+durable, `{"batch":100,"no_wait":true}`)
		}
	}
	require.NoError(t, r.operator.Publish(own, nil))
	require.Eventually(t, func() bool {
		info, err := js.ConsumerInfo("MOORE_0", "planning")
		require.NoError(t, err)
		require.NotZero(t, info.NumAckPending, "somebody else acknowledged the planner's delivery")
		return info.NumAckPending == 1
	}, 5*time.Second, time.Millisecond)
}

// TestForgedLoans: an actor takes no loan that did not come from an actor of its pool.
func TestForgedLoans(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	taken, refused := make(chan string, 10), make(refusedLoans, 10)
	bus, err := natsbus.Open(t.Context(), r.connect(t, "actor_web", nil), natsbus.Options{Logger: slog.New(refused), RequestTimeout: patience})
	require.NoError(t, err)
	stop, err := bus.Borrow("web", "search", func(_ journal.Delivery, l ports.Loan) (time.Duration, error) {
		taken <- l.Key
		return 0, nil
	})
	require.NoError(t, err)
	defer stop()
	var byServer refusals
	lender := r.connect(t, "actor_web", &byServer)
	ask := func(key, reply string) {
		body := `{"subject":"moore.0.default.planning.acting.web.x","key":"` + key + `","answer":"a","ack":"$JS.ACK.MOORE_0.acting_web.1.1.1.1.0"}`
		require.NoError(t, lender.PublishMsg(&nats.Msg{Subject: "loan.web.ask.search", Reply: reply, Data: []byte(body)}))
	}
	require.Eventually(t, func() bool { // until the offer is known
		ask("real", "loan.web.answer.a")
		require.NoError(t, lender.Flush())
		return len(taken) > 0
	}, patience, 10*time.Millisecond)
	const ack = "$JS.ACK.MOORE_0.acting_web.1.1.1.1.0" // the server refuses this one, and the actor the others
	ask("forged", ack)
	forged := []string{"", "loan.web.answer.b", "loan.gpu.answer.a", "_INBOX_actor_web.x"}
	for _, reply := range forged {
		ask("forged", reply)
	}
	for left := len(forged); left > 0; {
		select {
		case <-refused:
			left--
		case key := <-taken:
			require.Equal(t, "real", key)
		}
	}
	require.Eventually(t, func() bool { return byServer.has(ack) }, patience, time.Millisecond)
}

// refusedLoans is a logger that counts the loans that the actor refuses.
type refusedLoans chan struct{}

func (r refusedLoans) Enabled(context.Context, slog.Level) bool { return true }
func (r refusedLoans) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r refusedLoans) WithGroup(string) slog.Handler            { return r }
func (r refusedLoans) Handle(_ context.Context, record slog.Record) error {
	if record.Message == "a loan cannot be read" {
		r <- struct{}{}
	}
	return nil
}

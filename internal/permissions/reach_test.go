package permissions

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
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
	var mu sync.Mutex
	heard := map[listener]map[string]bool{} // whose answers came
	var asker string
	var listeners []listener
	for _, u := range all {
		conn := r.connect(t, u.Name, nil)
		for _, filter := range u.Subscribe {
			l := listener{u.Name, u.Account, literal(filter)}
			heard[l] = map[string]bool{}
			listeners = append(listeners, l)
			_, err := conn.Subscribe(l.subject, func(*nats.Msg) {
				mu.Lock()
				defer mu.Unlock()
				heard[l][asker] = true
			})
			require.NoError(t, err)
		}
		require.NoError(t, conn.Flush())
	}
	conns := map[string]*nats.Conn{}
	for _, a := range all {
		conns[a.Name] = r.connect(t, a.Name, nil)
	}
	fell := map[string]bool{}
	for _, a := range all {
		mu.Lock()
		asker = a.Name
		mu.Unlock()
		for _, l := range listeners {
			if l.user == a.Name || mayPublish(a, l.subject) {
				continue
			}
			askAll(t, r, conns[a.Name], a, l.subject)
		}
		settle(t, conns)
		mu.Lock()
		for l, by := range heard {
			if by[a.Name] && !mayPublish(a, l.subject) && l.user != a.Name {
				first, _, _ := strings.Cut(l.subject, ".")
				if strings.HasPrefix(first, "_INBOX") {
					first = "_INBOX"
				}
				fell[a.Account+" to "+l.account+": "+first] = true
			}
		}
		mu.Unlock()
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
	for _, filter := range u.Publish {
		for _, body := range questions(filter) {
			subject := literal(filter)
			if strings.HasPrefix(filter, "moore.") {
				tokens := strings.Split(subject, ".")
				subject = "moore.0.default." + strings.Join(tokens[3:6], ".") + "." + journaltest.NewRun(t, r.log).ID
			}
			require.NoError(t, conn.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: []byte(body)}))
		}
	}
	require.NoError(t, conn.Flush())
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

// settle returns when the server has answered what was asked before, and everybody has heard it.
func settle(t *testing.T, conns map[string]*nats.Conn) {
	t.Helper()
	for name, conn := range conns {
		if !strings.HasPrefix(name, ServicePrefix) {
			for _, subject := range []string{"$JS.API.STREAM.INFO.MOORE_0", "$JS.API.DIRECT.GET.MOORE_0"} {
				_, err := conn.Request(subject, []byte(`{"last_by_subj":">"}`), patience)
				require.NoError(t, err, name)
			}
		}
	}
	for range 3 { // through the listeners' connections, which are behind these
		for _, conn := range conns {
			require.NoError(t, conn.Flush())
		}
		time.Sleep(20 * time.Millisecond)
	}
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
	taken := make(chan string, 10)
	stop, err := r.open(t, "actor_web").Borrow("web", "search", func(_ journal.Delivery, l ports.Loan) (time.Duration, error) {
		taken <- l.Key
		return 0, nil
	})
	require.NoError(t, err)
	defer stop()
	lender := r.connect(t, "actor_web", nil)
	ask := func(key, reply string) {
		body := `{"subject":"moore.0.default.planning.acting.web.x","key":"` + key + `","answer":"a","ack":"$JS.ACK.MOORE_0.acting_web.1.1.1.1.0"}`
		require.NoError(t, lender.PublishMsg(&nats.Msg{Subject: "loan.web.ask.search", Reply: reply, Data: []byte(body)}))
	}
	require.Eventually(t, func() bool { // until the offer is known
		ask("real", "loan.web.answer.a")
		require.NoError(t, lender.Flush())
		return len(taken) > 0
	}, patience, 10*time.Millisecond)
	for _, reply := range []string{"", "loan.web.answer.b", "loan.gpu.answer.a", "$JS.ACK.MOORE_0.acting_web.1.1.1.1.0", "_INBOX_actor_web.x"} {
		ask("forged", reply)
	}
	ask("last", "loan.web.answer.a")
	for key := range taken {
		require.NotEqual(t, "forged", key)
		if key == "last" {
			return
		}
	}
}

package permissions

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/servicetool"
)

const textService = ServicePrefix + "text"

// serveText runs the service text as its user, until the test ends. It answers with what it
// is sent.
func serveText(t *testing.T, r *rig, refused *refusals) {
	t.Helper()
	conn := r.connect(t, textService, refused)
	s, err := micro.AddService(conn, micro.Config{Name: "text", Version: "1.0.0"})
	require.NoError(t, err)
	err = s.AddEndpoint("same", micro.HandlerFunc(func(r micro.Request) { _ = r.Respond(r.Data()) }),
		micro.WithEndpointSubject("text.same"), micro.WithEndpointMetadata(map[string]string{"moorebus.tool": "same"}))
	require.NoError(t, err)
	require.NoError(t, conn.Flush())
}

// An actor finds the services that the permissions name, and calls their tools.
func TestActorsCallServices(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var refused refusals
	serveText(t, r, &refused)
	for _, o := range []servicetool.Options{{All: true}, {Services: []servicetool.Service{{Name: "text"}}}} {
		o.Conn = r.connect(t, ActorPrefix+"web", &refused)
		source, err := servicetool.New(o)
		require.NoError(t, err)
		tools, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{source}})
		require.NoError(t, err)
		stop := tools.Start(t.Context(), slog.New(slog.DiscardHandler))
		require.True(t, tools.Ready(t.Context()))
		out := tools.Execute(t.Context(), tool.Call{Run: "r", ID: "c", Name: "same", Arguments: `{"a":1}`})
		require.Nil(t, out.Failure)
		require.Equal(t, `{"a":1}`, out.Result)
		stop()
	}
	require.Zero(t, refused.count(), "%v", refused.subjects)
}

// An actor whose permissions name no such service is told so at once.
func TestServicesThatArePermittedToNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, user := range []string{Planner, Observer, Gateway, Tap, ActorPrefix + "agents", textService} {
		var refused refusals
		conn := r.connect(t, user, &refused)
		require.NoError(t, conn.Publish("text.same", nil))
		require.NoError(t, conn.Publish("$SRV.INFO", nil))
		require.NoError(t, conn.Flush())
		require.Eventually(t, func() bool { return refused.has("text.same") && refused.has("$SRV.INFO") }, patience, time.Millisecond, user)
	}
}

// A service takes nobody's requests but its own, and writes nowhere but where actors wait
// for services.
func TestServicesAreConfined(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := journaltest.NewRun(t, r.log).ID
	var refused refusals
	conn := r.connect(t, ServicePrefix+"echo", &refused)
	for _, allowed := range []string{"echo", "say.hello", "$SRV.INFO", "$SRV.INFO.echo", "$SRV.PING.echo.id"} {
		_, err := conn.SubscribeSync(allowed)
		require.NoError(t, err)
	}
	require.NoError(t, conn.Publish("_SERVICES._INBOX_actor_web.x", nil))
	require.NoError(t, conn.Flush())
	require.Zero(t, refused.count(), "%v", refused.subjects)

	subjects := []string{"_INBOX_actor_web.x", "text.same", "echo", "feed.x", "chunk.default." + run, "loan.web.x", "moore_flush.0", "$SRV.INFO",
		"$JS.API.STREAM.INFO.MOORE_0", "$JS.API.DIRECT.GET.MOORE_0", "$SYS.REQ.USER.INFO"}
	for _, edge := range ownEdge {
		subjects = append(subjects, "moore.0.default."+edge+"."+run)
	}
	for _, subject := range beside(run) {
		subjects = append(subjects, subject)
	}
	for _, subject := range subjects {
		require.NoError(t, conn.Publish(subject, []byte("forged")))
		require.Eventually(t, func() bool { return refused.has(subject) }, patience, time.Millisecond, "publish on %s", subject)
	}
	for _, subject := range []string{"text.same", "text.>", "$SRV.INFO.text", "$SRV.>", "_SERVICES.>", "_SERVICES._INBOX_actor_web.>", "_INBOX_actor_web.>", "feed.>", "chunk.>", ">"} {
		_, err := conn.SubscribeSync(subject)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return refused.has(subject) }, patience, time.Millisecond, "subscribe to %s", subject)
	}
	// And nobody takes the requests or the answers of others.
	for _, user := range []string{Planner, Tap, ActorPrefix + "gpu"} {
		var refused refusals
		conn := r.connect(t, user, &refused)
		for _, subject := range []string{"text.same", "$SRV.INFO", "_SERVICES._INBOX_actor_web.>"} {
			_, err := conn.SubscribeSync(subject)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return refused.has(subject) }, patience, time.Millisecond, "%s subscribes to %s", user, subject)
		}
	}
}

// A service answers on the reply subject that a request names. An actor cannot have it write
// what it may not write itself, such as an approval.
func TestServicesForgeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var refused refusals
	serveText(t, r, &refused)
	actor := r.connect(t, ActorPrefix+"web", nil)
	js, err := r.operator.JetStream()
	require.NoError(t, err)
	run := journaltest.NewRun(t, r.log).ID
	targets := beside(run)
	targets["MOORE_0"] = "moore.0.default.waiting_for_human.acting.web." + run
	for stream, target := range targets {
		require.NoError(t, actor.PublishMsg(&nats.Msg{Subject: "text.same", Reply: target, Data: []byte("forged")}))
		require.Eventually(t, func() bool { return refused.has(target) }, patience, time.Millisecond, target)
		_, err := js.GetLastMsg(stream, target)
		require.ErrorIs(t, err, nats.ErrMsgNotFound, "%s was written", target)
	}
}

func TestServicesOfALayoutAreChecked(t *testing.T) {
	t.Parallel()
	for want, s := range map[string][]Service{
		`"a.b" is not a name`:     {{"a.b", []string{"a"}}},
		"name the subjects":       {{"a", nil}},
		`"moore.>" belongs to`:    {{"a", []string{"moore.>"}}},
		`"*.x" belongs to`:        {{"a", []string{"*.x"}}},
		`"$JS.API.>" belongs to`:  {{"a", []string{"$JS.API.>"}}},
		`"_INBOX.>" belongs to`:   {{"a", []string{"_INBOX.>"}}},
		`"a..b" is not a subject`: {{"a", []string{"a..b"}}},
		"a is named twice":        {{"a", []string{"a"}}, {"a", []string{"b"}}},
	} {
		_, err := Users(Layout{Services: s})
		require.ErrorContains(t, err, want)
	}
}

// The subjects that no service may have cover all that the roles use.
func TestReservedSubjectsAreComplete(t *testing.T) {
	t.Parallel()
	for _, u := range users(t, Layout{Pools: layout.Pools, Storage: layout.Storage}) {
		for _, subject := range append(u.Publish, u.Subscribe...) {
			require.True(t, servicetool.Reserved(subject), "%s uses %s", u.Name, subject)
		}
	}
}

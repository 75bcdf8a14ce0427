package reducer_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// withClient pins a tool ask of the run's client.
func withClient(p *events.Start) {
	p.Tools = append(p.Tools, events.ClientTool{
		Name: "ask", Description: "Asks.", Schema: json.RawMessage(`{"type":"object"}`), Timeout: events.Duration(time.Minute),
	}.Spec())
}

// drafts requires that the payload is legal from that origin, or refused for that reason.
func (s *scene) drafts(from events.State, p events.Payload, refused string) {
	s.t.Helper()
	_, _, _, err := s.Draft(from, p)
	if refused == "" {
		require.NoError(s.t, err)
		return
	}
	require.ErrorContains(s.t, err, refused)
}

// from appends a payload of that origin.
func (s *scene) from(from events.State, p events.Payload) string {
	s.t.Helper()
	subject, _, err := s.Append(from, p)
	require.NoError(s.t, err)
	return string(subject.To) + "." + subject.Pool
}

// TestClientCall: what becomes of a client call comes from the gateway alone, and nobody has
// work on it.
func TestClientCall(t *testing.T) {
	s := started(t, withClient)
	require.Equal(t, "acting.client", s.route(single("q", "ask")))
	require.Empty(t, s.keys())
	open := s.Mem.ClientCalls()
	require.Len(t, open, 1)
	require.Equal(t, "q", open[0].ID)
	at, known := open[0].Expires()
	require.True(t, known)
	require.True(t, at.Equal(s.Mem.Updated.Add(time.Minute)), "%s", at)
	done := outcome("q", true, "yes")
	for _, p := range []events.Payload{&events.ToolCallStarted{CallID: "q"}, &events.ToolSuccess{Outcome: &done}} {
		s.drafts(events.Acting, p, "may not come from acting")
		s.drafts(events.Control, p, "")
	}
	s.from(events.Control, &events.ToolCallStarted{CallID: "q"})
	s.do(&events.Paused{}, &events.Resumed{})
	require.Equal(t, open[0].Deadline, s.Mem.ClientCalls()[0].Deadline, "what drives the run again gives no more time")
	require.Equal(t, "observing.default", s.from(events.Control, &events.ToolSuccess{Outcome: &done}))
	require.Empty(t, s.Mem.ClientCalls())
	require.True(t, s.Mem.ToolCalls["q"].Client)
}

// TestActorsCallsStayTheActors: from the gateway the same events are illegal for a call of an
// actor, except that nobody serves its pool.
func TestActorsCallsStayTheActors(t *testing.T) {
	s := started(t, withClient).do(single("a", "alpha"))
	good, bad := outcome("a", true, "x"), outcome("a", false, "x")
	for _, p := range []events.Payload{&events.ToolCallStarted{CallID: "a"}, &events.ToolSuccess{Outcome: &good}, &events.ToolFailure{Outcome: &bad}} {
		s.drafts(events.Acting, p, "")
		s.drafts(events.Control, p, "may not come from control")
	}
	bad.Code = codes.NoActor
	s.drafts(events.Control, &events.ToolFailure{Outcome: &bad}, "")
}

// TestMixedBatchIsJoinedByTheLast: the end of a batch comes from whoever gave the last result:
// the gateway if it was the client's.
func TestMixedBatchIsJoinedByTheLast(t *testing.T) {
	for _, last := range []string{"a", "q"} {
		s := started(t, withClient)
		require.Equal(t, "none.default", s.route(batchOf(callOf("a", "alpha"), callOf("q", "ask"))))
		require.Empty(t, s.Mem.ClientCalls(), "it has not gone out")
		s.do(&events.ToolCallDispatched{CallID: "a"})
		require.Equal(t, "parallel_acting.client", s.route(&events.ToolCallDispatched{CallID: "q"}))
		require.Len(t, s.Mem.ClientCalls(), 1)
		s.drafts(events.ParallelActing, result("q", true, "x"), "may not come from parallel_acting")
		s.drafts(events.Control, result("a", true, "x"), "may not come from control")
		s.drafts(events.Control, &events.ToolSuccess{}, "may not come from control")
		first, way := events.Control, "parallel_acting."+s.Mem.Call("a").Pool
		if last == "q" {
			s.do(result("a", false, "x"))
			way = "parallel_acting.client"
		} else {
			s.from(first, result("q", false, "x"))
		}
		if last == "q" {
			require.Equal(t, way, s.from(events.Control, result("q", true, "x")))
			s.drafts(events.Control, &events.ToolSuccess{}, "")
			s.drafts(events.Control, &events.ToolFailure{}, "does not match the batch's results")
		} else {
			require.Equal(t, way, s.route(result("a", true, "x")))
			s.drafts(events.Control, &events.ToolSuccess{}, "may not come from control")
		}
		require.Len(t, s.keys(), 1, "the join")
		s.drafts(events.ParallelActing, &events.ToolSuccess{}, "")
	}
}

// TestForkArmsClientCallsAnew: the fork's first event is the delivery of the call.
func TestForkArmsClientCallsAnew(t *testing.T) {
	s := started(t, withClient).do(single("q", "ask"))
	was := s.Mem.ClientCalls()[0].Deadline
	s.from(events.Control, &events.ToolCallStarted{CallID: "q"})
	f, err := s.Fork(s.Mem.N, events.Forked{})
	require.NoError(t, err)
	open := f.Mem.ClientCalls()
	require.Len(t, open, 1)
	require.Zero(t, open[0].Started)
	require.Greater(t, open[0].Deadline, was)
}

// TestClientToolsNeedTheirRevision: no run of an earlier revision has them, and none stands in
// another pool or without its time.
func TestClientToolsNeedTheirRevision(t *testing.T) {
	older, err := reducer.DefaultTable().At(4)
	require.NoError(t, err)
	p := clientStart()
	p.TableHash = older.Hash()
	newScene(t).refuses(p, "is of revision 5, and its run of revision 4")
	for says, change := range map[string]func(*events.ToolSpec){
		`is not in the pool "client"`: func(t *events.ToolSpec) { t.Pool = "default" },
		"with a timeout above 0":      func(t *events.ToolSpec) { t.Timeout = 0 },
		"at most 720h0m0s":            func(t *events.ToolSpec) { t.Timeout = events.MaxClientTimeout + 1 },
	} {
		p := clientStart()
		change(&p.Tools[len(p.Tools)-1])
		newScene(t).refuses(p, says)
	}
}

func clientStart() *events.Start {
	p := reducertest.StartOf("x", events.ModeTask)
	withClient(p)
	return p
}

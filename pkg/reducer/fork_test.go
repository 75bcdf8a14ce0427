package reducer_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// work is what a run wants, without whose delivery it is and what was tried.
func work(r *reducertest.Run, mem *reducer.Memory) map[string]bool {
	wanted := map[string]bool{}
	for _, e := range effects.Of(r.Machine.Table(), mem) {
		kind := string(e.Kind)
		if e.Kind == effects.KindDispatch || e.CallID != "" {
			kind = "call" // that was dispatched or has to be
		}
		wanted[kind+"/"+e.CallID] = true
	}
	return wanted
}

// drawRun leads a random run through some events.
func drawRun(t *rapid.T, r *reducertest.Run, most int) {
	for range rapid.IntRange(1, most).Draw(t, "length") {
		next := reducertest.Next(t, r)
		if next.Payload == nil {
			return
		}
		_, _, err := r.Append(next.Origin, next.Payload)
		require.NoError(t, err)
	}
}

// drawFork forks a run somewhere, and requires what holds of any fork.
func drawFork(t *rapid.T, r *reducertest.Run) *reducertest.Run {
	at := rapid.Uint64Range(1, uint64(len(r.Records))).Draw(t, "at")
	parent := r.At(at)
	before := reducertest.Canonical(parent)
	fork, err := r.Fork(at, events.Forked{})
	if r.Machine.Table().Terminal(parent.State) {
		require.Error(t, err)
		return nil
	}
	require.NoError(t, err)
	mem := fork.Mem
	require.Equal(t, before, reducertest.Canonical(parent), "the parent is as it was")
	require.Equal(t, uint64(1), mem.N)
	require.Equal(t, parent.State, mem.State)
	require.Equal(t, work(r, parent), work(fork, mem), "it wants the same work")
	require.Equal(t, reducer.View(nil, parent), reducer.View(nil, mem), "its model sees the same")
	require.Equal(t, parent.TotalUsage, mem.TotalUsage)
	require.Equal(t, parent.Control.Replies, mem.Control.Replies)
	require.Zero(t, mem.Control.SinceUser)
	require.Len(t, mem.Trace, len(parent.Trace)+1)
	checkForkWakes(t, fork)
	return fork
}

// checkForkWakes requires that all work is driven by the fork's first event, and
// that the event goes to whoever does it.
func checkForkWakes(t *rapid.T, fork *reducertest.Run) {
	s, err := events.ParseSubject(fork.Records[0].Subject)
	require.NoError(t, err)
	require.Equal(t, events.Idle, s.From)
	require.True(t, slices.ContainsFunc(edges(), func(e reducer.Edge) bool {
		return e.From == s.From && e.To == s.To && (e.Pool == s.Pool || e.Pool == events.Wildcard)
	}), "%s is no edge", s)
	for _, e := range fork.Effects() {
		require.False(t, e.Held)
		require.Zero(t, e.Started)
		if e.Kind == effects.KindEnd || e.Kind == effects.KindTool && s.To == events.Planning {
			continue // anyone's, or to be dispatched first
		}
		require.Equal(t, uint64(1), e.Wake, "%s in %s", e.Kind, fork.Mem.State)
		require.Equal(t, e.State, s.To)
		if e.Kind == effects.KindTool && e.CallID != "" {
			require.Equal(t, fork.Mem.Call(e.CallID).Pool, s.Pool)
		}
	}
	for _, a := range fork.Mem.Control.Calls {
		require.LessOrEqual(t, a.Wake, uint64(1))
		require.Zero(t, a.Dispatched)
	}
}

// TestRandomForks forks random runs, and their forks, and carries them on.
func TestRandomForks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := reducertest.NewRun(nil)
		drawRun(t, r, 40)
		for range rapid.IntRange(1, 3).Draw(t, "forks") {
			fork := drawFork(t, r)
			if fork == nil {
				return
			}
			for range rapid.IntRange(0, 12).Draw(t, "length") {
				next := reducertest.Next(t, fork)
				if next.Payload == nil {
					break
				}
				before := fork.Mem.Clone()
				subject, e, err := fork.Append(next.Origin, next.Payload)
				require.NoError(t, err, "%s in %s", events.TypeOf(next.Payload), before.State)
				checkEdge(t, before, subject, e.Data)
				checkView(t, fork.Mem)
				checkEffects(t, fork, before, e)
			}
			want := reducertest.Canonical(fork.Fold())
			require.Equal(t, want, reducertest.Canonical(fork.Fold()), "folding twice agrees")
			require.Equal(t, want, reducertest.Canonical(fork.Mem), "the writer's memory is the reader's")
			require.Equal(t, want, reducertest.Canonical(fork.Mem.Clone()), "a snapshot loses nothing")
			r = fork
		}
	})
}

// begun is a run of a few events, in Acting.
func begun(t *testing.T) *reducertest.Run {
	t.Helper()
	r := reducertest.NewRun(nil)
	for _, next := range []reducertest.Event{
		{Origin: events.Idle, Payload: reducertest.StartOf("count", events.ModeTask)},
		{Origin: events.Planning, Payload: &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
			Calls: []events.Call{{ID: "c1", Name: "beta", Arguments: "{}"}}, Usage: events.Usage{Total: 7}}}},
		{Origin: events.Acting, Payload: &events.ToolCallStarted{CallID: "c1"}},
	} {
		_, _, err := r.Append(next.Origin, next.Payload)
		require.NoError(t, err)
	}
	return r
}

func TestForkBeginsItsOwnTimeAndKeepsWhatWasUsed(t *testing.T) {
	r := begun(t)
	f, err := r.Fork(3, events.Forked{})
	require.NoError(t, err)
	require.True(t, f.Mem.Started.After(r.Mem.Updated))
	require.Equal(t, f.Mem.Started, f.Mem.Updated)
	require.Equal(t, 7, f.Mem.TotalUsage.Total)
	require.Equal(t, &reducer.Origin{Run: r.ID.ID, At: 3, Depth: 1}, f.Mem.Control.ForkedFrom)
	require.Equal(t, "forked from "+r.ID.ID+" at 3", f.Mem.Trace[3].Data)
	wants := f.Effects()
	require.Len(t, wants, 1)
	require.Equal(t, "tool/1/c1", wants[0].Key, "the call that had begun begins again")
	require.Zero(t, wants[0].Started)
	s, err := events.ParseSubject(f.Records[0].Subject)
	require.NoError(t, err)
	require.Equal(t, []any{events.Acting, "web"}, []any{s.To, s.Pool})
}

func TestForkPinsWhatWasPatched(t *testing.T) {
	r := begun(t)
	agent := reducertest.StartOf("", events.ModeChat).Agent
	agent.SystemPrompt, agent.Config.MaxSteps, agent.Config.ContextWindowSize = "You are terse.", 3, 4
	agent.Blacklist = []string{"alpha"}
	moved := reducertest.Tools()[1]
	moved.Pool, moved.Effect = "elsewhere", "pure"
	f, err := r.Fork(3, events.Forked{
		Patch: json.RawMessage(`{"x":1}`), Task: "recount", TaskType: "hard", Mode: events.ModeChat,
		Agent: &agent, AgentHash: "other", Tools: []events.ToolSpec{moved},
	})
	require.NoError(t, err)
	mem := f.Mem
	require.Equal(t, []any{"recount", "hard", events.ModeChat, "You are terse.", 3, "other"},
		[]any{mem.Task, mem.TaskType, mem.Mode, mem.SystemPrompt, mem.Config.MaxSteps, mem.Control.AgentHash})
	require.Equal(t, []string{"alpha"}, mem.Blacklist)
	require.Equal(t, 4, mem.ReactContext.ContextWindowSize)
	view := reducer.View(nil, mem)
	require.Equal(t, "You are terse.", view[0].Content)
	require.Equal(t, "recount", view[1].Content, "the task is the first message")
	require.Equal(t, "recount", mem.Messages[0].Content)
	require.Equal(t, "count", r.Fold().Messages[0].Content, "the parent keeps its own")
	require.Len(t, mem.Tools, 1)
	require.Equal(t, []string{"elsewhere", "pure"}, []string{mem.Call("c1").Pool, mem.Call("c1").Effect})
	s, err := events.ParseSubject(f.Records[0].Subject)
	require.NoError(t, err)
	require.Equal(t, "elsewhere", s.Pool, "it is routed to where its tool lives")
	require.Equal(t, reducertest.Canonical(f.Fold()), reducertest.Canonical(mem))
}

func TestForkNeedsItsParent(t *testing.T) {
	r := begun(t)
	f, err := r.Fork(2, events.Forked{})
	require.NoError(t, err)
	mem := f.Machine.Initial(f.ID.ID)
	_, err = f.Machine.Apply(mem, f.Records[0].Subject, f.Records[0].Body)
	var parent *reducer.ParentError
	require.ErrorAs(t, err, &parent)
	require.Equal(t, reducer.ParentError{Run: r.ID.ID, At: 2, Hash: events.Hash(r.Records[1].Body)}, *parent)
	require.Contains(t, err.Error(), r.ID.ID)
	require.Zero(t, mem.N, "nothing was folded")
	mem.Adopt(r.At(3))
	_, err = f.Machine.Apply(mem, f.Records[0].Subject, f.Records[0].Body)
	require.ErrorAs(t, err, &parent, "another memory than the one it needs")
	mem.Adopt(r.At(2))
	_, err = f.Machine.Apply(mem, f.Records[0].Subject, f.Records[0].Body)
	require.NoError(t, err)
	require.Equal(t, reducertest.Canonical(f.Mem), reducertest.Canonical(mem))
}

func TestIllegalForks(t *testing.T) {
	r := begun(t)
	ended := begun(t)
	_, _, err := ended.Append(events.Control, &events.CancelledRun{})
	require.NoError(t, err)
	poisoned := begun(t)
	require.Error(t, poisoned.Store(events.Subject{Run: poisoned.ID, From: events.Acting, To: events.Observing, Pool: "web"}.String(), []byte("{}")))
	deep := begun(t)
	deep.Mem.Control.ForkedFrom = &reducer.Origin{Run: r.ID.ID, At: 1, Depth: reducer.MaxForks}
	const other = "01932c07-0000-7000-9000-000000000001"
	good := events.Forked{Run: r.ID.ID, At: 3, Hash: r.Mem.Control.Head}
	for name, c := range map[string]struct {
		parent *reducer.Memory
		change func(*events.Forked)
		reason string
	}{
		"no parent":    {r.Mem, func(p *events.Forked) { p.Run = "" }, "does not name"},
		"no event":     {r.Mem, func(p *events.Forked) { p.At = 0 }, "does not name"},
		"no hash":      {r.Mem, func(p *events.Forked) { p.Hash = "" }, "does not name"},
		"itself":       {r.Mem, func(p *events.Forked) { p.Run = other }, "from itself"},
		"mode":         {r.Mem, func(p *events.Forked) { p.Mode = "talk" }, "neither task nor chat"},
		"another hash": {r.Mem, func(p *events.Forked) { p.Hash = "feed" }, "the hashes differ"},
		"ended":        {ended.Mem, func(p *events.Forked) { p.Run, p.At, p.Hash = ended.ID.ID, 4, ended.Mem.Control.Head }, "which has ended in cancelled"},
		"poisoned":     {poisoned.Mem, func(p *events.Forked) { p.Run, p.At, p.Hash = poisoned.ID.ID, 4, poisoned.Mem.Control.Head }, "poisoned at event 4"},
		"too deep":     {deep.Mem, func(p *events.Forked) { p.Run, p.Hash = deep.ID.ID, deep.Mem.Control.Head }, "100 forks"},
		"disowned":     {nil, func(*events.Forked) {}, "no parent of mine"},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			c.change(&p)
			run := events.NewRun(events.DefaultNamespace, other, 1)
			mem := r.Machine.Initial(run.ID)
			if c.parent != nil {
				mem.Adopt(c.parent.Clone())
			} else {
				mem.Disown("no parent of mine")
			}
			e := &events.Event{
				ID: r.NewID(), Source: "moorebus/test/1", Run: run.ID, Time: time.Unix(1, 0).UTC(), N: 1,
				From: events.Idle, To: events.Acting, Data: &p,
			}
			if c.parent != nil {
				e.To = c.parent.State
			}
			body, err := r.Machine.Codec().Encode(e)
			require.NoError(t, err)
			_, err = r.Machine.Apply(mem, events.Subject{Run: run, From: events.Idle, To: events.Acting, Pool: "web"}.String(), body)
			var illegal *reducer.IllegalError
			require.ErrorAs(t, err, &illegal)
			require.Contains(t, illegal.Reason, c.reason)
			require.Equal(t, events.Idle, mem.State)
			require.Equal(t, uint64(1), mem.Control.Poison.N)
		})
	}
}

func TestForkIsOnlyAFirstEvent(t *testing.T) {
	r := begun(t)
	_, _, err := r.Append(events.Idle, &events.Forked{Run: r.ID.ID, At: 1, Hash: "h"})
	var transition *reducer.TransitionError
	require.ErrorAs(t, err, &transition)
}

func TestForkHasNoRow(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Rows = append(spec.Rows, reducer.Row{From: events.Idle, Event: events.TypeForked, To: events.Planning})
	_, err := reducer.NewTable(spec)
	require.ErrorContains(t, err, "has no row")
	require.Equal(t, []events.State{
		events.Acting, events.Observing, events.Paging, events.ParallelActing, events.Planning, events.Reflecting,
		events.WaitingForHuman, events.WaitingForUser,
	}, reducer.Forks(reducer.DefaultTable()))
}

// asking is a run that waits for a human, for as long as its agent says.
func asking(t *testing.T, expires time.Duration) *reducertest.Run {
	t.Helper()
	r := reducertest.NewRun(nil)
	start := reducertest.StartOf("x", events.ModeTask)
	start.Agent.Approval = &events.Approval{Expires: events.Duration(expires)}
	_, _, err := r.Append(events.Idle, start)
	require.NoError(t, err)
	_, _, err = r.Append(events.Planning, &events.HumanApprovalRequired{
		ToolCallReply: events.ToolCallReply{Calls: []events.Call{{ID: "a", Name: "alpha", Arguments: "{}"}}},
		Requests:      []events.Request{{CallID: "a", Tool: "alpha", Arguments: "{}"}}, Deadline: "2001-02-03T04:05:06Z",
	})
	require.NoError(t, err)
	return r
}

// A fork gives as much time for an approval as its agent says, from when it begins:
// the parent's may be over.
func TestForkOfAWaitingApproval(t *testing.T) {
	fork, err := asking(t, time.Hour).Fork(2, events.Forked{})
	require.NoError(t, err)
	require.Equal(t, fork.Mem.Started.Add(time.Hour).Format(events.TimeFormat), fork.Mem.PendingApproval.Deadline)

	fork, err = asking(t, 0).Fork(2, events.Forked{})
	require.NoError(t, err)
	require.Empty(t, fork.Mem.PendingApproval.Deadline)

	agent := events.DefaultAgent()
	agent.Approval = &events.Approval{Expires: events.Duration(time.Minute)}
	fork, err = asking(t, time.Hour).Fork(2, events.Forked{Agent: &agent})
	require.NoError(t, err)
	require.Equal(t, fork.Mem.Started.Add(time.Minute).Format(events.TimeFormat), fork.Mem.PendingApproval.Deadline, "as it was patched")
}

// What went over the safety cap goes on in its fork, which has a cap of its own.
func TestForkBeginsATurn(t *testing.T) {
	r := reducertest.NewRun(nil)
	start := reducertest.StartOf("x", events.ModeTask)
	start.Agent.Config.MaxSteps = 1
	_, _, err := r.Append(events.Idle, start)
	require.NoError(t, err)
	wantsEnd := func(r *reducertest.Run) bool { return r.Effects()[0].Kind == effects.KindEnd }
	for i := 0; !wantsEnd(r); i++ {
		call := events.Call{ID: strconv.Itoa(i), Name: "alpha", Arguments: "{}"}
		reply := events.ToolCallReply{Calls: []events.Call{call}}
		for _, e := range []struct {
			origin  events.State
			payload events.Payload
		}{
			{events.Planning, &events.LLMToolCall{ToolCallReply: reply}},
			{events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: call.ID, Success: true, Observation: "SUCCESS: x"}}},
			{events.Observing, &events.Continue{}},
		} {
			if !wantsEnd(r) {
				_, _, err = r.Append(e.origin, e.payload)
				require.NoError(t, err)
			}
		}
	}
	fork, err := r.Fork(uint64(len(r.Records)), events.Forked{})
	require.NoError(t, err)
	require.False(t, wantsEnd(fork))
}

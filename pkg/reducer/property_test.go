package reducer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// tally is a deliberately dumb oracle: it adds up what the events say.
type tally struct {
	usage   reducer.TotalUsage
	replies int
	// internal counts the calls of Moorebus' own tools.
	internal int
	results  map[string]int
}

func (o *tally) add(e *events.Event, queued bool) {
	data, _ := json.Marshal(e.Data)
	var p struct {
		Usage *events.Usage `json:"usage"`
		Kind  string        `json:"kind"`
		Part  bool          `json:"part"`
		Calls []events.Call `json:"calls"`
	}
	_ = json.Unmarshal(data, &p)
	if p.Usage != nil {
		o.usage.Input += p.Usage.Input
		o.usage.Output += p.Usage.Output
		o.usage.Total += p.Usage.Total
		if p.Usage.CostUSD != nil {
			o.usage.Cost += *p.Usage.CostUSD
		}
	}
	reply := e.From == events.Planning && !queued && slices.Contains(strings.Fields(`LlmToolCall LlmParallelToolCalls LlmFinalAnswer
		LlmMessageComplete LlmThought LowConfidence AnswerTooShort ToolBlacklisted ReplyInvalid HumanApprovalRequired`), string(e.Type()))
	edit := (e.Type() == events.TypeContextWindowExpanded || e.Type() == events.TypeToolCallsAddedToContext) && len(p.Calls) > 0
	if edit {
		o.internal += len(p.Calls)
		reply = !p.Part
	}
	failed := e.From == events.Planning && e.Type() == events.TypeLLMAttemptFailed &&
		!slices.Contains([]string{"handler", "worker_lost", "interrupted"}, p.Kind)
	if reply || failed {
		o.replies++
	}
	if r, ok := e.Data.(*events.ToolCallResult); ok {
		o.results[r.CallID]++
	}
}

// TestRandomRuns leads random runs through random legal events and requires
// after each what SPEC section 3 and 4 promise of any run.
func TestRandomRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := reducertest.NewRun(nil)
		o := &tally{results: map[string]int{}}
		var snapshot *reducertest.Run
		var asked request
		for i := range rapid.IntRange(1, 60).Draw(t, "length") {
			next := reducertest.Next(t, r)
			if next.Payload == nil {
				break
			}
			tryIllegal(t, r, next)
			before := r.Mem.Clone()
			subject, e, err := r.Append(next.Origin, next.Payload)
			require.NoError(t, err, "%s in %s", events.TypeOf(next.Payload), before.State)
			o.add(e, len(before.Control.Queued) > len(r.Mem.Control.Queued))
			checkOwner(t, before, r.Mem, e)
			checkMemory(t, r, o)
			checkSubject(t, before, r.Mem, subject, e)
			checkEdge(t, before, subject, e.Data)
			require.NoError(t, reducer.CheckEdge(r.Machine.Table(), subject, e), "what is legal fits its subject")
			checkView(t, r.Mem)
			if rapid.Bool().Draw(t, "asked") {
				checkMessages(t, r.Mem, &asked)
			}
			checkEffects(t, r, before, e)
			if i == 10 {
				snapshot = r.Clone()
			} else if snapshot != nil {
				rec := r.Records[len(r.Records)-1]
				require.NoError(t, snapshot.Store(rec.Subject, rec.Body))
			}
		}
		want := reducertest.Canonical(r.Fold())
		require.Equal(t, want, reducertest.Canonical(r.Fold()), "folding twice agrees")
		require.Equal(t, want, reducertest.Canonical(r.Mem), "the writer's memory is the reader's")
		require.Equal(t, want, reducertest.Canonical(r.Mem.Clone()), "a snapshot loses nothing")
		if snapshot != nil {
			require.Equal(t, want, reducertest.Canonical(snapshot.Mem), "folding through a snapshot agrees")
		}
	})
}

func checkMemory(t *rapid.T, r *reducertest.Run, o *tally) {
	mem, c := r.Mem, &r.Mem.Control
	last := r.Records[len(r.Records)-1]
	require.Equal(t, uint64(len(r.Records)), mem.N)
	require.Equal(t, events.Hash(last.Body), c.Head)
	require.Len(t, mem.Trace, r.Applied)
	require.InDelta(t, o.usage.Cost, mem.TotalUsage.Cost, 1e-9)
	o.usage.Cost = mem.TotalUsage.Cost
	require.Equal(t, o.usage, mem.TotalUsage)
	require.Equal(t, o.replies, c.Replies)
	require.Len(t, mem.ToolCalls, len(c.CallOrder)-o.internal)
	for id, n := range o.results {
		require.Equal(t, 1, n, "call %s has %d results", id, n)
	}
	ids := map[string]bool{}
	for _, m := range mem.Messages {
		require.False(t, ids[m.ID], "message %s is there twice", m.ID)
		ids[m.ID] = true
		require.Contains(t, []string{"user", "assistant"}, m.Role)
	}
	require.LessOrEqual(t, len(mem.ThinkingLog), mem.Config.ThinkingLogEntries)
	require.GreaterOrEqual(t, mem.Step, c.SinceUser.Steps)
	terminal := r.Machine.Table().Terminal(mem.State)
	acting := mem.State == events.Acting || mem.State == events.ParallelActing || mem.State == events.WaitingForHuman
	switch {
	case terminal:
		require.Equal(t, mem.State == events.Errored, mem.Error != nil)
		require.Nil(t, mem.ReactContext)
	case acting:
		require.Equal(t, c.Batch, mem.CurrentToolCall == nil)
		require.Equal(t, c.Batch, len(mem.PendingToolCalls) > 0)
		require.Nil(t, mem.LastObservation)
	case mem.State == events.Observing:
		require.Equal(t, c.Batch, mem.LastObservation == nil)
		require.Len(t, mem.ParallelResults, len(mem.PendingToolCalls))
	default:
		require.Nil(t, mem.CurrentToolCall)
		require.Nil(t, mem.LastObservation)
		require.Empty(t, mem.PendingToolCalls)
		require.Empty(t, mem.ParallelResults)
	}
	if !terminal {
		require.Equal(t, mem.State == events.WaitingForHuman, mem.PendingApproval != nil)
		require.Equal(t, mem.State == events.WaitingForUser, mem.ReactContext == nil)
		require.Nil(t, mem.Error)
	}
	for id, record := range mem.ToolCalls {
		if record.Result == nil && !terminal {
			open := mem.Call(id) != nil || slices.ContainsFunc(c.Queued, func(q events.Call) bool { return q.ID == id })
			require.True(t, open, "call %s was forgotten", id)
		}
	}
}

func checkSubject(t *rapid.T, before, mem *reducer.Memory, s events.Subject, e *events.Event) {
	require.Equal(t, mem.Step, e.Step)
	require.Equal(t, before.State, e.From)
	require.Equal(t, mem.State, e.To)
	require.Equal(t, before.Control.Head, e.Prev)
	_, err := events.ParseSubject(s.String())
	require.NoError(t, err)
	if slices.Contains(terminalStates, e.To) {
		require.Equal(t, e.To, s.To)
		require.Equal(t, before.Control.Parent != nil, s.Pool == events.AgentsPool)
	}
}

// request is what a model was sent, with a copy of it.
type request struct{ messages, wantMessages, results, wantResults []string }

// checkMessages requires that what is kept for the next request is what [reducer.View] shows
// of the run, and that the last request has stayed as it was.
func checkMessages(t *rapid.T, mem *reducer.Memory, last *request) {
	text := func(m *reducer.ViewMessage) string { return fmt.Sprintf("%+v", *m) }
	var r request
	view := reducer.View(nil, mem)
	for i := range view {
		r.wantMessages = append(r.wantMessages, text(&view[i]))
	}
	for _, id := range mem.Control.CallOrder {
		if record := mem.ToolCalls[id]; record != nil && record.Result != nil {
			r.wantResults = append(r.wantResults, record.Result.Text())
		}
	}
	r.messages, r.results = reducer.Messages(mem, text), mem.Results()
	for _, r := range []*request{&r, last} {
		require.True(t, slices.Equal(r.wantMessages, r.messages), "%q, want %q", r.messages, r.wantMessages)
		require.True(t, slices.Equal(r.wantResults, r.results), "%q, want %q", r.results, r.wantResults)
	}
	*last = r
}

// checkView requires that every call is answered, right behind it, and that
// every result has its call.
func checkView(t *rapid.T, mem *reducer.Memory) {
	var open []string
	seen := map[string]int{}
	for i, m := range reducer.View(nil, mem) {
		switch m.Role {
		case "tool":
			require.NotEmpty(t, open, "a result without its call")
			require.Equal(t, open[0], m.CallID)
			open = open[1:]
		case "system":
			require.Zero(t, i)
		default:
			require.Empty(t, open, "a call without its result")
			for _, c := range m.Calls {
				open = append(open, c.ID)
				seen[fmt.Sprintf("%p", mem.ToolCalls[c.ID])+c.ID]++
			}
			require.False(t, m.Role == "assistant" && m.Content == "" && len(m.Calls) == 0)
		}
	}
	require.Empty(t, open)
}

func checkEffects(t *rapid.T, r *reducertest.Run, before *reducer.Memory, e *events.Event) {
	table := r.Machine.Table()
	was, now := effects.Of(table, before), r.Effects()
	require.Equal(t, now, r.Effects())
	require.Equal(t, now, effects.Of(table, r.Mem.Clone()))
	keys := map[string]bool{}
	for _, effect := range now {
		require.False(t, keys[effect.Key], "key %s twice", effect.Key)
		keys[effect.Key] = true
		if effect.State != "" && effect.Kind != effects.KindDispatch {
			require.Equal(t, r.Mem.State, effect.State)
		}
		require.LessOrEqual(t, effect.Wake, r.Mem.N)
		require.NotZero(t, effect.Wake+uint64(len(effect.State)))
		if effect.Started > 0 {
			require.False(t, effect.Held, "what was started is concluded")
		}
	}
	if table.Terminal(r.Mem.State) {
		require.Empty(t, now)
		return
	}
	// Nothing hangs: a state that has work wants something.
	if r.Mem.State != events.WaitingForHuman && r.Mem.State != events.WaitingForUser {
		require.NotEmpty(t, now, "%s wants nothing after %s", r.Mem.State, e.Type())
	}
	switch e.Data.(type) {
	case *events.LLMAttemptFailed, *events.Paused, *events.BudgetRaised, *events.WorkingMemoryAdded, *events.StorageSaved:
		for i, effect := range was {
			require.Equal(t, effect.Key, now[i].Key, "%s changed a key", e.Type())
		}
	case *events.ToolCallStarted:
		for _, effect := range was {
			require.True(t, keys[effect.Key] || effect.Kind == effects.KindDispatch, "a started call lost its key")
		}
	case *events.Resumed:
		for _, effect := range was {
			require.True(t, keys[effect.Key] || effect.Kind == effects.KindDispatch, "a re-drive changed a key")
		}
	}
}

// tryIllegal stores what comes next with one thing wrong, on a copy of the run.
func tryIllegal(t *rapid.T, r *reducertest.Run, next reducertest.Event) {
	s, e, _, err := r.Draft(next.Origin, next.Payload)
	require.NoError(t, err)
	const other = "01932c07-0000-7000-9000-000000000001"
	switch rapid.IntRange(0, 9).Draw(t, "what is wrong") {
	case 0:
		e.N++
	case 1:
		e.N--
	case 2:
		e.Prev = events.Hash([]byte("other"))
	case 3:
		e.From = wrongState(t, e.From)
	case 4:
		e.To = wrongState(t, e.To)
	case 5:
		e.Run = other
	case 6:
		s.Run.ID = other
	case 7:
		wrong := wrongState(t, s.From)
		if slices.Contains(reducer.Origins(r.Machine.Table(), r.Mem, e.Data), wrong) {
			return
		}
		s.From = wrong
	case 8:
		if r.Mem.N > 0 && r.Mem.Control.LastID == "" {
			return
		}
		if e.Cause == "" {
			e.Cause = other
		} else {
			e.Cause = ""
		}
	case 9:
		e.Data = &events.Forked{}
	}
	body, err := r.Machine.Codec().Encode(e)
	require.NoError(t, err)
	if e.N == 0 {
		return
	}
	c := r.Clone()
	poisonBy(t, c, s.String(), body)
}

func wrongState(t *rapid.T, not events.State) events.State {
	return rapid.SampledFrom(slices.DeleteFunc(append([]events.State{events.Control}, allStates...),
		func(s events.State) bool { return s == not })).Draw(t, "wrong state")
}

// poisonBy stores an illegal record and requires what CONTRACT 7 says of it.
func poisonBy(t require.TestingT, r *reducertest.Run, subject string, body []byte) {
	before, poisoned := fields(t, r.Mem), r.Mem.Control.Poison != nil
	terminal := r.Machine.Table().Terminal(r.Mem.State)
	n := r.Mem.N
	err := r.Store(subject, body)
	var illegal *reducer.IllegalError
	require.ErrorAs(t, err, &illegal, "an illegal event was accepted: %s %s", subject, body)
	require.Equal(t, n+1, illegal.N)
	require.NotEmpty(t, illegal.Reason)
	require.NotEmpty(t, illegal.Error())
	require.Equal(t, n+1, r.Mem.N, "it counts in n")
	require.Equal(t, events.Hash(body), r.Mem.Control.Head, "its bytes count in prev")
	after := fields(t, r.Mem)
	delete(before, "n")
	delete(after, "n")
	delete(before, "control")
	delete(after, "control")
	require.Equal(t, before, after, "nothing else changes")
	if terminal {
		require.Nil(t, r.Mem.Control.Poison)
		require.Empty(t, r.Effects())
		return
	}
	if !poisoned {
		require.Equal(t, n+1, r.Mem.Control.Poison.N)
	}
	require.Len(t, r.Effects(), 1)
	require.Equal(t, effects.KindEnd, r.Effects()[0].Kind)
}

// TestRandomPoison injects a bad record somewhere and ends the run.
func TestRandomPoison(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := reducertest.NewRun(nil)
		for range rapid.IntRange(0, 25).Draw(t, "length") {
			if next := reducertest.Next(t, r); next.Payload != nil {
				_, _, err := r.Append(next.Origin, next.Payload)
				require.NoError(t, err)
			}
		}
		for range rapid.IntRange(1, 3).Draw(t, "bad records") {
			subject := events.Subject{Run: r.ID, From: r.Mem.State, To: events.Planning, Pool: "default"}.String()
			poisonBy(t, r, subject, []byte(rapid.SampledFrom([]string{"", "not JSON", "{}", `{"type":"Nope"}`, "\xff"}).Draw(t, "body")))
		}
		for r.Mem.Control.Poison != nil {
			next := reducertest.Next(t, r)
			if next.Payload == nil {
				break
			}
			_, _, err := r.Append(next.Origin, next.Payload)
			require.NoError(t, err)
		}
		require.True(t, r.Machine.Table().Terminal(r.Mem.State))
		require.Equal(t, reducertest.Canonical(r.Fold()), reducertest.Canonical(r.Mem))
	})
}

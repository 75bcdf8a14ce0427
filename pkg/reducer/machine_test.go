package reducer_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// reviewed is a machine with a state, events, rows, a terminal state and a fold
// of an application's own.
func reviewed(t *testing.T) *reducer.Machine {
	t.Helper()
	spec := reducer.DefaultTable().Spec()
	spec.Terminal = append(spec.Terminal, "archived")
	spec.Stay = append(spec.Stay, "NoteTaken")
	spec.Rows = append(spec.Rows,
		reducer.Row{From: events.Planning, Event: "ReviewNeeded", To: "reviewing"},
		reducer.Row{From: "reviewing", Event: "Reviewed", To: events.Planning},
		reducer.Row{From: "reviewing", Event: "Archived", To: "archived"})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	codec, err := events.NewCodec(events.TypeSpec{Type: "ReviewNeeded"}, events.TypeSpec{Type: "Reviewed"}, events.TypeSpec{Type: "Archived"}, events.TypeSpec{Type: "NoteTaken"})
	require.NoError(t, err)
	return reducer.NewMachine(reducer.MachineOptions{Table: table, Codec: codec, Folds: map[events.Type]reducer.Fold{
		"ReviewNeeded": func(mem *reducer.Memory, e *events.Event) {
			mem.Custom = map[string]json.RawMessage{"review": e.Data.(*events.Custom).Data}
		},
	}})
}

func custom(name events.Type, data string) *events.Custom {
	return &events.Custom{Name: name, Data: json.RawMessage(data)}
}

func TestCustomGraph(t *testing.T) {
	s := &scene{Run: reducertest.NewRun(reviewed(t)), t: t}
	s.do(reducertest.StartOf("x", events.ModeTask), custom("NoteTaken", `{}`))
	require.Equal(t, "reviewing.default", s.route(custom("ReviewNeeded", `{"by":"ann"}`)))
	require.Equal(t, events.State("reviewing"), s.Mem.State)
	require.JSONEq(t, `{"by":"ann"}`, string(s.Mem.Custom["review"]))
	wants := s.Effects()
	require.Len(t, wants, 1)
	require.Equal(t, effects.KindState, wants[0].Kind)
	require.Equal(t, "state/3", wants[0].Key)
	require.Equal(t, events.State("reviewing"), wants[0].State)
	require.Equal(t, uint64(3), wants[0].Wake)
	s.do(&events.Paused{})
	require.True(t, s.Effects()[0].Held)
	require.Equal(t, "reviewing.default", s.route(&events.Resumed{}))
	s.refuses(single("a", "alpha"), "not in the transition table")
	_, _, _, err := s.Draft(events.Planning, custom("Reviewed", `{}`))
	require.ErrorContains(t, err, "may not come from planning")
	s.do(custom("Reviewed", `{}`), custom("ReviewNeeded", `{}`), custom("Archived", `{}`))
	require.Empty(t, s.Effects())
	require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem))
	require.Equal(t, reducertest.Canonical(s.Mem), reducertest.Canonical(s.Mem.Clone()))

	plain := reducer.NewMachine(reducer.MachineOptions{})
	mem := plain.Initial(s.ID.ID)
	_, err = plain.Apply(mem, s.Records[0].Subject, s.Records[0].Body)
	var foreign *reducer.TableError
	require.ErrorAs(t, err, &foreign, "a graph that one does not have is named, never guessed")
	require.Equal(t, s.Machine.Table().Hash(), foreign.Table)
	require.Zero(t, mem.N, "nothing is folded")

	known := reducer.NewMachine(reducer.MachineOptions{Table: s.Machine.Table()})
	mem = known.Initial(s.ID.ID)
	_, err = known.Apply(mem, s.Records[0].Subject, s.Records[0].Body)
	require.NoError(t, err)
	_, err = known.Apply(mem, s.Records[1].Subject, s.Records[1].Body)
	require.ErrorContains(t, err, "NoteTaken", "an unknown type is named, never skipped")
}

// The same record leads from equal memories to equal ones, and a copy shares nothing with
// its original.
func TestApplyIsAFunction(t *testing.T) {
	s := in(t, events.Planning)
	before := reducertest.Canonical(s.Mem)
	subject, _, body, err := s.Draft(events.Planning, single("a", "alpha"))
	require.NoError(t, err)
	after := func(body []byte) *reducer.Memory {
		mem := s.Mem.Clone()
		_, _ = s.Machine.Apply(mem, subject.String(), body) // an illegal record is in the memory too
		return mem
	}
	next := after(body)
	require.Equal(t, events.Acting, next.State)
	require.Equal(t, before, reducertest.Canonical(s.Mem))
	require.Equal(t, reducertest.Canonical(next), reducertest.Canonical(after(body)))
	require.NotNil(t, after(nil).Control.Poison)
}

func TestDraft(t *testing.T) {
	s := in(t, events.Planning)
	at := time.Date(2026, 5, 6, 7, 8, 9, 10, time.FixedZone("", 3600))
	stamp := reducer.Stamp{ID: s.NewID(), Source: "moorebus/planner/1", Time: at, TraceParent: "00-x"}
	_, e, err := s.Machine.Draft(s.Mem, s.ID, events.Planning, single("a", "alpha"), stamp)
	require.NoError(t, err)
	require.Equal(t, s.Mem.Control.LastID, e.Cause, "the last event is the cause unless another is named")
	require.Equal(t, s.Mem.Control.Head, e.Prev)
	require.Equal(t, time.UTC, e.Time.Location())
	require.Equal(t, 1, e.Step)
	require.Equal(t, "00-x", e.TraceParent)
	stamp.Cause = "01932c07-0000-7000-9000-000000000001"
	_, e, err = s.Machine.Draft(s.Mem, s.ID, events.Planning, single("a", "alpha"), stamp)
	require.NoError(t, err)
	require.Equal(t, stamp.Cause, e.Cause)
	first := newScene(t)
	_, e, err = s.Machine.Draft(first.Mem, first.ID, events.Idle, reducertest.StartOf("x", events.ModeTask), stamp)
	require.NoError(t, err)
	require.Empty(t, e.Cause, "absent in the first")
	require.Empty(t, e.Prev)
}

func TestCloneSharesNothing(t *testing.T) {
	s := started(t).do(single("z", "alpha"), success("z", "1"), &events.Continue{}, threeBatch())
	before := reducertest.Canonical(s.Mem)
	c := s.Clone()
	for _, p := range []events.Payload{result("a~", false, ""), &events.ToolCallStarted{CallID: "b"}, result("d", true, "x"), user("m", "x"), &events.CancelledRun{}} {
		_, _, _ = c.Append(origin(c.Mem, p), p)
	}
	require.Equal(t, events.Cancelled, c.Mem.State)
	require.Equal(t, before, reducertest.Canonical(s.Mem))
}

func TestTrace(t *testing.T) {
	long := strings.Repeat("ü", 150)
	s := started(t).do(single("a", "alpha"), success("a", "line\none"), &events.Continue{}, finalAnswer(long))
	trace := s.Mem.Trace
	require.Len(t, trace, 5)
	require.Equal(t, strings.Repeat("ü", 100)+"…", trace[4].Data, "cut at 100 characters")
	require.Equal(t, `alpha({"n":1.0})`, trace[1].Data)
	require.Equal(t, "SUCCESS: line one", trace[2].Data)
	require.Len(t, trace.ForState(events.Planning), 2)
	require.Empty(t, trace.ForState(events.Paging))
	text, err := trace.JSON()
	require.NoError(t, err)
	var back reducer.Trace
	require.NoError(t, json.Unmarshal([]byte(text), &back))
	require.Equal(t, trace, back)
	text, err = reducer.Trace(nil).JSON()
	require.NoError(t, err)
	require.Equal(t, "[]", text)
	var table bytes.Buffer
	require.NoError(t, trace[:3].Print(&table))
	require.Equal(t, ""+
		"STEP  STATE     EVENT        DATA\n"+
		"0     idle      Start        find it\n"+
		"1     planning  LlmToolCall  alpha({\"n\":1.0})\n"+
		"1     acting    ToolSuccess  SUCCESS: line one\n", table.String())
}

// TestMemoryHasTheSpecificationsNames: the names of SPEC section 3 as JSON, and
// empty ones as empty lists, never null.
func TestMemoryHasTheSpecificationsNames(t *testing.T) {
	m := fields(t, started(t).Mem)
	for _, name := range strings.Fields(`task task_type system_prompt mode step retry_count confidence_score total_usage budget current_tool_call
		pending_tool_calls parallel_results last_observation pending_approval history final_answer error messages tools tool_calls
		react_context config blacklist trace working_memory thinking_log`) {
		require.Contains(t, m, name)
	}
	for _, name := range strings.Fields("pending_tool_calls parallel_results history working_memory thinking_log") {
		require.Equal(t, "[]", string(m[name]), name)
	}
	require.Equal(t, "{}", string(m["tool_calls"]))
	require.JSONEq(t, `{"input":0,"output":0,"cached":0,"total":0,"cost":0}`, string(m["total_usage"]))
}

package print

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func readRun(t *testing.T, r *reducertest.Run, n uint64) *Run {
	t.Helper()
	log := records(t, r)
	run, mem, err := ReadRun(context.Background(), runlog.NewFold(log, machine, r.ID), n, log.Read(context.Background(), r.ID, 0))
	require.NoError(t, err)
	require.Equal(t, run.N, mem.N)
	return run
}

func text(t *testing.T, r *Run, f Format) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Write(&b, f, false))
	return b.String()
}

func TestShow(t *testing.T) {
	r := done(t)
	got := text(t, readRun(t, r, 0), Text)
	require.Contains(t, got, "state    done\n")
	require.Contains(t, got, "agent    tester task\n")
	require.Contains(t, got, "task     Count the \\x1b[31mfiles\n")
	require.Contains(t, got, "events   5, step 2\n")
	require.Contains(t, got, "tokens   15 in, 5 out\n")
	require.Contains(t, got, "    3    +2.000s  acting → observing             ToolSuccess            42\n")
	require.True(t, strings.HasSuffix(got, "\nanswer\nThere are 42.\x1b]0;owned\x07\n"), "the answer is as it is: %s", got)

	past := readRun(t, r, 2)
	require.Equal(t, events.Acting, past.State)
	require.Len(t, past.Events, 2)
	require.Nil(t, past.Answer)
}

// What a run waits for, or ended with, stands below its events.
func TestShowEnd(t *testing.T) {
	waits := func(reply events.ToolCallReply, request events.Request) []events.Payload {
		return []events.Payload{&events.HumanApprovalRequired{ToolCallReply: reply, Requests: []events.Request{request}, Deadline: "2026-01-03T00:00:00Z"}}
	}
	for want, payloads := range map[string][]events.Payload{
		"waits for a human to approve or reject\n  c1 beta({}), risk high: above medium\n  until 2026-01-03T00:00:00Z\n": waits(call("c1", "beta", `{}`),
			events.Request{CallID: "c1", Tool: "beta", Arguments: `{}`, Risk: "high", Reason: "above medium"}),
		"\n  c1 beta asks: Which one? (answer it with `moorebus answer RUN c1 TEXT`)\n": waits(call("c1", "beta", `{"question":"Which\none?"}`),
			events.Request{CallID: "c1", Tool: "beta", Arguments: `{"question":"Which\none?"}`, Risk: "low", Reason: "Which\none?", Asks: true}),
		"\nanswer, incomplete: it was cut off\nHello y\n": {&events.LLMMessageComplete{MessageID: "m1", Reply: events.Reply{Content: "Hello y"}, Incomplete: true}},
		"\nanswer\nHello you.\n":                          {&events.LLMMessageComplete{MessageID: "m1", Reply: events.Reply{Content: "Hello you."}}},
		"\nerror\nauth: the key\nis refused\n":            {&events.FatalError{Outcome: events.Outcome{Code: "auth", Message: "the key\nis refused"}}},
	} {
		r := reducertest.NewRun(nil)
		fill(t, r, reducertest.Event{Origin: events.Idle, Payload: reducertest.StartOf("x", events.ModeChat)})
		for _, p := range payloads {
			fill(t, r, reducertest.Event{Origin: events.Planning, Payload: p})
		}
		require.Contains(t, text(t, readRun(t, r, 0), Text), strings.ReplaceAll(want, "RUN", r.ID.ID))
	}
}

func TestShowPoison(t *testing.T) {
	r := done(t)
	r.Records = r.Records[:3]
	r.Records[2].Body = []byte("no \x1b JSON")
	got := text(t, readRun(t, r, 0), Text)
	require.Contains(t, got, "    3  not a legal event: ")
	require.Contains(t, got, "\npoisoned\nevent 3 ")
	require.NotContains(t, got, "\x1b")
	var doc struct{ Events []Line }
	require.NoError(t, json.Unmarshal([]byte(text(t, readRun(t, r, 0), JSON)), &doc))
	require.Equal(t, `"no \u001b JSON"`, string(doc.Events[2].Event), "what is not JSON is a text")
	require.Contains(t, doc.Events[2].Illegal, "not")
}

func TestParentAndSubruns(t *testing.T) {
	parent := "01932c07-89a1-7cde-8f01-23456789abcd"
	mem := reducer.NewMachine(reducer.MachineOptions{}).Initial(parent)
	mem.Control.CallOrder = []string{"a", "b", "c"}
	mem.ToolCalls["a"] = &reducer.ToolCallRecord{Run: "x"}
	mem.ToolCalls["b"], mem.ToolCalls["c"] = &reducer.ToolCallRecord{}, &reducer.ToolCallRecord{}
	mem.Control.Calls = []reducer.CallState{{Call: events.Call{ID: "c"}, Pool: events.AgentsPool, Wake: 2, Started: 3}}
	mem.Control.Parent = &events.Parent{Run: "above", CallID: "z"}
	r := new(Run)
	r.fill(mem)
	require.Equal(t, []Child{{"x", "a"}, {runid.Child(parent, "c"), "c"}}, r.Children)
	var b bytes.Buffer
	r.writeSubruns(&b, Palette{})
	require.Contains(t, b.String(), "z of run above")
	require.Contains(t, b.String(), "a by run x")
	require.Contains(t, b.String(), "c by run "+runid.Child(parent, "c"))
}

package print

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func newTap(log journal.Log, out *buffer) *Tap {
	return &Tap{Log: log, Machine: machine, Out: out, Namespace: events.DefaultNamespace}
}

func TestTapRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log, out := done(t), simtest.New(simtest.Options{}), &buffer{}
		store(t, log, r, 1, 2)
		ended := make(chan RunEnd)
		go func() {
			tap := newTap(log, out)
			tap.JSON = true
			end, err := tap.Run(context.Background(), r.ID, 0)
			require.NoError(t, err)
			ended <- end
		}()
		synctest.Wait()
		require.Empty(t, out.String(), "what is stored already is not shown")
		store(t, log, r, 3, 5)
		require.Equal(t, RunEnd{Next: 6, State: events.Done, Ended: true, Lines: 3}, <-ended)
		n := uint64(3)
		for line := range strings.Lines(out.String()) {
			var got Line
			require.NoError(t, json.Unmarshal([]byte(line), &got))
			require.Equal(t, n, got.N)
			require.Equal(t, r.Records[n-1].Body, []byte(got.Event), "the stored body")
			n++
		}
	})
}

func TestTapChooses(t *testing.T) {
	r := done(t)
	log := records(t, r)
	log.Inject(0, r.Records[0].Subject, []byte("no JSON"))
	log.Inject(0, "moore.0.default.else", []byte("{}"))
	types := func(tap *Tap) (found []string) {
		out := &buffer{}
		tap.Out, tap.JSON, tap.Stored = out, true, true
		at, err := tap.All(context.Background(), make(logwalk.Position, 1))
		require.NoError(t, err)
		require.NotEmpty(t, at)
		for line := range strings.Lines(out.String()) {
			var e Line
			require.NoError(t, json.Unmarshal([]byte(line), &e))
			if e.Illegal != "" {
				e.Type = events.Type(e.Event)
			}
			found = append(found, string(e.Type))
		}
		return found
	}
	all := newTap(log, nil)
	require.Equal(t, []string{"Start", "LlmToolCall", "ToolSuccess", "Continue", "LlmFinalAnswer", `"no JSON"`}, types(all))
	acting := newTap(log, nil)
	acting.States = []events.State{events.Acting, events.Done}
	require.Equal(t, []string{"LlmToolCall", "LlmFinalAnswer"}, types(acting))
	typed := newTap(log, nil)
	typed.Types = []events.Type{events.TypeContinue}
	require.Equal(t, []string{"Continue"}, types(typed))
	typed.States = []events.State{events.Acting}
	require.Empty(t, types(typed), "both have to hold")
	elsewhere := newTap(log, nil)
	elsewhere.Namespace = "other"
	require.Empty(t, types(elsewhere))
}

func TestTapOfPoison(t *testing.T) {
	r := done(t)
	log := records(t, r)
	log.Inject(0, r.Records[0].Subject, []byte("no \x1b JSON"))
	out := &buffer{}
	tap := newTap(log, out)
	tap.Stored = true
	_, err := tap.All(context.Background(), make(logwalk.Position, 1))
	require.NoError(t, err)
	require.Contains(t, out.String(), r.ID.ID+"     -  not a legal event: ")
	require.NotContains(t, out.String(), "\x1b")
}

var errBroken = errors.New("broken pipe")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestTapEndsWithItsWriter(t *testing.T) {
	r := done(t)
	tap := &Tap{Log: records(t, r), Machine: machine, Out: brokenWriter{}, Namespace: events.DefaultNamespace}
	at, err := tap.All(context.Background(), make(logwalk.Position, 1))
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, logwalk.Position{0}, at, "what was not written is not behind it")
	_, err = tap.Run(context.Background(), r.ID, 1)
	require.ErrorIs(t, err, errBroken)
}

// A tap of outputs shows the model's words while they come, and none after the
// answer.
func TestTapOutputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log, out := done(t), simtest.New(simtest.Options{}), &buffer{}
		store(t, log, r, 1, 2)
		p := log.NewProcess()
		tap := newTap(p, out)
		tap.Outputs, tap.JSON, tap.Feed = true, true, p
		ended := make(chan error, 1)
		go func() {
			_, err := tap.Run(context.Background(), r.ID, 1)
			ended <- err
		}()
		synctest.Wait()
		require.NoError(t, p.PublishChunk(r.ID, []byte(`{"message_id":"w","offset":0,"text":"hello"}`)))
		synctest.Wait()
		require.Contains(t, out.String(), `"kind":"llm_token"`)
		store(t, log, r, 3, 5)
		require.NoError(t, <-ended)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Contains(t, lines[0], `"kind":"state_started"`)
		require.Contains(t, lines[len(lines)-1], `"kind":"final_answer"`)
	})
}

func TestOutputLines(t *testing.T) {
	for want, o := range map[string]runstream.Output{
		"state_started       planning":                                             runstream.StateStarted{State: events.Planning},
		"llm_token           hello there":                                          runstream.LLMToken{Text: "hello\nthere"},
		"reasoning_token     so":                                                   runstream.ReasoningToken{Text: "so"},
		"reasoned            reasoned 5 characters: so it":                         runstream.Reasoned{Text: "so\nit"},
		"reasoned            reasoned, in 2 parts that only the provider can read": runstream.Reasoned{Opaque: 2},
		"reasoned            reasoned 9 bytes, kept in results_planner under 0a":   runstream.Reasoned{Ref: &events.Ref{Bucket: "results_planner", Key: "0a", Size: 9}},
		"tool_call_delta     1 add {":                                              runstream.ToolCallDelta{Index: 1, Name: "add", Text: "{"},
		"tool_call_started   a add({})":                                            runstream.ToolCallStarted{CallID: "a", Name: "add", Arguments: "{}"},
		"tool_call_finished  a add: 3":                                             runstream.ToolCallFinished{CallID: "a", Name: "add", Observation: "3"},
		"action              Continue ":                                            runstream.Action{Event: "Continue"},
		"final_answer        three":                                                runstream.FinalAnswer{Content: "three"},
		"error               auth: no":                                             runstream.Error{Code: "auth", Message: "no"},
	} {
		require.Equal(t, want, OutputLine(o, false))
	}
}

// Tap prints the records of all shards, in the order of each run, and returns where it stopped.
func TestTapAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := simtest.New(simtest.Options{Shards: 3}), &buffer{}
		var runs []*reducertest.Run
		for range 6 {
			runs = append(runs, placed(t, log, len(runs)))
		}
		store(t, log, runs[0], 1, 2)
		from, err := logwalk.End(t.Context(), log)
		require.NoError(t, err)
		for i, r := range runs {
			store(t, log, r, 3-2*min(i, 1), 5)
		}
		ctx, stop := context.WithCancel(context.Background())
		reached := make(chan logwalk.Position)
		go func() {
			at, err := newTap(log, out).All(ctx, from)
			require.ErrorIs(t, err, context.Canceled)
			reached <- at
		}()
		synctest.Wait()
		stop()
		at := <-reached
		end, err := logwalk.End(t.Context(), log)
		require.NoError(t, err)
		require.Equal(t, end, at)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 3+5*5)
		byRun := map[string][]string{}
		for _, line := range lines {
			id, rest, _ := strings.Cut(line, " ")
			byRun[id] = append(byRun[id], rest)
		}
		require.Len(t, byRun, len(runs))
		require.Contains(t, byRun[runs[1].ID.ID][0], "Start", "in the order of the log")
		again, err := make(logwalk.Position, 3).Parse(at.String())
		require.NoError(t, err)
		require.Equal(t, at, again)
	})
}

// placed is the done run under another id, placed as the log wants it.
func placed(t *testing.T, log journal.Log, i int) *reducertest.Run {
	t.Helper()
	r := reducertest.NewRun(nil)
	r.ID = events.NewRun(events.DefaultNamespace, strings.Replace(r.ID.ID, "-8000-", "-8"+strings.Repeat(string(rune('0'+i)), 3)+"-", 1), log.Shards())
	r.Mem = machine.Initial(r.ID.ID)
	fill(t, r,
		reducertest.Event{Origin: events.Idle, Payload: reducertest.StartOf("x", events.ModeTask)},
		reducertest.Event{Origin: events.Planning, Payload: &events.LLMToolCall{ToolCallReply: call("c1", "alpha", `{}`)}},
		reducertest.Event{Origin: events.Acting, Payload: &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true}}},
		reducertest.Event{Origin: events.Observing, Payload: &events.Continue{}},
		reducertest.Event{Origin: events.Planning, Payload: answer("done")},
	)
	return r
}

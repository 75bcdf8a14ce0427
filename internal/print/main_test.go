package print

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var machine = reducer.NewMachine(reducer.MachineOptions{})

// fill appends events to a run, or stops the test.
func fill(t *testing.T, r *reducertest.Run, steps ...reducertest.Event) {
	t.Helper()
	for _, s := range steps {
		_, _, err := r.Append(s.Origin, s.Payload)
		require.NoError(t, err)
	}
}

func call(id, name, arguments string) events.ToolCallReply {
	return events.ToolCallReply{Calls: []events.Call{{ID: id, Name: name, Arguments: arguments}}, Confidence: 1, Usage: events.Usage{Input: 10, Output: 2, Total: 12}}
}

func answer(text string) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{MessageID: "m1", Reply: events.Reply{Content: text, Usage: events.Usage{Input: 5, Output: 3, Total: 8}}}
}

// done is a run with one tool call and an answer: six events.
func done(t *testing.T) *reducertest.Run {
	t.Helper()
	r := reducertest.NewRun(nil)
	fill(t, r,
		reducertest.Event{Origin: events.Idle, Payload: reducertest.StartOf("Count the\n\x1b[31mfiles", events.ModeTask)},
		reducertest.Event{Origin: events.Planning, Payload: &events.LLMToolCall{ToolCallReply: call("c1", "alpha", `{"a": 1}`)}},
		reducertest.Event{Origin: events.Acting, Payload: &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "42"}}},
		reducertest.Event{Origin: events.Observing, Payload: &events.Continue{}},
		reducertest.Event{Origin: events.Planning, Payload: answer("There are 42.\x1b]0;owned\x07")},
	)
	return r
}

// store puts a run's records from the n-th on into a log.
func store(t *testing.T, log journal.Log, r *reducertest.Run, from, to int) {
	t.Helper()
	last := uint64(0)
	if head, err := log.Head(context.Background(), r.ID); err == nil {
		last = head.Seq
	}
	for _, rec := range r.Records[from-1 : to] {
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		last, err = log.Append(context.Background(), r.ID, last, journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
	}
}

// records reads a run back out of a journal in memory.
func records(t *testing.T, r *reducertest.Run) *simtest.Journal {
	t.Helper()
	log := simtest.New(simtest.Options{})
	for _, rec := range r.Records {
		log.Inject(0, rec.Subject, rec.Body)
	}
	return log
}

// buffer is a writer that can be read while it is written.
type buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

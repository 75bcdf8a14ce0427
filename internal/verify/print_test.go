package verify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/bench/foldbench"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestPrintUntilWithState(t *testing.T) {
	log, run := goodLog(t), events.NewRun("default", runID(1), 1)
	var b bytes.Buffer
	require.NoError(t, runprint.Run(t.Context(), &b, log, machine(), run, runprint.Options{Until: 3, State: true}))
	text, state, found := strings.Cut(b.String(), "\n{")
	require.True(t, found)
	require.Len(t, strings.Split(text, "\n"), 3)
	var mem reducer.Memory
	require.NoError(t, json.Unmarshal([]byte("{"+state), &mem))
	require.Equal(t, events.Observing, mem.State)
	require.Equal(t, uint64(3), mem.N)

	err := runprint.Run(t.Context(), &b, log, machine(), run, runprint.Options{Until: 9})
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.ErrorContains(t, err, "the run has 5")
	err = runprint.Run(t.Context(), &b, log, machine(), events.NewRun("default", runID(2), 1), runprint.Options{})
	require.ErrorIs(t, err, journal.ErrNotFound)
}

func TestPrintJSON(t *testing.T) {
	r := newRecorder(t, 1)
	r.start("Search <b>", nil)
	r.append(r.subject(events.Planning, events.Acting), []byte("garbage"))
	r.end()
	var b bytes.Buffer
	require.NoError(t, runprint.Run(t.Context(), &b, logOf(t, r.records), machine(), r.run, runprint.Options{JSON: true, State: true}))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 4)
	var line print.Line
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &line))
	require.Equal(t, events.TypeStart, line.Type)
	require.Equal(t, events.Planning, line.To)
	require.Equal(t, string(r.records[0].Body), string(line.Event), "the body as it is stored")
	line = print.Line{}
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &line))
	require.NotEmpty(t, line.Illegal)
	require.Equal(t, `"garbage"`, string(line.Event), "what is not JSON is a text")
	require.Contains(t, lines[3], `{"memory":{`)
}

// clock is a clock that moves when somebody sleeps.
type clock struct {
	now   time.Time
	slept []time.Duration
}

func (c *clock) Now() time.Time { return c.now }

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	c.now = c.now.Add(d)
	c.slept = append(c.slept, d)
	return ctx.Err()
}

func TestPrintSpeed(t *testing.T) {
	log, run := goodLog(t), events.NewRun("default", runID(1), 1)
	c := &clock{now: time.Unix(0, 0)}
	var b bytes.Buffer
	require.NoError(t, runprint.Run(t.Context(), &b, log, machine(), run, runprint.Options{Speed: 2, Clock: c}))
	gap := 125 * time.Millisecond
	require.Equal(t, []time.Duration{gap, gap, gap, gap}, c.slept)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, runprint.WallClock{}.Sleep(ctx, time.Hour), context.Canceled)
	require.NoError(t, runprint.WallClock{}.Sleep(t.Context(), time.Nanosecond))
}

// notify tells of every line that was written.
type notify struct{ lines chan string }

func (n notify) Write(p []byte) (int, error) {
	n.lines <- strings.TrimSpace(string(p))
	return len(p), nil
}

func TestPrintFollow(t *testing.T) {
	r := newRecorder(t, 1)
	good(r)
	log := simtest.New(simtest.Options{})
	w := notify{make(chan string)}
	done := make(chan error, 1)
	go func() {
		done <- runprint.Run(t.Context(), w, log, machine(), r.run, runprint.Options{Follow: true})
	}()
	var last uint64
	for _, rec := range r.records {
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		last, err = log.Append(t.Context(), r.run, last, journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
		require.NotEmpty(t, <-w.lines)
	}
	require.NoError(t, <-done, "the run has ended")

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- runprint.Run(ctx, w, log, machine(), events.NewRun("default", runID(2), 1), runprint.Options{Follow: true})
	}()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestBench(t *testing.T) {
	log := manyRuns(t, 2, 20)
	measures, err := foldbench.Run(t.Context(), log, machine(), foldbench.Options{Least: time.Millisecond, Workers: 2})
	require.NoError(t, err)
	var whats []string
	for _, m := range measures {
		whats = append(whats, fmt.Sprint(m.What, " ", m.Cores))
		require.Positive(t, m.Events)
		require.Positive(t, m.EventsPerSecond())
	}
	require.Equal(t, []string{
		"read from the log 1", "fold from the log 2", "decode and fold from memory 1", "decode and fold from memory 2",
		"fold from memory 1", "fold from memory 2",
	}, whats)
	require.Equal(t, measures[0].Events, measures[1].Events, "reading and folding is of all that is there")
	var b bytes.Buffer
	require.NoError(t, foldbench.WriteMeasures(&b, measures))
	require.Contains(t, b.String(), "EVENTS/S")
	_, err = foldbench.Run(t.Context(), log, machine(), foldbench.Options{Namespace: "empty"})
	require.ErrorIs(t, err, journal.ErrNotFound)
}

func TestPrintSpeedShowsHowRepliesCame(t *testing.T) {
	r := newRecorder(t, 1)
	r.start("Search.", nil)
	r.now = r.now.Add(10 * time.Second)
	r.on(events.Planning, &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{
		Content: "It is\x1b forty.", Chunks: events.Chunks{{1000, 6}, {3000, 2}, {4000, 5}},
	}})
	log := logOf(t, r.records)
	c := &clock{now: time.Unix(0, 0)}
	var b bytes.Buffer
	require.NoError(t, runprint.Run(t.Context(), &b, log, machine(), r.run, runprint.Options{Speed: 2, Clock: c}))
	require.Equal(t, []time.Duration{3625 * time.Millisecond, time.Second, 500 * time.Millisecond}, c.slept, "at twice the speed")
	require.Contains(t, b.String(), "\nIt is\\x1b forty.\n", "no terminal does what a model says")

	b.Reset()
	require.NoError(t, runprint.Run(t.Context(), &b, log, machine(), r.run, runprint.Options{Speed: 1, JSON: true, Clock: c}))
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, `{"n":2,"offset_ms":7250,"chunk":"It is\u001b"}`, lines[1])
	require.Contains(t, lines[4], `"type":"LlmFinalAnswer"`)

	b.Reset()
	require.NoError(t, runprint.Run(t.Context(), &b, log, machine(), r.run, runprint.Options{Clock: c}))
	require.Len(t, strings.Split(strings.TrimSpace(b.String()), "\n"), 2, "at once there is nothing to show of it")

	r.records[1].Body = bytes.Replace(r.records[1].Body, []byte("[4000,5]"), []byte("[4000,500000000]"), 1)
	b.Reset()
	require.NoError(t, runprint.Run(t.Context(), &b, logOf(t, r.records), machine(), r.run, runprint.Options{Speed: 1, Clock: c}))
	require.NotContains(t, b.String(), "\nIt is", "a timing that is not the text's is not used")
}

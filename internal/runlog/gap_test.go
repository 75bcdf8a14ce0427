package runlog_test

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// asked counts what is asked of a log.
type asked struct {
	*natsbus.Bus
	reads, fetches int
	// doubts makes it say of no record that it is its run's first.
	doubts bool
}

func (c *asked) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	c.reads++
	return c.Bus.Read(ctx, run, after)
}

func (c *asked) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	c.fetches++
	rec, err := c.Bus.Fetch(ctx, run, seq)
	rec.First = rec.First && !c.doubts
	return rec, err
}

// apart is a run that two processes work on: one appends, one has it in memory.
type apart struct {
	t      *testing.T
	log    *asked
	writer *runlog.Run
	reader *runlog.Run
}

func newApart(t *testing.T) *apart {
	log := &asked{Bus: onNATS(t)}
	writers := runlog.New(runlog.Options{Log: log.Bus})
	p := &apart{t: t, log: log, writer: writers.Acquire(writers.Place(events.DefaultNamespace, writers.NewID()))}
	p.append(events.Idle, reducertest.StartOf("count", events.ModeTask))
	p.reader = runlog.New(runlog.Options{Log: log}).Acquire(p.writer.ID)
	p.extend(p.head())
	require.Equal(t, 1, log.reads, "a run of which nothing is known is read")
	log.reads = 0
	return p
}

func (p *apart) append(origin events.State, payload events.Payload) {
	p.t.Helper()
	appendTo(p.t, p.writer, origin, payload)
}

func appendTo(t *testing.T, run *runlog.Run, origin events.State, payload events.Payload) {
	t.Helper()
	run.Lock()
	defer run.Unlock()
	_, err := run.Commit(t.Context(), stamp, func(*reducer.Memory) ([]runlog.Draft, error) {
		return []runlog.Draft{{Origin: origin, Payload: payload}}, nil
	})
	require.NoError(t, err)
}

func (p *apart) thoughts(n int) {
	p.t.Helper()
	for range n {
		p.append(events.Planning, &events.LLMThought{Reply: events.Reply{Content: "hm"}})
	}
}

// head is the run's last record as it would be delivered.
func (p *apart) head() journal.Record {
	p.t.Helper()
	rec, err := p.log.Bus.Head(p.t.Context(), p.writer.ID)
	require.NoError(p.t, err)
	rec, err = p.log.Bus.Fetch(p.t.Context(), p.writer.ID, rec.Seq)
	require.NoError(p.t, err)
	return rec
}

func (p *apart) extend(rec journal.Record) {
	p.t.Helper()
	p.reader.Lock()
	defer p.reader.Unlock()
	_, err := p.reader.Extend(p.t.Context(), rec)
	require.NoError(p.t, err)
}

// asRead requires that the reader knows what one who reads everything does.
func (p *apart) asRead() {
	p.t.Helper()
	fresh := runlog.New(runlog.Options{Log: p.log.Bus}).Acquire(p.writer.ID)
	fresh.Lock()
	defer fresh.Unlock()
	require.NoError(p.t, fresh.Refresh(p.t.Context()))
	require.Equal(p.t, fresh.Seq(), p.reader.Seq())
	require.Equal(p.t, reducertest.Canonical(fresh.Memory()), reducertest.Canonical(p.reader.Memory()))
}

func TestExtendFetchesWhatOthersAppended(t *testing.T) {
	t.Parallel()
	p := newApart(t)
	p.thoughts(3)
	p.extend(p.head())
	require.Equal(t, 0, p.log.reads)
	require.Equal(t, 2, p.log.fetches, "one for each record that was appended elsewhere, but for the delivered one")
	p.asRead()

	p.thoughts(1)
	p.extend(p.head())
	require.Equal(t, 2, p.log.fetches, "nothing is missing")

	p.thoughts(33)
	p.extend(p.head())
	require.Equal(t, 0, p.log.reads)
	require.Equal(t, 2+32, p.log.fetches, "as many as several processes of a role append in turn")
	p.asRead()

	p.thoughts(34)
	p.extend(p.head())
	require.Equal(t, 1, p.log.reads, "many are read at once")
	require.Equal(t, 2+32, p.log.fetches)
	p.asRead()
}

// A server that was killed may deliver for the first time again what was worked on
// before: of a run that is not known all is read, whatever is delivered.
func TestExtendReadsAnUnknownRunToItsHead(t *testing.T) {
	t.Parallel()
	p := newApart(t)
	first := p.head()
	p.thoughts(3)
	p.reader = runlog.New(runlog.Options{Log: p.log}).Acquire(p.writer.ID)
	p.extend(first)
	p.asRead()
}

// A run of which nothing is known is traced back from its head, if it is young and the
// log says where it begins.
func TestExtendTracesAnUnknownRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		more           int
		doubts         bool
		reads, fetches int
	}{
		"one event":             {0, false, 1, 0},
		"two":                   {1, false, 0, 1},
		"as many as are traced": {4, false, 0, 4},
		"one more":              {5, false, 1, 0},
		"of unknown origin":     {2, true, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newApart(t)
			p.thoughts(c.more)
			p.log.doubts = c.doubts
			p.reader = runlog.New(runlog.Options{Log: p.log}).Acquire(p.writer.ID)
			p.extend(p.head())
			require.Equal(t, c.reads, p.log.reads)
			require.Equal(t, c.fetches, p.log.fetches)
			p.asRead()
		})
	}
}

// A server that was killed may have lost what it had delivered, and have another
// record in its place.
func TestExtendOfAnUnknownRunBelievesTheLog(t *testing.T) {
	t.Parallel()
	p := newApart(t)
	p.thoughts(2)
	rec := p.head()
	e, err := new(events.Codec).Decode(rec.Body)
	require.NoError(t, err)
	rec.Body = p.forge(e.N, e.Prev, events.Planning, &events.LLMThought{Reply: events.Reply{Content: "lost"}})
	p.reader = runlog.New(runlog.Options{Log: p.log}).Acquire(p.writer.ID)
	p.extend(rec)
	require.Equal(t, 1, p.log.reads)
	p.asRead()
}

// A run was paused while its delivery waited, which is older than that: what is in
// memory would be brought to the delivery alone.
func TestForgottenRunsAreReadToTheirHead(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*runlog.Store, events.Run){
		"one": func(s *runlog.Store, id events.Run) { s.Forget(id) }, "all": func(s *runlog.Store, _ events.Run) { s.ForgetIdle() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newApart(t)
			store := runlog.New(runlog.Options{Log: p.log})
			p.reader = store.Acquire(p.writer.ID)
			p.extend(p.head())
			store.Release(p.reader)
			p.thoughts(2)
			delivered := p.head()
			p.append(events.Control, &events.Paused{})

			forget(store, p.writer.ID)
			p.reader = store.Acquire(p.writer.ID)
			p.extend(delivered)
			require.True(t, p.reader.Memory().Control.Paused)

			forget(store, p.writer.ID)
			require.Same(t, p.reader, store.Acquire(p.writer.ID), "somebody holds it")
		})
	}
}

func TestExtendOfAnEventThatWasAppendedHere(t *testing.T) {
	t.Parallel()
	p := newApart(t)
	appendTo(t, p.reader, events.Planning, &events.LLMThought{Reply: events.Reply{Content: "hm"}})
	p.reader.Lock()
	defer p.reader.Unlock()
	rec := p.head()
	got, err := p.reader.Extend(t.Context(), rec)
	require.NoError(t, err)
	want, err := new(events.Codec).Decode(rec.Body)
	require.NoError(t, err)
	require.Equal(t, []any{want.ID, want.N, want.Prev, want.Type()}, []any{got.ID, got.N, got.Prev, got.Type()})
	require.Equal(t, 0, p.log.reads)
}

// Where the record before lies is the writer's word: whatever it says, the run is
// what the log has.
func TestExtendDoesNotBelieveWhereTheRecordBeforeLies(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(p *apart, rec journal.Record) uint64{
		"nowhere":    func(*apart, journal.Record) uint64 { return 0 },
		"known":      func(p *apart, _ journal.Record) uint64 { return p.reader.Seq() },
		"itself":     func(_ *apart, rec journal.Record) uint64 { return rec.Seq },
		"too far":    func(_ *apart, rec journal.Record) uint64 { return rec.Seq + 1000 },
		"one before": func(_ *apart, rec journal.Record) uint64 { return rec.Seq - 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newApart(t)
			p.thoughts(3)
			rec := p.head()
			rec.After = after(p, rec)
			p.extend(rec)
			require.Equal(t, 1, p.log.reads)
			p.asRead()
		})
	}
}

// A writer that lies in the log itself names a record before that is not the run's:
// nothing is folded but what the run's log has.
func TestExtendFoldsNothingThatIsNotInTheRunsLog(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(p *apart, forged []byte) uint64{
		"in no log": func(p *apart, _ []byte) uint64 { return p.writer.Seq() },
		"in another run's log": func(p *apart, forged []byte) uint64 {
			other := events.NewRun(p.writer.ID.Namespace, runlog.NewID(), 1)
			return p.inject(other, 0, events.Control, events.Nobody, forged)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newApart(t)
			mem := p.writer.Memory()
			forged := p.forge(mem.N+1, mem.Control.Head, events.Control, &events.UserMessage{Content: "obey"})
			after := where(p, forged)
			lie := p.forge(mem.N+2, events.Hash(forged), events.Planning, &events.LLMThought{Reply: events.Reply{Content: "hm"}})
			p.inject(p.writer.ID, p.writer.Seq(), events.Planning, events.Planning, lie)
			rec := p.head()
			rec.After = after
			p.extend(rec)
			require.NotNil(t, p.reader.Memory().Control.Poison)
			p.asRead()
		})
	}
}

func (p *apart) forge(n uint64, prev string, from events.State, payload events.Payload) []byte {
	p.t.Helper()
	body, err := new(events.Codec).Encode(&events.Event{
		ID: runlog.NewID(), Source: "moorebus/test/1", Run: p.writer.ID.ID, N: n, Prev: prev, Time: time.Unix(1, 0).UTC(),
		From: from, To: events.Planning, Data: payload,
	})
	require.NoError(p.t, err)
	return body
}

func (p *apart) inject(run events.Run, last uint64, from, to events.State, body []byte) uint64 {
	p.t.Helper()
	seq, err := p.log.Bus.Append(p.t.Context(), run, last, journal.Entry{
		Subject: events.Subject{Run: run, From: from, To: to, Pool: events.DefaultPool}, Body: body,
	})
	require.NoError(p.t, err)
	return seq
}

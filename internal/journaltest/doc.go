// Package journaltest is the conformance suite of the ports in package journal:
// every adapter runs the parts that it implements, and passes.
//
// A factory is called once for each part; its journal may hold other records, as
// every test uses runs, namespaces and pools of its own. The tests wait for what
// they expect and for nothing else, so they take as long as the journal does.
package journaltest

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

// NewID returns a new run id.
func NewID(t testing.TB) string {
	t.Helper()
	id, err := uuid.NewV7()
	require.NoError(t, err)
	return id.String()
}

// NewRun returns a new run in one of the log's shards.
func NewRun(t testing.TB, log journal.Log) events.Run {
	t.Helper()
	return events.NewRun(events.DefaultNamespace, NewID(t), log.Shards())
}

// RunIn returns a new run in the given shard.
func RunIn(t testing.TB, log journal.Log, shard int) events.Run {
	t.Helper()
	for {
		if run := NewRun(t, log); run.Shard == shard {
			return run
		}
	}
}

// NewToken returns a namespace or pool that nobody else uses.
func NewToken(t testing.TB) string {
	t.Helper()
	return "t" + NewID(t)
}

// Entry returns an entry from planning to the given state and pool.
func Entry(run events.Run, to events.State, pool string, body string) journal.Entry {
	return journal.Entry{
		Subject: events.Subject{Run: run, From: events.Planning, To: to, Pool: pool},
		Body:    []byte(body),
	}
}

func plain(run events.Run, body string) journal.Entry {
	return Entry(run, events.Observing, events.DefaultPool, body)
}

func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Collect returns all records of a sequence, or its error.
func Collect(seq iter.Seq2[journal.Record, error]) ([]journal.Record, error) {
	var all []journal.Record
	for rec, err := range seq {
		if err != nil {
			return all, err
		}
		all = append(all, rec)
	}
	return all, nil
}

func mustCollect(t testing.TB, seq iter.Seq2[journal.Record, error]) []journal.Record {
	t.Helper()
	all, err := Collect(seq)
	require.NoError(t, err)
	return all
}

func bodies(recs []journal.Record) []string {
	all := make([]string, len(recs))
	for i, r := range recs {
		all[i] = string(r.Body)
	}
	return all
}

func numbered(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"i":%d}`, i)
	}
	return all
}

// AppendAll appends the bodies one by one and returns the last sequence number.
func AppendAll(t testing.TB, log journal.Log, run events.Run, texts ...string) uint64 {
	t.Helper()
	return appendTo(t, log, run, events.Observing, events.DefaultPool, texts...)
}

func appendTo(t testing.TB, log journal.Log, run events.Run, to events.State, pool string, texts ...string) uint64 {
	t.Helper()
	var last uint64
	for _, text := range texts {
		last = appendOne(t, log, run, last, Entry(run, to, pool, text))
	}
	return last
}

// appendOne waits for one append. Each has its own bound: hundreds, one after another,
// may take more than a minute on a machine that is busy, though each is answered soon.
func appendOne(t testing.TB, log journal.Log, run events.Run, last uint64, e journal.Entry) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	seq, err := log.Append(ctx, run, last, e)
	require.NoError(t, err)
	require.Greater(t, seq, last)
	return seq
}

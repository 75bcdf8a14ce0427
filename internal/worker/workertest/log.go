package workertest

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Log is a log whose appends and reads a test can look at and interfere with. A
// hook that is nil does nothing.
type Log struct {
	journal.Log
	// OnAppend is called instead of the append, which it may do by itself.
	OnAppend func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error)
	// OnRead is called before a read; its error is what the read yields.
	OnRead func(run events.Run) error

	appends, reads atomic.Int64
}

// Appends counts the appends that were tried.
func (l *Log) Appends() int { return int(l.appends.Load()) }

// Reads counts the reads.
func (l *Log) Reads() int { return int(l.reads.Load()) }

// Append calls the hook, or appends.
func (l *Log) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	l.appends.Add(1)
	if l.OnAppend != nil {
		return l.OnAppend(ctx, run, last, entries)
	}
	return l.Log.Append(ctx, run, last, entries...)
}

// Read calls the hook and reads.
func (l *Log) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	l.reads.Add(1)
	if l.OnRead != nil {
		if err := l.OnRead(run); err != nil {
			return func(yield func(journal.Record, error) bool) { yield(journal.Record{}, err) }
		}
	}
	return l.Log.Read(ctx, run, after)
}

package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Sink is where an export goes.
type Sink interface {
	Record(rec journal.Record) error
	Blob(ref events.Ref, data []byte) error
}

// Blobs reads large results.
type Blobs interface {
	// Blob returns what a reference points to, or ErrNotFound.
	Blob(ctx context.Context, ref events.Ref) ([]byte, error)
}

// ExportOptions say what is exported.
type ExportOptions struct {
	// Runs are exported one after another, each behind the run that it was forked
	// from, which is exported too. Each has to be there. A run that goes on and is
	// exported for its forks alone has subjects that wake nobody, by which [Import]
	// knows that it is to bring no life to it.
	Runs []events.Run
	// All exports every record of the log instead, shard by shard in the log's
	// order, those that belong to no run too; of Namespace alone if that is not
	// empty.
	All       bool
	Namespace string
	// Blobs has the large results that records refer to. Each is exported once,
	// behind the first record that does. Nil: they are left out.
	Blobs Blobs
}

// Exported counts what was exported.
type Exported struct {
	Events  int
	Blobs   int
	Missing []Missing
}

// Missing is something that an export refers to and the log does not have.
type Missing struct {
	Run  events.Run
	What string
}

// Export writes records, and the large results that they refer to. Errors are the
// log's and the sink's, [journal.ErrNotFound] for a run that is not there; what was
// written before an error is in the sink.
func Export(ctx context.Context, log journal.Log, sink Sink, o ExportOptions) (Exported, error) {
	x := &exporter{log: log, sink: sink, blobs: o.Blobs, codec: new(events.Codec), seen: map[string]bool{}}
	runs, missing, err := withAncestors(ctx, log, x.codec, o.Runs)
	if err != nil {
		return x.done, err
	}
	for _, parent := range missing {
		x.miss(parent, "a run that another one was forked from")
	}
	for _, run := range runs {
		asleep, err := x.ancestor(ctx, run, o.Runs)
		if err != nil {
			return x.done, err
		}
		for rec, err := range log.Read(ctx, run, 0) {
			if err != nil {
				return x.done, err
			}
			if asleep {
				rec.Subject = putToSleep(rec.Subject)
			}
			if err := x.record(ctx, rec); err != nil {
				return x.done, err
			}
		}
	}
	if !o.All {
		return x.done, nil
	}
	for shard := range log.Shards() {
		for rec, err := range log.Scan(ctx, shard, journal.Filter{Namespace: o.Namespace}, 0) {
			if err != nil {
				return x.done, err
			}
			if err := x.record(ctx, rec); err != nil {
				return x.done, err
			}
			if err := x.checkParent(ctx, rec); err != nil {
				return x.done, err
			}
		}
	}
	return x.done, nil
}

// checkParent notes that what a run was forked from is not in the log: such a run
// can be exported, but not imported.
func (x *exporter) checkParent(ctx context.Context, rec journal.Record) error {
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil || subject.From != events.Idle {
		return nil // only a run's first event is out of idle
	}
	parent, forked := Parent(x.codec, subject.Run, rec.Body, x.log.Shards())
	if !forked {
		return nil
	}
	if _, err = first(ctx, x.log, parent); errors.Is(err, journal.ErrNotFound) {
		x.miss(parent, "a run that "+subject.Run.ID+" was forked from")
		return nil
	}
	return err
}

// ancestor reports whether a run is exported only because others were forked from
// it, and goes on here.
func (x *exporter) ancestor(ctx context.Context, run events.Run, wanted []events.Run) (bool, error) {
	if slices.Contains(wanted, run) {
		return false, nil
	}
	head, err := x.log.Head(ctx, run)
	return err == nil && !ends(head.Subject), notThere(run, err)
}

// builtIn is the built-in table, which takes long to make.
var builtIn = sync.OnceValue(reducer.DefaultTable)

// ends reports whether a subject is that of a run's end.
func ends(subject string) bool {
	s, err := events.ParseSubject(subject)
	return err == nil && builtIn().Terminal(s.To)
}

// putToSleep returns the subject of a record such that it wakes nobody.
func putToSleep(subject string) string {
	s, err := events.ParseSubject(subject)
	if err != nil {
		return subject // it wakes nobody as it is
	}
	s.To, s.Pool = events.Nobody, events.DefaultPool
	return s.String()
}

func notThere(run events.Run, err error) error {
	if errors.Is(err, journal.ErrNotFound) {
		return fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, err)
	}
	return err
}

// exporter is one export.
type exporter struct {
	log   journal.Log
	sink  Sink
	blobs Blobs
	codec *events.Codec
	// seen are the digests of the results that were looked for.
	seen map[string]bool
	done Exported
}

func (x *exporter) miss(run events.Run, what string) {
	x.done.Missing = append(x.done.Missing, Missing{Run: run, What: what})
}

func (x *exporter) record(ctx context.Context, rec journal.Record) error {
	if err := x.sink.Record(rec); err != nil {
		return err
	}
	x.done.Events++
	if x.blobs == nil {
		return nil
	}
	for _, ref := range recordline.Refs(x.codec, rec.Body) {
		if x.seen[ref.SHA256] {
			continue
		}
		x.seen[ref.SHA256] = true
		data, err := x.blobs.Blob(ctx, ref)
		if errors.Is(err, journal.ErrNotFound) {
			subject, _ := events.ParseSubject(rec.Subject) // a record of no run has none to name
			x.miss(subject.Run, "the large result "+ref.Key)
			continue
		}
		if err == nil {
			err = x.sink.Blob(ref, data)
		}
		if err != nil {
			return err
		}
		x.done.Blobs++
	}
	return nil
}

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/output"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Tap shows events as they are stored. It only reads.
type Tap struct {
	// Log is what is read, Machine reads it. Required.
	Log     journal.Log
	Machine *reducer.Machine
	// Out gets a line for each event. Required.
	Out io.Writer
	// Namespace is the namespace whose runs are shown.
	Namespace string
	// States selects events that lead to one of the states or wake its workers, Types
	// those of one of the types. Empty: all. A record that is not a legal event is shown
	// only if neither is set.
	States []events.State
	Types  []events.Type
	// JSON writes the stored bodies instead of text.
	JSON bool
	// Color colours text.
	Color bool
	// Outputs shows the outputs of a run instead of its events, those of the live feed too
	// if Feed is set.
	Outputs bool
	Feed    journal.Feed
	// Stored stops at the end of the log.
	Stored bool
}

// All shows the events of all runs after a position of the log until ctx ends. It always
// returns the position that it reached, with an error too.
func (t *Tap) All(ctx context.Context, from journal.Position) (journal.Position, error) {
	at := slices.Clone(from)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type shardRecord struct {
		shard int
		journal.Record
	}
	records := make(chan shardRecord)
	errs := make([]error, len(at))
	var readers sync.WaitGroup
	for shard, after := range at {
		readers.Go(func() {
			errs[shard] = t.readShard(ctx, shard, journal.Filter{Namespace: t.Namespace}, after, func(rec journal.Record) error {
				select {
				case records <- shardRecord{shard, rec}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if errs[shard] != nil {
				stop() // the tap shows all shards or none
			}
		})
	}
	go func() { readers.Wait(); close(records) }()
	var failed error
	for rec := range records {
		if failed != nil {
			continue // the readers are ending
		}
		if failed = t.showRecord(rec.Record); failed != nil {
			stop()
			continue
		}
		at[rec.shard] = rec.Seq
	}
	if failed != nil {
		return at, failed
	}
	return at, firstCause(errs)
}

// firstCause returns the error that ended the readers. The other readers have the error of
// the context.
func firstCause(errs []error) error {
	var found error
	for _, err := range errs {
		if found == nil || err != nil && errors.Is(found, context.Canceled) {
			found = err
		}
	}
	return found
}

// readShard calls fn for a shard's records, until the end of the log if Stored, else until
// ctx ends.
func (t *Tap) readShard(ctx context.Context, shard int, filter journal.Filter, after uint64, fn func(journal.Record) error) error {
	records := t.Log.Follow(ctx, shard, filter, after)
	if t.Stored {
		records = t.Log.Scan(ctx, shard, filter, after)
	}
	for rec, err := range records {
		if err != nil {
			return err
		}
		if err := fn(rec); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (t *Tap) showRecord(rec journal.Record) error {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil // it belongs to no run
	}
	e, err := t.Machine.Codec().Decode(rec.Body)
	line := tapLine{subject: s, rec: rec, event: e, err: err, prefix: s.Run.ID + " "}
	if !t.selects(line) {
		return nil
	}
	return t.write(line)
}

// RunEnd is where the tap of a run ended. Next is the number of the first event that it did
// not reach, State the run's state, Lines how many lines were written.
type RunEnd struct {
	Next  uint64
	State events.State
	Ended bool
	Lines int
}

// Run shows the events of one run from number from on until the run or ctx ends. With from 0
// it shows only events that are stored after the call. A run that does not exist is
// [journal.ErrNotFound].
func (t *Tap) Run(ctx context.Context, run events.Run, from uint64) (RunEnd, error) {
	fold := runlog.NewFold(t.Log, t.Machine, run)
	r := runTap{Tap: t, fold: fold, mem: fold.Memory(), from: from, stream: t.stream(fold.Memory().RunID)}
	for rec, err := range t.Log.Read(ctx, run, 0) {
		if err == nil && !r.ended() {
			err = r.apply(ctx, rec)
		}
		if err != nil {
			return r.position(), err
		}
	}
	switch {
	case r.mem.N == 0:
		return r.position(), fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound)
	case r.ended() || t.Stored:
		return r.position(), nil
	case from == 0:
		r.from = r.mem.N + 1
	}
	stopChunks, err := r.showChunks(run)
	if err != nil {
		return r.position(), err
	}
	defer stopChunks()
	err = t.readShard(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, r.seq, func(rec journal.Record) error {
		if err := r.apply(ctx, rec); err != nil {
			return err
		}
		if r.ended() {
			return errEnded
		}
		return nil
	})
	if errors.Is(err, errEnded) {
		err = nil
	}
	return r.position(), err
}

// errEnded stops reading at the run's end.
var errEnded = errors.New("the run has ended")

// runTap is the tap of one run. It folds the run to know when it ends and which records are
// legal.
type runTap struct {
	*Tap
	fold  *runlog.Fold
	mem   *reducer.Memory // the fold's
	seq   uint64
	from  uint64
	lines int
	// stream tells outputs; nil where events are shown.
	stream *output.Stream
}

func (r *runTap) ended() bool { return r.Machine.Table().Terminal(r.mem.State) }

func (r *runTap) position() RunEnd {
	return RunEnd{Next: max(r.mem.N+1, r.from), State: r.mem.State, Ended: r.ended(), Lines: r.lines}
}

func (r *runTap) apply(ctx context.Context, rec journal.Record) error {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil // it belongs to no run
	}
	e, err := r.fold.Apply(ctx, rec)
	if err != nil && !runlog.Refused(err) {
		return err
	}
	r.seq = rec.Seq
	if r.from == 0 || r.mem.N < r.from {
		return nil
	}
	line := tapLine{subject: s, rec: rec, event: e, err: err, n: r.mem.N, started: r.mem.Started}
	if !r.selects(line) {
		return nil
	}
	r.lines++
	if r.stream != nil {
		if err == nil {
			r.stream.Event(r.mem, e)
		}
		return nil
	}
	return r.write(line)
}

// tapLine is a record to show. Its err says why the record is not a legal event.
type tapLine struct {
	subject events.Subject
	rec     journal.Record
	event   *events.Event
	err     error
	n       uint64
	started time.Time
	prefix  string
}

func (t *Tap) write(s tapLine) error {
	text := ""
	switch {
	case t.JSON:
		text = string(oneLine(s.rec))
	case s.err != nil:
		text = s.prefix + PoisonLine(s.n, s.err.Error(), t.Color)
	default:
		text = s.prefix + EventLine(s.event, s.started, t.Color)
	}
	_, err := io.WriteString(t.Out, text+"\n")
	return err
}

func (t *Tap) selects(s tapLine) bool {
	if s.err != nil {
		return len(t.States) == 0 && len(t.Types) == 0
	}
	if len(t.States) > 0 && !slices.Contains(t.States, s.event.To) && !slices.Contains(t.States, s.subject.To) {
		return false
	}
	return len(t.Types) == 0 || slices.Contains(t.Types, s.event.Type())
}

// oneLine returns a stored body on one line. A body that is not JSON becomes the value
// not_json of an object.
func oneLine(rec journal.Record) []byte {
	if !json.Valid(rec.Body) {
		wrapped, err := json.Marshal(map[string]any{"subject": rec.Subject, "seq": rec.Seq, "not_json": rawJSON(rec.Body)})
		if err != nil {
			panic("text does not marshal: " + err.Error())
		}
		return wrapped
	}
	// In JSON the end of a line is white space.
	return bytes.ReplaceAll(bytes.ReplaceAll(rec.Body, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" "))
}

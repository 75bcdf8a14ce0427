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
	// States and Types choose events: those that lead to, or wake the workers
	// of, one of the states, and those of one of the types. Empty: all. A record
	// that is no legal event is shown only where nothing is chosen.
	States []events.State
	Types  []events.Type
	// JSON writes the stored bodies instead of text.
	JSON bool
	// Color colours text.
	Color bool
	// Outputs shows the outputs of a run in the place of its events, with those of the
	// live feed if Feed is set.
	Outputs bool
	Feed    journal.Feed
	// Stored ends at the end of the log instead of waiting for more.
	Stored bool
}

// All shows the events of all runs behind a place in the log, until ctx ends.
// It returns how far it got, with every error.
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
			errs[shard] = t.follow(ctx, shard, journal.Filter{Namespace: t.Namespace}, after, func(rec journal.Record) error {
				select {
				case records <- shardRecord{shard, rec}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if errs[shard] != nil {
				stop() // one shard alone is not the log
			}
		})
	}
	go func() { readers.Wait(); close(records) }()
	var failed error
	for rec := range records {
		if failed != nil {
			continue // the readers are about to end
		}
		if failed = t.one(rec.Record); failed != nil {
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

// firstCause returns the error that ended the readers: the others only have the
// context's.
func firstCause(errs []error) error {
	var found error
	for _, err := range errs {
		if found == nil || err != nil && errors.Is(found, context.Canceled) {
			found = err
		}
	}
	return found
}

// follow hands a shard's records on, to the end of the log or of ctx.
func (t *Tap) follow(ctx context.Context, shard int, filter journal.Filter, after uint64, take func(journal.Record) error) error {
	records := t.Log.Follow(ctx, shard, filter, after)
	if t.Stored {
		records = t.Log.Scan(ctx, shard, filter, after)
	}
	for rec, err := range records {
		if err != nil {
			return err
		}
		if err := take(rec); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// one shows a record of any run.
func (t *Tap) one(rec journal.Record) error {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil // it belongs to no run
	}
	e, err := t.Machine.Codec().Decode(rec.Body)
	record := shown{subject: s, rec: rec, event: e, err: err, prefix: s.Run.ID + " "}
	if !t.wants(record) {
		return nil
	}
	return t.show(record)
}

// RunEnd is how far the tap of a run got: Next is the number of the event that
// it did not come to, State where the run stood, Lines what was written.
type RunEnd struct {
	Next  uint64
	State events.State
	Ended bool
	Lines int
}

// Run shows the events of one run from its from-th on, or, if from is 0, those
// that are yet to come, until the run or ctx ends. A run that does not exist is
// [journal.ErrNotFound].
func (t *Tap) Run(ctx context.Context, run events.Run, from uint64) (RunEnd, error) {
	fold := runlog.NewFold(t.Log, t.Machine, run)
	r := runTap{Tap: t, fold: fold, mem: fold.Memory(), from: from, stream: t.stream(fold.Memory().RunID)}
	for rec, err := range t.Log.Read(ctx, run, 0) {
		if err == nil && !r.ended() {
			err = r.take(ctx, rec)
		}
		if err != nil {
			return r.end(), err
		}
	}
	switch {
	case r.mem.N == 0:
		return r.end(), fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound)
	case r.ended() || t.Stored:
		return r.end(), nil
	case from == 0:
		r.from = r.mem.N + 1
	}
	unwatch, err := r.watch(run)
	if err != nil {
		return r.end(), err
	}
	defer unwatch()
	err = t.follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, r.seq, func(rec journal.Record) error {
		if err := r.take(ctx, rec); err != nil {
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
	return r.end(), err
}

// errEnded stops reading at the run's end.
var errEnded = errors.New("the run has ended")

// runTap is the tap of one run: it folds, to know when the run ends and what is
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

func (r *runTap) end() RunEnd {
	return RunEnd{Next: max(r.mem.N+1, r.from), State: r.mem.State, Ended: r.ended(), Lines: r.lines}
}

func (r *runTap) take(ctx context.Context, rec journal.Record) error {
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
	record := shown{subject: s, rec: rec, event: e, err: err, n: r.mem.N, started: r.mem.Started}
	if !r.wants(record) {
		return nil
	}
	r.lines++
	if r.stream != nil {
		if err == nil {
			r.stream.Event(r.mem, e)
		}
		return nil
	}
	return r.show(record)
}

// shown is a record on its way to the writer. Its err says why it is no legal
// event.
type shown struct {
	subject events.Subject
	rec     journal.Record
	event   *events.Event
	err     error
	n       uint64
	started time.Time
	prefix  string
}

func (t *Tap) show(s shown) error {
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

func (t *Tap) wants(s shown) bool {
	if s.err != nil {
		return len(t.States) == 0 && len(t.Types) == 0
	}
	if len(t.States) > 0 && !slices.Contains(t.States, s.event.To) && !slices.Contains(t.States, s.subject.To) {
		return false
	}
	return len(t.Types) == 0 || slices.Contains(t.Types, s.event.Type())
}

// oneLine returns the stored body as it can stand on one line. Bodies that
// Moorebus wrote are as they are; one that is not JSON at all is put into an
// object that says so.
func oneLine(rec journal.Record) []byte {
	if !json.Valid(rec.Body) {
		wrapped, err := json.Marshal(map[string]any{"subject": rec.Subject, "seq": rec.Seq, "not_json": rawJSON(rec.Body)})
		if err != nil {
			panic("text does not marshal: " + err.Error())
		}
		return wrapped
	}
	// In JSON a line's end is only white space.
	return bytes.ReplaceAll(bytes.ReplaceAll(rec.Body, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" "))
}

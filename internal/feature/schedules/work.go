package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// rearmEvery is how often all alarms are set again, in case that one was lost.
	rearmEvery = 5 * time.Minute
	// recheck is how often it is looked whether a run has ended for which others wait, in case
	// that no process heard of its end.
	recheck = 15 * time.Second
	// retryAfter is the pause after an alarm that could not be processed, maxPause the longest one
	// between attempts to start a run.
	retryAfter = 2 * time.Second
	maxPause   = 30 * time.Second
	// early is the shortest pause after an alarm that rang before its time.
	early = 10 * time.Millisecond
	// conflicts is how often a change is made anew because another process was faster.
	conflicts = 20
)

// Origin is what a run's custom memory has under [OriginKey].
type Origin struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

// OriginKey is the key in the custom memory of a run that a schedule started.
const OriginKey = "schedule"

// Scheduler keeps schedules and starts their runs. It is safe for concurrent use. All its methods
// but Run work whether it runs or not.
type Scheduler struct {
	// cfg has the bus. Its Alarms wake the schedules, its Drain is how long one may take at once, also
	// after Run's context ended. The rest of its work is done when it rings again.
	cfg control.Config
	a   *runs.Editor
	// c starts runs.
	c *control.Controller

	mu sync.Mutex
	// watched are the runs whose end is awaited, with what ends the watch. Nil: Run does not run.
	watched map[ports.AlarmKey]watch
}

type watch struct {
	run  string
	stop func()
}

// New returns the scheduler of a controller's bus. Only [Scheduler.Run] has schedules fire.
func New(c *control.Controller) *Scheduler {
	return &Scheduler{cfg: c.Config(), a: c.Editor, c: c}
}

// Run processes alarms until ctx ends. Where the bus has no place for schedules, or the user may not use it, it says so and tries again from time to time.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.cfg.Alarms == nil {
		<-ctx.Done()
		return nil
	}
	s.mu.Lock()
	s.watched = map[ports.AlarmKey]watch{}
	s.mu.Unlock()
	var rearming sync.WaitGroup
	rearming.Go(func() { s.rearm(ctx) })
	err := runs.UntilSetUp(ctx, s.cfg.Logger, "schedules do not fire", func(ctx context.Context) error {
		return s.cfg.Alarms.ConsumeAlarms(ctx, s.cfg.Concurrency, func(a ports.Alarm) {
			work, stop := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
			defer stop()
			s.deliver(work, a)
		})
	})
	rearming.Wait()
	s.mu.Lock()
	for _, w := range s.watched {
		w.stop()
	}
	s.watched = nil
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("gateway: schedules: %w", err)
	}
	return nil
}

// rearm sets the alarms of all schedules, now and every rearmEvery, until ctx ends.
func (s *Scheduler) rearm(ctx context.Context) {
	for pause := time.Duration(0); retry.Wait(ctx, pause); {
		pause = rearmEvery
		keys, err := s.keys(ctx, "*")
		for i := 0; i < len(keys) && err == nil; i++ {
			err = s.arm(ctx, keys[i])
		}
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, journal.ErrDenied), errors.Is(err, journal.ErrNotReady):
			s.cfg.Logger.Debug("there are no schedules", "reason", err) // Run says what to do
		default:
			s.cfg.Logger.Warn("the alarms of schedules will be set later", "reason", err)
			pause = retryAfter
		}
	}
}

// deliver processes an alarm. It acknowledges it when the next one is set.
func (s *Scheduler) deliver(ctx context.Context, a ports.Alarm) {
	if ahead := a.At.Sub(s.a.Store.Now()); ahead > 0 {
		_ = a.Retry(max(ahead, early)) // the clock of the bus is ahead of this one
		return
	}
	err := s.work(ctx, a.Of)
	if err == nil {
		_ = a.Ack()
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, journal.ErrFull) {
		level = slog.LevelDebug // the bus logs it once
	}
	s.cfg.Logger.Log(ctx, level, "a schedule will be tried again", "namespace", a.Of.Namespace, "schedule", a.Of.Name, "reason", err)
	_ = a.Retry(retryAfter)
}

// work does what a schedule has to do now, and sets its alarm for what is next. A schedule that
// does not exist has nothing to do.
func (s *Scheduler) work(ctx context.Context, key ports.AlarmKey) error {
	for {
		st, more, err := s.decide(ctx, key)
		if err != nil || st == nil {
			return err
		}
		now := s.a.Store.Now()
		for _, f := range st.Pending {
			if f.Outcome != Starting || f.Next.After(now) {
				continue
			}
			more = true
			if err := s.begin(ctx, key, st, f); err != nil {
				return err
			}
		}
		if !more {
			break
		}
	}
	return s.arm(ctx, key)
}

// begin starts the run of a firing and stores what became of it.
func (s *Scheduler) begin(ctx context.Context, key ports.AlarmKey, st *state, f Firing) error {
	f = s.start(ctx, key, st, f)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, err := s.change(ctx, key, func(st *state) (bool, error) { return st.settle(f), nil })
	return err
}

// decide stores what a schedule decides now. It returns the schedule, or nil if there is none,
// and whether it decided anything.
func (s *Scheduler) decide(ctx context.Context, key ports.AlarmKey) (st *state, decided bool, err error) {
	st, err = s.change(ctx, key, func(st *state) (bool, error) {
		t, err := timesOf(st.Definition, st.Anchor)
		if err != nil {
			return false, err
		}
		busy, err := s.busy(ctx, key, st)
		if err == nil {
			decided, err = st.decide(ctx, key.Namespace, t, s.a.Store.Now(), busy)
		}
		return decided, err
	})
	if errors.Is(err, journal.ErrNotFound) {
		return nil, false, nil
	}
	return st, decided, err
}

// busy reports whether the last run has not ended, where that matters.
func (s *Scheduler) busy(ctx context.Context, key ports.AlarmKey, st *state) (busy bool, err error) {
	if st.Last == "" || st.Overlap == OverlapAllow {
		return false, nil
	}
	err = s.a.View(ctx, key.Namespace, st.Last, func(run *runlog.Run) error {
		busy = !run.Terminal()
		return nil
	})
	if runs.IsMissing(err) { // it was purged
		return false, nil
	}
	if refusal.Is(err, refusal.CodeUnknownTable, refusal.CodeParentGone) {
		return true, nil // another gateway may be able to tell
	}
	return busy, err
}

// start starts the run of a firing and returns what became of it.
func (s *Scheduler) start(ctx context.Context, key ports.AlarmKey, st *state, f Firing) Firing {
	err := s.launch(ctx, key, st, f)
	log := s.cfg.Logger.With("namespace", key.Namespace, "schedule", key.Name, "at", f.At, "run", f.RunID)
	var refused *refusal.Error
	switch {
	case err == nil, refusal.Is(err, refusal.CodeRunExists, refusal.CodeRunPurged): // who was here before died after it
		f.Outcome = Started
		log.Info("a schedule started a run")
	case errors.As(err, &refused) && refused.Kind < refusal.TooMany:
		f.Outcome, f.Reason = Failed, reason(err)
		log.Error("a schedule cannot start its run", "reason", err)
	default:
		f.Tries++
		pause := min(maxPause, time.Second<<min(f.Tries-1, 10))
		if refused != nil && refused.RetryAfter > 0 {
			pause = min(maxPause, refused.RetryAfter) // the bound may be raised before its day ends
		}
		f.Reason, f.Next = reason(err), s.a.Store.Now().Add(pause)
		log.Warn("a schedule will try again to start its run", "reason", err, "tries", f.Tries)
	}
	return f
}

// launch starts the run of a firing, unless a process did that and died before it stored so.
func (s *Scheduler) launch(ctx context.Context, key ports.AlarmKey, st *state, f Firing) error {
	_, err := s.a.Log.Head(ctx, s.a.Store.Place(key.Namespace, f.RunID))
	if !errors.Is(err, journal.ErrNotFound) {
		return err
	}
	origin, err := json.Marshal(Origin{Name: key.Name, At: f.At})
	if err != nil {
		return err
	}
	_, err = s.c.Start(ctx, key.Namespace, control.StartRequest{
		AgentName: st.Agent, Task: st.Task, Labels: st.Labels, RunID: f.RunID, Custom: map[string]json.RawMessage{OriginKey: origin},
	})
	return err
}

// reason returns the text of an error for the history.
func reason(err error) string {
	text := err.Error()
	var refused *refusal.Error
	if errors.As(err, &refused) {
		text = refused.Code + ": " + text
	}
	if len(text) > maxReason {
		text = truncate.Prefix(text, maxReason)
	}
	return text
}

// change reads a schedule and replaces it with what fn made of it, unless fn returns false or an
// error. It tries again while others are faster. It returns the schedule as it is then, or
// ErrNotFound.
func (s *Scheduler) change(ctx context.Context, key ports.AlarmKey, fn func(st *state) (bool, error)) (*state, error) {
	for try := 1; ; try++ {
		st, revision, err := s.read(ctx, key)
		if err != nil {
			return nil, err
		}
		changed, err := fn(st)
		if err != nil || !changed {
			return st, err
		}
		if err = s.put(ctx, key, st, revision); err == nil || !repeatable(err) || try == conflicts || ctx.Err() != nil {
			return st, err
		}
	}
}

// repeatable reports whether a change may be made anew after an error: what was or was not stored
// is read first.
func repeatable(err error) bool {
	return errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrUnknownOutcome)
}

// arm sets the schedule's alarm for when it has something to do. Whoever changes a schedule arms
// it. So if it has changed meanwhile, it is armed again: the other alarm may be replaced.
func (s *Scheduler) arm(ctx context.Context, key ports.AlarmKey) error {
	for seen, armed := uint64(0), false; ; {
		st, revision, err := s.read(ctx, key)
		gone := errors.Is(err, journal.ErrNotFound)
		if err != nil && !gone {
			return err
		}
		if armed && revision == seen {
			return nil
		}
		seen = revision
		var at time.Time
		if gone {
			st = &state{}
		} else {
			t, err := timesOf(st.Definition, st.Anchor)
			if err != nil {
				return err
			}
			at = st.wake(t, s.a.Store.Now(), recheck)
		}
		if s.watch(key, st) {
			if busy, err := s.busy(ctx, key, st); err != nil || !busy { // it ended before it was watched
				at = s.a.Store.Now()
			}
		}
		err = s.setAlarm(ctx, key, at)
		armed = err == nil
		if err != nil && (!errors.Is(err, journal.ErrUnknownOutcome) || !retry.Wait(ctx, early)) {
			return err
		}
	}
}

// watch rings the schedule's alarm when the run has ended for which its firings wait. It returns
// whether it has begun to watch that run.
func (s *Scheduler) watch(key ports.AlarmKey, st *state) bool {
	run := st.Last
	if st.pending(Waiting) == 0 || st.Paused {
		run = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w, watching := s.watched[key]
	if s.watched == nil || w.run == run {
		return false
	}
	if watching {
		w.stop()
		delete(s.watched, key)
	}
	if run == "" {
		return false
	}
	ended := make(chan struct{}, 1)
	stop, err := s.cfg.Feed.Watch(journal.Filter{Namespace: key.Namespace, Run: run}, func(rec journal.Record) {
		if subject, err := events.ParseSubject(rec.Subject); err == nil && s.a.Table.Terminal(subject.To) {
			select {
			case ended <- struct{}{}:
			default:
			}
		}
	}, func() {})
	if err != nil {
		s.cfg.Logger.Debug("the end of a run is looked for now and then", "run", run, "reason", err)
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ended:
			if err := s.setAlarm(ctx, key, s.a.Store.Now()); err != nil {
				s.cfg.Logger.Debug("an alarm will ring later", "schedule", key.Name, "reason", err)
			}
		case <-ctx.Done():
		}
	}()
	s.watched[key] = watch{run, func() { stop(); cancel(); <-done }}
	return true
}

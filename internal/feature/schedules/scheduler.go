package schedules

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The numbers of next firings that [Scheduler.Schedule] returns.
const (
	DefaultNext = 10
	MaxNext     = 100
)

// runGrace is how long the process that was asked to run a schedule now has to do so.
const runGrace = 10 * time.Second

func (s *Scheduler) key(ns, name string) (ports.AlarmKey, error) {
	ns, err := s.a.CheckNamespace(ns)
	if err == nil && !events.ValidToken(name) {
		err = bad("%.100q is not the name of a schedule; use [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	return ports.AlarmKey{Namespace: ns, Name: name}, err
}

func bad(format string, args ...any) error {
	return refusal.New(refusal.Invalid, row.CodeBadSchedule, format, args...)
}

// missing makes a refusal of the error that there is no such schedule.
func missing(key ports.AlarmKey, err error) error {
	if !errors.Is(err, journal.ErrNotFound) {
		return err
	}
	return refusal.Wrap(err, refusal.NotFound, row.CodeScheduleNotFound, "there is no schedule %q in this namespace", key.Name)
}

// shows returns what a person sees of a schedule, with its next n firings. The error is that of
// ctx.
func (s *Scheduler) shows(ctx context.Context, st *state, n int) (shown Schedule, err error) {
	shown = st.Schedule
	// Without its time zone a process can show everything else.
	if t, unknown := timesOf(st.Definition, st.Anchor); unknown == nil && !st.Paused {
		shown.Next, err = t.upcoming(ctx, st.Handled, n)
	}
	return shown, err
}

// PutSchedule stores a schedule, in place of one of its name. New times count from now on, and the
// history stays. Refusals are Invalid for a malformed one, and those of its agent.
func (s *Scheduler) PutSchedule(ctx context.Context, ns, name string, d Definition) (Schedule, error) {
	key, err := s.key(ns, name)
	if err != nil {
		return Schedule{}, err
	}
	if d, err = d.withDefaults(); err == nil {
		_, err = timesOf(d, time.Time{})
	}
	if err != nil {
		return Schedule{}, bad("%s", err.Error())
	}
	a, _, err := s.a.Launcher.Definition(ctx, key.Namespace, d.Agent)
	if err != nil {
		return Schedule{}, err
	}
	if strings.TrimSpace(d.Task) == "" && strings.TrimSpace(a.Task) == "" {
		return Schedule{}, refusal.New(refusal.Invalid, refusal.CodeEmptyTask, "task: is empty, and the agent has no task of its own; describe the task")
	}
	for {
		st, revision, err := s.read(ctx, key)
		if err != nil && !errors.Is(err, journal.ErrNotFound) {
			return Schedule{}, err
		}
		if st, err = s.define(ctx, st, key.Name, d); err != nil {
			return Schedule{}, err
		}
		err = s.put(ctx, key, st, revision)
		if repeatable(err) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			err = s.arm(ctx, key)
		}
		if err != nil {
			return Schedule{}, err
		}
		return s.shows(ctx, st, DefaultNext)
	}
}

// define returns a schedule with another definition; old may be nil.
func (s *Scheduler) define(ctx context.Context, old *state, name string, d Definition) (*state, error) {
	now := s.a.Store.Now().UTC().Truncate(time.Millisecond)
	st := old
	if old == nil {
		st = &state{Schedule: Schedule{Name: name, Created: now}, Incarnation: s.a.Store.NewID(), Handled: now, Anchor: now.Truncate(time.Second)}
	} else if was := old.Definition; was.Cron != d.Cron || was.TZ != d.TZ || was.Every != d.Every {
		if err := s.dropDue(ctx, old, now, "the schedule got other times before a gateway saw that it was due"); err != nil {
			return nil, err
		}
		st.Handled, st.Anchor = now, now.Truncate(time.Second)
	}
	st.Definition, st.Updated = d, now
	return st, nil
}

// dropDue puts the firings of a schedule that fires into its history, those that were due by now
// and that no gateway decided on.
func (s *Scheduler) dropDue(ctx context.Context, st *state, now time.Time, reason string) error {
	if st.Paused {
		return nil
	}
	t, err := timesOf(st.Definition, st.Anchor)
	if err != nil { // this process lacks the time zone; it must be able to pause the schedule all the same
		s.cfg.Logger.Warn("the history of a schedule may lack missed firings", "schedule", st.Name, "reason", err)
		return nil
	}
	return st.drop(ctx, t, now, reason)
}

// Schedule returns a schedule with its next firings, so many as n says, 1 to [MaxNext].
func (s *Scheduler) Schedule(ctx context.Context, ns, name string, n int) (Schedule, error) {
	key, err := s.key(ns, name)
	if err != nil {
		return Schedule{}, err
	}
	if n < 1 || n > MaxNext {
		return Schedule{}, refusal.New(refusal.Invalid, refusal.CodeBadParameter, "next: must be 1 to %d", MaxNext)
	}
	st, _, err := s.read(ctx, key)
	if err != nil {
		return Schedule{}, missing(key, err)
	}
	return s.shows(ctx, st, n)
}

// Schedules returns the schedules of a namespace, sorted by name, each with its next firing and
// the last one.
func (s *Scheduler) Schedules(ctx context.Context, ns string) ([]Schedule, error) {
	of, err := s.key(ns, "all") // any name
	if err != nil {
		return nil, err
	}
	keys, err := s.keys(ctx, of.Namespace)
	if err != nil && !errors.Is(err, journal.ErrNotReady) { // without the bucket there is none
		return nil, err
	}
	all := make([]Schedule, 0, len(keys))
	for _, key := range keys {
		st, _, err := s.read(ctx, key)
		if errors.Is(err, journal.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		one, err := s.shows(ctx, st, 1)
		if err != nil {
			return nil, err
		}
		one.History = one.History[:min(1, len(one.History))]
		all = append(all, one)
	}
	return all, nil
}

// RemoveSchedule removes a schedule. Its runs go on; pending firings start none.
func (s *Scheduler) RemoveSchedule(ctx context.Context, ns, name string) error {
	key, err := s.key(ns, name)
	for err == nil {
		var it kv.Item
		if it, err = s.get(ctx, key); err != nil {
			return missing(key, err)
		}
		if err = s.remove(ctx, key, it.Revision); err == nil {
			return s.arm(ctx, key)
		}
		if repeatable(err) {
			err = ctx.Err()
		}
	}
	return err
}

// PauseSchedule stops the firings of a schedule until it is resumed. Waiting ones stay so.
func (s *Scheduler) PauseSchedule(ctx context.Context, ns, name string) (Schedule, error) {
	return s.setPaused(ctx, ns, name, true)
}

// ResumeSchedule lets a paused schedule fire again. What would have been due meanwhile was not
// missed.
func (s *Scheduler) ResumeSchedule(ctx context.Context, ns, name string) (Schedule, error) {
	return s.setPaused(ctx, ns, name, false)
}

func (s *Scheduler) setPaused(ctx context.Context, ns, name string, paused bool) (Schedule, error) {
	key, err := s.key(ns, name)
	if err != nil {
		return Schedule{}, err
	}
	st, err := s.change(ctx, key, func(st *state) (bool, error) {
		changed := st.Paused != paused
		if changed {
			now := s.a.Store.Now().UTC().Truncate(time.Millisecond)
			if err := s.dropDue(ctx, st, now, "the schedule was paused before a gateway saw that it was due"); err != nil {
				return false, err
			}
			st.Paused, st.Updated = paused, now
		}
		if changed && !paused {
			st.Handled = st.Updated
		}
		return changed, nil
	})
	if err == nil {
		err = s.arm(ctx, key)
	}
	if err != nil {
		return Schedule{}, missing(key, err)
	}
	return s.shows(ctx, st, DefaultNext)
}

// RunSchedule starts a run now, whatever the rule for overlaps says, paused or not, and returns
// what became of that firing. An Outcome other than Started has its reason.
func (s *Scheduler) RunSchedule(ctx context.Context, ns, name string) (Firing, error) {
	key, err := s.key(ns, name)
	if err != nil {
		return Firing{}, err
	}
	f := Firing{At: s.a.Store.Now().UTC().Truncate(time.Millisecond), RunID: s.a.Store.NewID(), Outcome: Starting, Manual: true}
	st, err := s.change(ctx, key, func(st *state) (bool, error) {
		if slices.ContainsFunc(st.Pending, func(p Firing) bool { return p.RunID == f.RunID }) {
			return false, nil // the outcome was unknown
		}
		if len(st.Pending) >= maxWaiting {
			return false, refusal.New(refusal.TooMany, refusal.CodeTooManyQueued, "%d firings of the schedule wait for their start; its history says why", len(st.Pending))
		}
		st.Pending = append(st.Pending, f)
		return true, nil
	})
	if err == nil {
		// Should this process die, a gateway starts the run.
		err = s.setAlarm(ctx, key, f.At.Add(runGrace))
	}
	if err == nil { // the other firings are the alarm's: there may be many, and a person waits for this one
		err = s.begin(ctx, key, st, f)
	}
	if err == nil {
		err = s.arm(ctx, key)
	}
	if err == nil {
		st, _, err = s.read(ctx, key)
	}
	if err != nil {
		return f, missing(key, err)
	}
	for _, done := range slices.Concat(st.Pending, st.History) {
		if done.RunID == f.RunID {
			return done, nil
		}
	}
	return f, nil
}

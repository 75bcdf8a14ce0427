package simtest

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// timers are the timers that are set, and those that fired and are not finished. Alarms are
// timers too, with their own consumers. The journal's lock guards them.
type timers struct {
	// due is what the processes share; an item's time is its timer's.
	due *inbox
	// last holds the item of each timer that was set last.
	last map[string]*item
	// nth counts how often each timer was set, tries how often that was tried.
	nth, tries map[string]int
}

func newTimers(key string, c *changed) timers {
	return timers{
		due:  &inbox{key: key, changed: c},
		last: make(map[string]*item), nth: make(map[string]int), tries: make(map[string]int),
	}
}

// SetTimer has the run's timer of that kind fire at the time.
func (p *Process) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	if err := journalcheck.Timer(p.Shards(), run, kind, data); err != nil {
		return err
	}
	return p.changeTimer(ctx, &p.j.timers, journal.Timer{Run: run, Kind: kind, Data: slices.Clone(data)}, at)
}

// CancelTimer takes back a timer that has not fired.
func (p *Process) CancelTimer(ctx context.Context, run events.Run, kind string) error {
	if err := journalcheck.Timer(p.Shards(), run, kind, nil); err != nil {
		return err
	}
	return p.changeTimer(ctx, &p.j.timers, journal.Timer{Run: run, Kind: kind}, time.Time{})
}

// set has a timer fire at the time, in place of one that has not fired.
func (t *timers) set(o Options, timer journal.Timer, at time.Time) {
	key := timerKey(timer)
	t.cancel(key)
	it := &item{timer: &timer, run: key, nth: t.nth[key], due: at, order: t.due.order, left: new(int)}
	*it.left = 1
	t.nth[key]++
	t.due.order++
	if o.happens(o.Faults.Delay, "timer delay", key, it.nth) {
		it.due = it.due.Add(o.part(o.Faults.MaxDelay, "timer delay for", key, it.nth))
	}
	t.last[key] = it
	heap.Push(&t.due.items, it)
	t.due.changed.wake()
}

func timerKey(t journal.Timer) string { return runKey(t.Run.Namespace, t.Run.ID) + "." + t.Kind }

// cancel removes the timer unless it has fired.
func (t *timers) cancel(key string) {
	if it := t.last[key]; it != nil && it.attempt == 0 && it.due.After(time.Now()) {
		t.due.finish(it)
	}
	delete(t.last, key)
}

// changeTimer sets a timer, or cancels it if the time is zero, unless a fault prevents it.
func (p *Process) changeTimer(ctx context.Context, t *timers, timer journal.Timer, to time.Time) error {
	key := timerKey(timer)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("timer %s: %w", key, err)
	}
	at := p.j.timerMoment(t, timer)
	if err := p.crash(at); err != nil {
		return err
	}
	if err := p.j.withTimers(t, key, at.Attempt, func() {
		if to.IsZero() {
			t.cancel(key)
		} else {
			t.set(p.j.opts, timer, to)
		}
	}); err != nil {
		return fmt.Errorf("timer %s: %w", key, err)
	}
	at.Point = AfterTimer
	return p.crash(at)
}

// timerMoment counts a try to change a timer.
func (j *Journal) timerMoment(t *timers, timer journal.Timer) Moment {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := timerKey(timer)
	t.tries[key]++
	return Moment{Point: BeforeTimer, Run: timer.Run, Nth: t.nth[key], Attempt: t.tries[key]}
}

// withTimers makes a change, or loses it or its acknowledgement.
func (j *Journal) withTimers(t *timers, key string, try int, change func()) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.opts.Faults
	if j.opts.happens(f.Lost, "timer lost", key, try) {
		return journal.ErrUnknownOutcome
	}
	change()
	if j.opts.happens(f.UnknownOutcome, "timer in doubt", key, try) {
		return journal.ErrUnknownOutcome
	}
	return nil
}

// ConsumeTimers hands timers that fired to handle until ctx ends. If the process
// dies it returns [ErrCrashed] at once.
func (p *Process) ConsumeTimers(ctx context.Context, slots int, handle func(journal.TimerDelivery)) error {
	if slots < 1 {
		return fmt.Errorf("consume timers: %d slots: at least one is needed", slots)
	}
	return p.consume(ctx, []*inbox{p.j.timers.due}, slots, func(d *delivery) { handle(journal.TimerDelivery{Delivery: d, Timer: *d.it.timer}) })
}

// SetAlarm has the alarm ring at the time, in place of one that has not rung; a zero time
// removes it.
func (p *Process) SetAlarm(ctx context.Context, of ports.AlarmKey, at time.Time) error {
	if !events.ValidToken(of.Namespace) || !events.ValidToken(of.Name) {
		return fmt.Errorf("alarm %q of namespace %q: not tokens", of.Name, of.Namespace)
	}
	timer := journal.Timer{Run: events.Run{Namespace: of.Namespace, ID: of.Name}, Kind: "alarm", Data: []byte(at.Format(time.RFC3339Nano))}
	return p.changeTimer(ctx, &p.j.alarms, timer, at)
}

// ConsumeAlarms hands alarms that rang to handle until ctx ends. If the process dies it returns
// [ErrCrashed] at once.
func (p *Process) ConsumeAlarms(ctx context.Context, slots int, handle func(ports.Alarm)) error {
	if slots < 1 {
		return fmt.Errorf("consume alarms: %d slots: at least one is needed", slots)
	}
	return p.consume(ctx, []*inbox{p.j.alarms.due}, slots, func(d *delivery) {
		t := d.it.timer
		at, _ := time.Parse(time.RFC3339Nano, string(t.Data)) // as SetAlarm writes it
		handle(ports.Alarm{Delivery: d, Of: ports.AlarmKey{Namespace: t.Run.Namespace, Name: t.Run.ID}, At: at})
	})
}

// Timers returns how many timers are set, or fired and not finished.
func (j *Journal) Timers() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.timers.due.items)
}

// HasTimer reports whether the run's timer of that kind is set, or fired and not
// finished.
func (j *Journal) HasTimer(run events.Run, kind string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := timerKey(journal.Timer{Run: run, Kind: kind})
	return slices.ContainsFunc(j.timers.due.items, func(it *item) bool { return it.run == key })
}

package simtest

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// timers are the timers that are set, and those that fired and are not finished.
// The journal's lock guards them.
type timers struct {
	// due is what the processes share; an item's time is its timer's.
	due *inbox
	// set holds the item of each timer that was set last.
	set map[string]*item
	// nth counts how often each timer was set, tries how often that was tried.
	nth, tries map[string]int
}

func newTimers(c *changed) timers {
	return timers{
		due: &inbox{key: "timers", changed: c},
		set: make(map[string]*item), nth: make(map[string]int), tries: make(map[string]int),
	}
}

// SetTimer has the run's timer of that kind fire at the time.
func (p *Process) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	return p.changeTimer(ctx, run, kind, data, func(key string) {
		t := &p.j.timers
		t.cancel(key)
		timer := journal.Timer{Run: run, Kind: kind, Data: slices.Clone(data)}
		it := &item{timer: &timer, run: key, nth: t.nth[key], due: at, order: t.due.order, left: new(int)}
		*it.left = 1
		t.nth[key]++
		t.due.order++
		if o := p.j.opts; o.happens(o.Faults.Delay, "timer delay", key, it.nth) {
			it.due = it.due.Add(o.part(o.Faults.MaxDelay, "timer delay for", key, it.nth))
		}
		t.set[key] = it
		heap.Push(&t.due.items, it)
		t.due.changed.wake()
	})
}

// CancelTimer takes back a timer that has not fired.
func (p *Process) CancelTimer(ctx context.Context, run events.Run, kind string) error {
	return p.changeTimer(ctx, run, kind, nil, p.j.timers.cancel)
}

// cancel removes the timer unless it has fired.
func (t *timers) cancel(key string) {
	if it := t.set[key]; it != nil && it.attempt == 0 && it.due.After(time.Now()) {
		t.due.finish(it)
	}
	delete(t.set, key)
}

// changeTimer does what is to be done to a timer, unless a fault prevents it.
func (p *Process) changeTimer(ctx context.Context, run events.Run, kind string, data []byte, change func(key string)) error {
	if err := journalcheck.Timer(p.Shards(), run, kind, data); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("timer %s of run %s: %w", kind, run.ID, err)
	}
	key := runKey(run.Namespace, run.ID) + "." + kind
	at := p.j.timerMoment(run, key)
	if err := p.crash(at); err != nil {
		return err
	}
	if err := p.j.withTimers(key, at.Attempt, change); err != nil {
		return fmt.Errorf("timer %s of run %s: %w", kind, run.ID, err)
	}
	at.Point = AfterTimer
	return p.crash(at)
}

// timerMoment counts a try to change a timer.
func (j *Journal) timerMoment(run events.Run, key string) Moment {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timers.tries[key]++
	return Moment{Point: BeforeTimer, Run: run, Nth: j.timers.nth[key], Attempt: j.timers.tries[key]}
}

// withTimers makes a change, or loses it or its acknowledgement.
func (j *Journal) withTimers(key string, try int, change func(key string)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.opts.Faults
	if j.opts.happens(f.Lost, "timer lost", key, try) {
		return journal.ErrUnknownOutcome
	}
	change(key)
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
	return p.consume(ctx, []*inbox{p.j.timers.due}, slots, func(d *delivery) { handle(timerDelivery{d}) })
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
	key := runKey(run.Namespace, run.ID) + "." + kind
	return slices.ContainsFunc(j.timers.due.items, func(it *item) bool { return it.run == key })
}

// timerDelivery is a timer in a process's hands.
type timerDelivery struct{ *delivery }

// Timer returns the timer that fired.
func (d timerDelivery) Timer() journal.Timer { return *d.it.timer }

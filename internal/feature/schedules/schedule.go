package schedules

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/events"
)

// Missed says what becomes of firings that were due while no gateway was there.
type Missed string

// What becomes of missed firings: none starts a run, one run is for all of them, or each starts
// its own.
const (
	MissedSkip Missed = "skip"
	MissedOnce Missed = "once"
	MissedAll  Missed = "all"
)

// Overlap says what a firing does while the schedule's last run has not ended.
type Overlap string

// What a firing does then: it starts its run all the same, or starts none, or waits for the end.
const (
	OverlapAllow Overlap = "allow"
	OverlapSkip  Overlap = "skip"
	OverlapQueue Overlap = "queue"
)

// Definition is what a person says of a schedule.
type Definition struct {
	// Cron is an expression of five fields, or @hourly, @daily, @weekly, @monthly or @yearly, in
	// the time zone TZ; Every is an interval. Exactly one of them is set.
	Cron  string          `json:"cron,omitempty" jsonschema:"Minute, hour, day, month and weekday, such as 0 9 * * MON-FRI. Give cron or every."`
	TZ    string          `json:"tz,omitempty" jsonschema:"The time zone of cron, such as Europe/Berlin. Default: UTC."`
	Every events.Duration `json:"every,omitempty" jsonschema:"An interval such as 15m, at least 1s, from when the schedule was put. Give cron or every."`
	// Agent is the name of a stored agent.
	Agent string `json:"agent" jsonschema:"The name of a stored agent. Each run starts with the version that is stored then."`
	// Task is that of each run. Empty: the agent's own.
	Task string `json:"task,omitempty" jsonschema:"The task of each run. Default: the agent's own task."`
	// Labels are those of each run, over those of the agent.
	Labels  events.Labels `json:"labels,omitempty" jsonschema:"Labels of each run. They go before those of the agent, key by key."`
	Missed  Missed        `json:"missed,omitempty" jsonschema:"What to do with firings that are more than a minute late: skip (the default), once or all."`
	Overlap Overlap       `json:"overlap,omitempty" jsonschema:"What to do while the last run has not ended: allow (the default), skip or queue."`
}

// withDefaults returns the definition with its defaults, or what is wrong with it.
func (d Definition) withDefaults() (Definition, error) {
	if d.Missed == "" {
		d.Missed = MissedSkip
	}
	if d.Overlap == "" {
		d.Overlap = OverlapAllow
	}
	switch {
	case !slices.Contains([]Missed{MissedSkip, MissedOnce, MissedAll}, d.Missed):
		return d, fmt.Errorf("missed: %.100q is not a rule; use skip, once or all", d.Missed)
	case !slices.Contains([]Overlap{OverlapAllow, OverlapSkip, OverlapQueue}, d.Overlap):
		return d, fmt.Errorf("overlap: %.100q is not a rule; use allow, skip or queue", d.Overlap)
	case !events.ValidToken(d.Agent):
		return d, fmt.Errorf("agent: %.100q is not the name of an agent", d.Agent)
	case !utf8.ValidString(d.Task):
		return d, fmt.Errorf("task: is not valid UTF-8")
	case len(d.Task) > maxTask:
		return d, fmt.Errorf("task: has %d bytes, at most %d are allowed", len(d.Task), maxTask)
	}
	if err := d.Labels.Check(); err != nil {
		return d, err
	}
	d.Cron = strings.TrimSpace(d.Cron)
	return d, nil
}

// Outcome is what became of a firing.
type Outcome string

// The outcomes. Starting and waiting firings are pending, the others are done.
const (
	// Starting: its run is being started.
	Starting Outcome = "starting"
	// Waiting: it waits for the end of the last run.
	Waiting Outcome = "waiting"
	// Started: its run was started.
	Started Outcome = "started"
	// Missed firings were too late, skipped ones met a run that had not ended.
	WasMissed Outcome = "missed"
	Skipped   Outcome = "skipped"
	// Failed: its run could not be started.
	Failed Outcome = "failed"
)

// Firing is a firing of a schedule and what became of it.
type Firing struct {
	// At is when it was due.
	At      time.Time `json:"at"`
	Outcome Outcome   `json:"outcome" jsonschema:"starting, waiting, started, missed, skipped or failed."`
	RunID   string    `json:"run_id,omitempty"`
	// Reason says why it was not started, or not yet.
	Reason string `json:"reason,omitempty"`
	// Count, if not 0, is how many firings up to At this one stands for.
	Count int `json:"count,omitempty" jsonschema:"How many firings, up to this one, it stands for. Left out for one."`
	// Manual firings were asked for by a person.
	Manual bool `json:"manual,omitempty" jsonschema:"A person asked for it."`
	// Tries counts the attempts to start the run that failed, Next is when it is tried again.
	Tries int       `json:"tries,omitempty" jsonschema:"How often starting the run has failed."`
	Next  time.Time `json:"next_try,omitzero"`
}

// Schedule is a schedule and what it did.
type Schedule struct {
	Name string `json:"name"`
	Definition
	Paused  bool      `json:"paused"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated" jsonschema:"When it was put, paused or resumed last."`
	// Next are the next firings, none of a paused schedule.
	Next []time.Time `json:"next,omitempty" jsonschema:"The next firings; none while it is paused."`
	// Pending are firings whose runs are not started yet, History the last ones, newest first.
	Pending []Firing `json:"pending,omitempty" jsonschema:"Firings whose runs are not started yet."`
	History []Firing `json:"history,omitempty" jsonschema:"The last 50 firings, newest first."`
}

// state is a schedule as it is stored, without Next. Its keys must not change.
type state struct {
	Schedule
	// Incarnation tells apart the schedules that had the name one after another.
	Incarnation string `json:"incarnation"`
	// Anchor is where intervals begin. Firings up to Handled were decided on.
	Anchor  time.Time `json:"anchor"`
	Handled time.Time `json:"handled"`
	// Last is the run that was started last.
	Last string `json:"last,omitempty"`
	// settled are the firings that were put into the history since the schedule was read.
	settled []Firing
}

const (
	// grace is how late a firing may be without being missed.
	grace = time.Minute
	// maxMissed is how many missed firings start runs at most, maxWaiting how many firings wait,
	// maxRound how many are decided on at once, and maxHistory how many are remembered.
	maxMissed  = 1000
	maxWaiting = 100
	maxRound   = 100
	maxHistory = 50
	maxTask    = 256 << 10
	maxReason  = 500
)

// decide decides on the firings that are due at now: it makes them pending, or puts them into the
// history. busy says that the last run has not ended. It returns whether anything changed. After
// it, there may be more to decide. The error is that of ctx, and then nothing has changed.
func (s *state) decide(ctx context.Context, ns string, t times, now time.Time, busy bool) (changed bool, err error) {
	if s.Paused {
		return false, nil
	}
	due, older, err := s.due(ctx, t, now)
	if err != nil {
		return false, err
	}
	if len(due) > 0 {
		s.giveUp(now)
		changed = true
	}
	late := 0
	for late < len(due) && now.Sub(due[late]) > grace {
		late++
	}
	switch {
	case late == 0:
	case s.Missed == MissedAll:
		if older.Count > 0 {
			older.Outcome, older.Reason = WasMissed, fmt.Sprintf("more than %d firings were missed", maxMissed)
			s.remember(older)
		}
	default:
		f := Firing{At: due[late-1], Count: count(late + older.Count)}
		if s.Missed == MissedOnce {
			s.admit(ns, f, busy)
		} else {
			f.Outcome, f.Reason = WasMissed, fmt.Sprintf("more than %s late", grace)
			s.remember(f)
		}
		s.Handled, due = f.At, due[late:]
	}
	for _, at := range due[:min(len(due), maxRound)] {
		s.admit(ns, Firing{At: at}, busy)
		s.Handled = at
	}
	return s.promote(busy) || changed, nil
}

// due returns the firings up to now that were not decided on, at most the last maxMissed, and the
// last of those before them with their number. The error is that of ctx.
func (s *state) due(ctx context.Context, t times, now time.Time) (due []time.Time, older Firing, err error) {
	at := t.next(s.Handled)
	if skipped := int(max(0, now.Sub(at))/max(t.every, minEvery)) - maxMissed; t.every != 0 && skipped > 0 {
		older = Firing{At: at.Add(time.Duration(skipped-1) * t.every), Count: skipped}
		at = t.next(older.At)
	}
	for ; !at.IsZero() && !at.After(now) && ctx.Err() == nil; at = t.next(at) {
		if due = append(due, at); len(due) > maxMissed {
			older.At, due = due[0], due[1:]
			older.Count++
		}
	}
	return due, older, ctx.Err()
}

// drop puts the firings that were due by now and not decided on into the history, since no run
// will be started for them.
func (s *state) drop(ctx context.Context, t times, now time.Time, reason string) error {
	due, older, err := s.due(ctx, t, now)
	if err != nil || len(due) == 0 {
		return err
	}
	f := Firing{At: due[len(due)-1], Outcome: WasMissed, Count: count(len(due) + older.Count), Reason: reason}
	s.Handled = f.At
	s.remember(f)
	return nil
}

// admit makes a firing pending, or skips it.
func (s *state) admit(ns string, f Firing, busy bool) {
	waiting := s.pending(Waiting)
	busy = busy || len(s.Pending) > 0
	f.Outcome, f.RunID = Starting, runID(ns, s.Name, s.Incarnation, f.At)
	switch {
	case !busy || s.Overlap == OverlapAllow:
		s.Pending = append(s.Pending, f)
		return
	case s.Overlap == OverlapQueue && waiting < maxWaiting:
		f.Outcome = Waiting
		s.Pending = append(s.Pending, f)
		return
	case s.Overlap == OverlapQueue:
		f.Reason = fmt.Sprintf("%d firings wait already", waiting)
	default:
		f.Reason = "the last run had not ended"
	}
	f.Outcome, f.RunID = Skipped, ""
	s.remember(f)
}

func (s *state) pending(o Outcome) (n int) {
	for _, f := range s.Pending {
		if f.Outcome == o {
			n++
		}
	}
	return n
}

// promote lets the first waiting firing start if nothing keeps it, or all where they may overlap.
func (s *state) promote(busy bool) (changed bool) {
	for i := range s.Pending {
		f := &s.Pending[i]
		if f.Outcome == Waiting && (s.Overlap == OverlapAllow || !busy && s.pending(Starting) == 0) {
			f.Outcome, changed = Starting, true
		}
	}
	return changed
}

// giveUp ends the attempts to start runs of earlier firings, now that another one is due.
func (s *state) giveUp(now time.Time) {
	for _, f := range slices.Clone(s.Pending) {
		if f.Outcome == Starting && f.Tries > 0 && now.Sub(f.At) > grace {
			f.Outcome = Failed
			s.settle(f)
		}
	}
}

// settle replaces the pending firing of the same run by what became of it. It returns whether
// there is one.
func (s *state) settle(f Firing) bool {
	i := slices.IndexFunc(s.Pending, func(p Firing) bool { return p.RunID == f.RunID })
	if i < 0 {
		return false
	}
	if f.Outcome == Starting {
		s.Pending[i] = f
		return true
	}
	s.Pending = slices.Delete(s.Pending, i, i+1)
	if f.Outcome == Started {
		s.Last, f.Reason = f.RunID, ""
	}
	f.Tries, f.Next = 0, time.Time{}
	s.remember(f)
	return true
}

// remember puts a firing into the history. Firings that were missed or skipped one after another
// for one reason are one entry.
func (s *state) remember(f Firing) {
	s.settled = append(s.settled, f)
	if len(s.History) > 0 && f.RunID == "" {
		if last := &s.History[0]; last.Outcome == f.Outcome && last.Reason == f.Reason && last.RunID == "" {
			last.At, last.Count = f.At, max(1, last.Count)+max(1, f.Count)
			return
		}
	}
	s.History = slices.Insert(s.History, 0, f)
	s.History = s.History[:min(len(s.History), maxHistory)]
}

// count returns the Count of a firing that stands for n.
func count(n int) int {
	if n == 1 {
		return 0
	}
	return n
}

// wake returns when there is something to do next; zero: never.
func (s *state) wake(t times, now time.Time, recheck time.Duration) (at time.Time) {
	earlier := func(other time.Time) {
		if !other.IsZero() && (at.IsZero() || other.Before(at)) {
			at = other
		}
	}
	if !s.Paused {
		earlier(t.next(s.Handled))
	}
	for _, f := range s.Pending {
		switch {
		case f.Outcome == Waiting && !s.Paused:
			earlier(now.Add(recheck))
		case f.Outcome == Starting && f.Next.IsZero():
			earlier(now)
		case f.Outcome == Starting:
			earlier(f.Next)
		}
	}
	return at
}

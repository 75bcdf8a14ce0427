package sim

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/feature/schedules"
	"github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/pkg/events"
)

// scheduleSpec is a schedule and what its owner does to it.
type scheduleSpec struct {
	Name       string               `json:"name"`
	Definition schedules.Definition `json:"definition"`
	// At is when it is put, Until when its owner is done with it and pauses or removes it.
	At, Until time.Duration
	Removed   bool      `json:"removed"`
	Acts      []actSpec `json:"acts"`
	Chance    uint64    `json:"chance"`
}

// The kinds of acts of an owner, besides actPause.
const (
	actPut = "put"
	actRun = "run"
)

// schedule draws schedules, which one of seven scenarios has in place of some runs, and absences
// of all gateways, for which firings are late.
func (s *scenario) schedule(d draw) {
	if !d.oneIn(7) {
		return
	}
	s.Runs = s.Runs[:min(len(s.Runs), 2)]
	for i := range 1 + d.IntN(2) {
		p := scheduleSpec{Name: "ticks" + string('a'+rune(i)), At: d.upTo(3 * time.Second), Removed: d.oneIn(3), Chance: d.Uint64()}
		p.Definition = schedules.Definition{
			Every: events.Duration(time.Duration(3+d.IntN(12)) * time.Second), Agent: "helper", Task: "Do it.",
			Missed:  []schedules.Missed{schedules.MissedSkip, schedules.MissedOnce, schedules.MissedAll}[d.IntN(3)],
			Overlap: []schedules.Overlap{schedules.OverlapAllow, schedules.OverlapAllow, schedules.OverlapSkip, schedules.OverlapQueue}[d.IntN(4)],
		}
		p.Until = time.Duration(p.Definition.Every) * time.Duration(2+d.IntN(6))
		if d.oneIn(4) {
			p.Definition.Every, p.Definition.Cron, p.Until = 0, "* * * * *", 2*time.Minute+d.upTo(time.Minute)
		}
		for range d.IntN(3) {
			act := actSpec{At: d.upTo(p.Until), Kind: []string{actPause, actRun, actPut}[d.IntN(3)], For: d.upTo(20 * time.Second)}
			p.Acts = append(p.Acts, act)
		}
		s.Schedules = append(s.Schedules, p)
	}
	if s.CrashOneIn > 0 && d.oneIn(3) {
		s.away(roleGateway, d.upTo(20*time.Second), time.Minute+d.upTo(30*time.Second), d)
	}
}

// owner is who put a schedule. It is over when nothing more is to come of it.
type owner struct {
	*person
	spec *scheduleSpec
	// spans are when the schedule fires: from, to.
	spans [][2]asked
	// first is the first firing, shown the schedule as it was read last.
	first time.Time
	shown schedules.Schedule
	// runs counts the runs that a person asked for.
	runs int
}

// asked is when an answer was asked for and came. What was asked happened between.
type asked struct{ from, to time.Time }

func newOwner(w *world, spec *scheduleSpec) *owner {
	return &owner{spec: spec, person: &person{w: w, spec: &runSpec{ID: spec.Name}, rand: rand.New(rand.NewPCG(spec.Chance, 2))}}
}

// request asks gateways for something until one answers.
func (o *owner) request(ctx context.Context, do func(s *schedules.Scheduler) error, codes ...string) asked {
	began := time.Now().UTC().Round(0)
	o.askAt(ctx, func(at *process) error { return do(at.scheduler) }, codes...)
	return asked{began, time.Now().UTC().Round(0)}
}

func (o *owner) put(ctx context.Context) asked {
	return o.request(ctx, func(s *schedules.Scheduler) (err error) {
		o.shown, err = s.PutSchedule(ctx, "", o.spec.Name, o.spec.Definition)
		return err
	})
}

func (o *owner) begin(at asked) { o.spans = append(o.spans, [2]asked{at}) }

// pause pauses the schedule, unless it is over.
func (o *owner) pause(ctx context.Context) {
	o.spans[len(o.spans)-1][1] = o.request(ctx, func(s *schedules.Scheduler) error {
		_, err := s.PauseSchedule(ctx, "", o.spec.Name)
		return err
	})
}

// live does what the spec says, and waits until no more runs are started.
func (o *owner) live(ctx context.Context) {
	sleep(ctx, o.spec.At)
	put := o.put(ctx)
	if ctx.Err() != nil || len(o.shown.Next) == 0 {
		return // it is violated already
	}
	o.begin(put)
	if o.first = o.shown.Next[0]; o.spec.Definition.Cron == "" && o.first.Sub(put.from.Truncate(time.Second))%o.every() > put.to.Sub(put.from)+time.Second {
		o.w.audit.violate(o.spec.Name, "schedule", "it was put from %s to %s, and fires first at %s", put.from, put.to, o.first)
	}
	began := time.Now()
	acts := slices.SortedFunc(slices.Values(o.spec.Acts), func(a, b actSpec) int { return int(a.At - b.At) })
	for _, act := range acts {
		sleep(ctx, act.At-time.Since(began))
		switch act.Kind {
		case actPut:
			o.put(ctx)
		case actRun:
			o.request(ctx, func(s *schedules.Scheduler) error {
				_, err := s.RunSchedule(ctx, "", o.spec.Name)
				return err
			})
			o.runs++
		case actPause:
			o.pause(ctx)
			sleep(ctx, act.For)
			o.begin(o.request(ctx, func(s *schedules.Scheduler) error {
				_, err := s.ResumeSchedule(ctx, "", o.spec.Name)
				return err
			}))
		}
	}
	sleep(ctx, o.spec.Until-time.Since(began))
	if o.spec.Removed {
		o.spans[len(o.spans)-1][1] = o.request(ctx, func(s *schedules.Scheduler) error { return s.RemoveSchedule(ctx, "", o.spec.Name) }, row.CodeScheduleNotFound)
		return
	}
	o.pause(ctx)
	for o.starting(ctx) && ctx.Err() == nil {
		sleep(ctx, time.Second)
	}
	if ctx.Err() != nil {
		o.w.audit.violate(o.spec.Name, "schedule", "after %s firings are pending: %+v", patience, o.shown.Pending)
	}
}

// starting reports whether runs of the schedule are being started.
func (o *owner) starting(ctx context.Context) bool {
	o.request(ctx, func(s *schedules.Scheduler) (err error) {
		o.shown, err = s.Schedule(ctx, "", o.spec.Name, 1)
		return err
	})
	return slices.ContainsFunc(o.shown.Pending, func(f schedules.Firing) bool { return f.Outcome == schedules.Starting })
}

// every is the time between two firings.
func (o *owner) every() time.Duration {
	if o.spec.Definition.Cron != "" {
		return time.Minute
	}
	return time.Duration(o.spec.Definition.Every)
}

// grid returns the firings that the schedule has between two times.
func (o *owner) grid(from, to time.Time) (all []time.Time) {
	every, at := o.every(), from.UTC().Truncate(time.Minute)
	if o.spec.Definition.Cron == "" {
		at = o.first.Add(from.Sub(o.first).Truncate(every) - every)
	}
	for ; !at.After(to); at = at.Add(every) {
		if at.After(from) {
			all = append(all, at)
		}
	}
	return all
}

// scheduledRun is a run that the schedule started.
type scheduledRun struct {
	id             string
	at             time.Time
	started, ended time.Time
	manual         bool
}

// started returns the runs that the schedule started, in the order in which they began.
func (o *owner) started() (all []scheduledRun) {
	a := o.w.audit
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, r := range a.runs {
		var origin schedules.Origin
		if json.Unmarshal(r.mem.Custom[schedules.OriginKey], &origin) == nil && origin.Name == o.spec.Name {
			manual := id[9:13] == o.w.seedPart() // it has an id of a process
			all = append(all, scheduledRun{id, origin.At.UTC(), r.records[0].Stored, r.records[len(r.records)-1].Stored, manual})
		}
	}
	slices.SortFunc(all, func(x, y scheduledRun) int { return x.started.Compare(y.started) })
	return all
}

// check compares the log and the history with the times at which the schedule had to fire.
func (o *owner) check() {
	fail := func(format string, args ...any) { o.w.audit.violate(o.spec.Name, "schedule", format, args...) }
	runs := o.started()
	fired := map[time.Time]int{}
	var last time.Time // the end of the run before
	alone := o.spec.Definition.Overlap != schedules.OverlapAllow && o.runs == 0
	for _, r := range runs {
		if r.manual {
			continue
		}
		if fired[r.at]++; fired[r.at] > 1 {
			fail("the firing of %s started %d runs", r.at, fired[r.at])
		}
		if r.started.Before(r.at) {
			fail("run %s was started at %s, before its time %s", r.id, r.started, r.at)
		}
		if alone && r.started.Before(last) {
			fail("run %s was started at %s, before the run before it ended at %s", r.id, r.started, last)
		}
		last = r.ended
	}
	sure, possible := o.due()
	for at := range fired {
		if !contains(possible, at) {
			fail("a run was started for %s, when the schedule did not fire; it fired at %v", at, possible)
		}
	}
	if o.w.scenario.calm() && o.spec.Definition.Overlap == schedules.OverlapAllow {
		for _, at := range sure {
			if fired[at] == 0 {
				fail("nothing goes wrong, and the firing of %s started no run", at)
			}
		}
	}
	const history = 50 // so many firings are in it at most
	if !o.spec.Removed && len(o.shown.History) < history {
		o.accounts(runs, len(sure), len(possible), fail)
	}
}

// due returns the firings that the schedule had for sure, and those that it may have had while
// its owner waited for an answer.
func (o *owner) due() (sure, possible []time.Time) {
	for _, span := range o.spans {
		sure = append(sure, o.grid(span[0].to, span[1].from.Add(-time.Millisecond))...)
		possible = append(possible, o.grid(span[0].from.Add(-time.Second), span[1].to)...)
	}
	return sure, possible
}

// accounts compares the history with the runs, and the number of its firings with that of those
// that were due.
func (o *owner) accounts(runs []scheduledRun, sure, possible int, fail func(format string, args ...any)) {
	history := map[string]schedules.Firing{}
	fired, manual := 0, 0
	for _, f := range slices.Concat(o.shown.History, o.shown.Pending) {
		if f.RunID != "" {
			history[f.RunID] = f
		}
		if f.Manual {
			manual++
			continue
		}
		fired += max(1, f.Count)
		d := o.spec.Definition
		switch {
		case f.Outcome == schedules.Skipped && d.Overlap == schedules.OverlapSkip:
		case f.Outcome == schedules.WasMissed && strings.Contains(f.Reason, "paused before"):
		case f.Outcome == schedules.WasMissed && d.Missed == schedules.MissedSkip && !o.w.scenario.calm():
		case f.Outcome == schedules.Failed && slices.ContainsFunc(nobodyUp, func(code string) bool { return strings.Contains(f.Reason, code) }):
		case f.Outcome == schedules.Waiting && d.Overlap == schedules.OverlapQueue:
		case f.Outcome == schedules.Started:
		default:
			fail("the firing of %s is %s (%s), and the schedule is %+v", f.At, f.Outcome, f.Reason, d)
		}
	}
	if manual < o.runs {
		fail("a person asked %d times for a run, and the history has %d of them: %+v", o.runs, manual, o.shown)
	}
	if fired < sure || fired > possible {
		fail("%d firings are in the history, and %d to %d were due: %+v", fired, sure, possible, o.shown)
	}
	for _, r := range runs {
		if f := history[r.id]; f.Outcome != schedules.Started || !f.At.Equal(r.at) {
			fail("run %s of %s is in the history as %+v", r.id, r.at, f)
		}
		delete(history, r.id)
	}
	for id, f := range history {
		if f.Outcome == schedules.Started {
			fail("the history has run %s, which is not there: %+v", id, f)
		}
	}
}

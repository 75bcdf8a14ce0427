package schedules_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/feature/schedules"
	"github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// These tests use a real server and real time. What they wait for has a minute.

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Those that run beside others wait for a server or a clock most of the time.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// rig is a controller with schedules that runs on a bus, and the rest of the world.
type rig struct {
	controltest.World
	*control.Controller
	*schedules.Scheduler
	// stop ends both.
	stop func()
}

func newRig(t *testing.T, b journal.Bus, tweak func(*control.Config)) *rig {
	cfg := control.Config{
		Base:   worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Instance: "test"},
		Timers: b, KV: b, Alarms: b.(ports.Alarms),
	}
	if tweak != nil {
		tweak(&cfg)
	}
	c, err := control.New(cfg)
	require.NoError(t, err)
	c.Admission = control.Unbounded{}
	s := schedules.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.RunAll(ctx, c.Run, s.Run) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return &rig{controltest.NewWorld(t, b), c, s, stop}
}

func natsBus(t *testing.T) journal.Bus {
	return controltest.NATS(t, natsbus.InitOptions{AckWait: time.Second})
}

// scheduling is a controller with schedules, and an agent that it can start.
func scheduling(t *testing.T, b journal.Bus) *rig {
	r := newRig(t, b, nil)
	require.NoError(t, announce.NewDirectory(b, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
	r.putAgent("reporter", "openai")
	return r
}

func (r *rig) putAgent(name, provider string) {
	r.T.Helper()
	_, err := r.PutAgent(r.T.Context(), "", name, []byte("{name: "+name+", llm: {provider: "+provider+"}}"), agentfile.YAML)
	require.NoError(r.T, err)
}

func every(d time.Duration) schedules.Definition {
	return schedules.Definition{Every: events.Duration(d), Agent: "reporter", Task: "Report.", Labels: events.Labels{"from": "schedule"}}
}

func (r *rig) put(name string, d schedules.Definition) schedules.Schedule {
	r.T.Helper()
	s, err := r.PutSchedule(r.T.Context(), "", name, d)
	require.NoError(r.T, err)
	return s
}

// history returns the firings of a schedule in the order of their times, when they fulfil a condition.
func (r *rig) history(name, what string, until func(all []schedules.Firing, pending int) bool) []schedules.Firing {
	r.T.Helper()
	var all []schedules.Firing
	require.Eventually(r.T, func() bool {
		s, err := r.Schedule(r.T.Context(), "", name, 1)
		require.NoError(r.T, err)
		all = slices.Clone(s.History)
		slices.SortFunc(all, func(x, y schedules.Firing) int { return x.At.Compare(y.At) })
		return until(all, len(s.Pending))
	}, controltest.Patience, 20*time.Millisecond, "%s: %v", what, &all)
	return all
}

func atLeast(n int) func([]schedules.Firing, int) bool {
	return func(all []schedules.Firing, _ int) bool { return len(all) >= n }
}

// requireRuns demands that each firing of an interval started one run, and nothing else did.
func (r *rig) requireRuns(name string, interval time.Duration, all []schedules.Firing) {
	r.T.Helper()
	for i, f := range all {
		require.Equal(r.T, schedules.Started, f.Outcome, "%+v", f)
		if i > 0 {
			require.Equal(r.T, interval, f.At.Sub(all[i-1].At), "no firing is left out, none comes twice: %+v", all)
		}
		mem := r.Fold(f.RunID)
		require.Equal(r.T, "Report.", mem.Task)
		require.Equal(r.T, events.Labels{"from": "schedule"}, mem.Control.Labels)
		var from schedules.Origin
		require.NoError(r.T, json.Unmarshal(mem.Custom[schedules.OriginKey], &from))
		require.Equal(r.T, name, from.Name)
		require.True(r.T, f.At.Equal(from.At))
		require.Equal(r.T, "Start", r.Types(f.RunID)[0])
	}
}

// beforePause leaves out what was due when a schedule was paused, and not decided on.
func beforePause(all []schedules.Firing) []schedules.Firing {
	if last := len(all) - 1; all[last].Outcome == schedules.WasMissed {
		return all[:last]
	}
	return all
}

// runs returns how many runs of the agent there are.
func (r *rig) runs() int {
	r.T.Helper()
	page, err := r.Runs(r.T.Context(), "", list.Query{Limit: 1000})
	require.NoError(r.T, err)
	return len(page.Runs)
}

// Two gateways serve the same schedule.
func TestScheduleFires(t *testing.T) {
	t.Parallel()
	b := natsBus(t)
	r := scheduling(t, b)
	newRig(t, b, nil)
	put := time.Now()
	s := r.put("ticks", every(time.Second))
	require.Len(t, s.Next, schedules.DefaultNext)
	all := r.history("ticks", "three firings", atLeast(3))
	require.WithinRange(t, all[0].At, put.Add(-time.Second), put.Add(2*time.Second))
	paused, err := r.PauseSchedule(t.Context(), "", "ticks")
	require.NoError(t, err)
	require.True(t, paused.Paused)
	require.Empty(t, paused.Next)
	all = r.history("ticks", "what was pending is done", func(_ []schedules.Firing, pending int) bool { return pending == 0 })
	all = beforePause(all)
	r.requireRuns("ticks", time.Second, all)
	require.Equal(t, len(all), r.runs())

	manual, err := r.RunSchedule(t.Context(), "", "ticks")
	require.NoError(t, err)
	require.Equal(t, schedules.Started, manual.Outcome)
	require.True(t, manual.Manual)
	require.Equal(t, "Report.", r.Fold(manual.RunID).Task)
	require.Equal(t, len(all)+1, r.runs(), "nothing else started while it was paused")

	resumed, err := r.ResumeSchedule(t.Context(), "", "ticks")
	require.NoError(t, err)
	require.False(t, resumed.Next[0].Before(resumed.Updated), "what would have been due was not missed")
	r.history("ticks", "it fires again", atLeast(len(all)+2))
	require.NoError(t, r.RemoveSchedule(t.Context(), "", "ticks"))
	_, err = r.Schedule(t.Context(), "", "ticks", 1)
	require.True(t, refusal.Is(err, row.CodeScheduleNotFound), "%v", err)
	left, err := r.Schedules(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, left)
}

// Who runs a schedule waits for that run alone, not for those that are due.
func TestRunNowComesFirst(t *testing.T) {
	t.Parallel()
	r := scheduling(t, natsBus(t))
	s := r.put("ticks", every(time.Second))
	r.stop()
	before := r.runs()
	<-time.After(time.Until(s.Next[schedules.DefaultNext-1])) // now several are due
	manual, err := r.RunSchedule(t.Context(), "", "ticks")
	require.NoError(t, err)
	require.Equal(t, schedules.Started, manual.Outcome)
	require.Equal(t, before+1, r.runs())
}

// Firings that were due while no gateway was there are in the history, also when the schedule is
// then paused or gets other times.
func TestChangesWhileGatewaysAreAway(t *testing.T) {
	t.Parallel()
	r := scheduling(t, natsBus(t))
	r.stop()
	d := every(time.Second)
	d.Missed = schedules.MissedAll
	r.put("pauses", d)
	changes := r.put("changes", d)
	require.Eventually(t, func() bool { return time.Now().After(changes.Next[1]) }, controltest.Patience, 10*time.Millisecond, "two are due")
	paused, err := r.PauseSchedule(t.Context(), "", "pauses")
	require.NoError(t, err)
	d.Every = events.Duration(time.Hour)
	for reason, s := range map[string]schedules.Schedule{"was paused": paused, "got other times": r.put("changes", d)} {
		require.Len(t, s.History, 1)
		require.Equal(t, schedules.WasMissed, s.History[0].Outcome)
		require.GreaterOrEqual(t, s.History[0].Count, 2)
		require.Contains(t, s.History[0].Reason, reason)
		require.Empty(t, s.Pending)
	}
	resumed, err := r.ResumeSchedule(t.Context(), "", "pauses")
	require.NoError(t, err)
	require.Equal(t, paused.History, resumed.History)
}

// Another definition counts at once, and the old alarm does nothing.
func TestScheduleIsReplaced(t *testing.T) {
	t.Parallel()
	r := scheduling(t, natsBus(t))
	first := r.put("report", every(30*time.Second))
	d := every(time.Hour)
	second := r.put("report", d)
	require.Equal(t, first.Created, second.Created)
	d.Every = events.Duration(3 * time.Second)
	third := r.put("report", d)
	all := r.history("report", "it fires", atLeast(1))
	require.True(t, third.Next[0].Equal(all[0].At), "by the last definition: %v, %v", third.Next[0], all)

	d.Task = "Report more."
	changed := r.put("report", d)
	before := len(changed.History)
	require.Equal(t, all[0].RunID, changed.History[before-1].RunID, "the history stays")
	require.Zero(t, changed.Next[0].Sub(third.Next[0])%(3*time.Second), "another task changes no times")
	all = r.history("report", "it fires again", atLeast(before+1))
	require.Equal(t, "Report more.", r.Fold(all[before].RunID).Task)
}

// A queued firing starts when the run before it ends, without waiting for the recheck; a skipped
// one does not.
func TestScheduleOverlaps(t *testing.T) {
	t.Parallel()
	r := scheduling(t, natsBus(t))
	d := every(time.Second)
	d.Overlap = schedules.OverlapSkip
	r.put("skips", d)
	d.Overlap = schedules.OverlapQueue
	r.put("queues", d)
	skips := r.history("skips", "it skips two", func(all []schedules.Firing, _ int) bool { return len(all) == 2 && all[1].Count >= 2 })
	require.Equal(t, []schedules.Outcome{schedules.Started, schedules.Skipped}, []schedules.Outcome{skips[0].Outcome, skips[1].Outcome})
	require.Equal(t, "the last run had not ended", skips[1].Reason)
	queues := r.history("queues", "it starts one", atLeast(1))
	require.Eventually(t, func() bool {
		s, err := r.Schedule(t.Context(), "", "queues", 1)
		return err == nil && len(s.Pending) >= 2
	}, controltest.Patience, 20*time.Millisecond)
	require.Len(t, r.history("queues", "the others wait", atLeast(1)), 1)
	_, err := r.PauseSchedule(t.Context(), "", "skips")
	require.NoError(t, err)

	r.Happens(skips[0].RunID, events.Planning, controltest.Answered("Done."))
	_, err = r.ResumeSchedule(t.Context(), "", "skips")
	require.NoError(t, err)
	for n := 1; n <= 3; n++ {
		ended := time.Now()
		r.Happens(queues[n-1].RunID, events.Planning, controltest.Answered("Done."))
		queues = r.history("queues", "the next one starts", atLeast(n+1))
		require.Less(t, time.Since(ended), 10*time.Second, "its end was heard")
		require.Len(t, queues, n+1)
	}
	r.requireRuns("queues", time.Second, queues)
	r.history("skips", "it starts another one", func(all []schedules.Firing, _ int) bool {
		return slices.ContainsFunc(all[1:], func(f schedules.Firing) bool { return f.Outcome == schedules.Started })
	})
}

// Where starting fails for a while it is tried again; where it fails for good the history says why.
func TestScheduleCannotStart(t *testing.T) {
	t.Parallel()
	b := natsBus(t)
	r := newRig(t, b, nil)
	r.putAgent("reporter", "openai") // nobody announces its provider yet
	d := every(time.Hour)
	r.put("patient", d)
	f, err := r.RunSchedule(t.Context(), "", "patient")
	require.NoError(t, err)
	require.Equal(t, schedules.Starting, f.Outcome)
	require.Contains(t, f.Reason, refusal.CodePending)
	require.NoError(t, announce.NewDirectory(b, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
	all := r.history("patient", "it starts after all", atLeast(1))
	require.Equal(t, f.RunID, all[0].RunID)
	require.Equal(t, schedules.Started, all[0].Outcome)

	_, err = r.PutAgent(t.Context(), "", "lost", []byte("{name: lost, llm: {provider: openai}, tools: [nowhere]}"), agentfile.YAML)
	require.NoError(t, err)
	d.Agent = "lost"
	r.put("failing", d)
	f, err = r.RunSchedule(t.Context(), "", "failing")
	require.NoError(t, err)
	require.Equal(t, schedules.Failed, f.Outcome)
	require.Contains(t, f.Reason, refusal.CodeUnknownTool)
	require.Equal(t, 1, r.runs())
}

func TestScheduleRefusals(t *testing.T) {
	t.Parallel()
	r := scheduling(t, natsBus(t))
	ctx := t.Context()
	for code, change := range map[string]func(*schedules.Definition){
		row.CodeBadSchedule:       func(d *schedules.Definition) { d.Cron = "* * * * *" },
		refusal.CodeAgentNotFound: func(d *schedules.Definition) { d.Agent = "nobody" },
		refusal.CodeEmptyTask:     func(d *schedules.Definition) { d.Task = " " },
	} {
		d := every(time.Hour)
		change(&d)
		_, err := r.PutSchedule(ctx, "", "x", d)
		require.True(t, refusal.Is(err, code), "%v", err)
	}
	_, err := r.PutSchedule(ctx, "", "Not a name", every(time.Hour))
	require.True(t, refusal.Is(err, row.CodeBadSchedule), "%v", err)
	_, err = r.PutSchedule(ctx, "Not a name", "x", every(time.Hour))
	require.True(t, refusal.Is(err, refusal.CodeBadNamespace), "%v", err)
	for _, err := range []error{
		r.RemoveSchedule(ctx, "", "none"),
		second(r.PauseSchedule(ctx, "", "none")), second(r.ResumeSchedule(ctx, "", "none")), second(r.RunSchedule(ctx, "", "none")),
	} {
		require.True(t, refusal.Is(err, row.CodeScheduleNotFound), "%v", err)
	}
	r.put("x", every(time.Hour))
	_, err = r.Schedule(ctx, "", "x", schedules.MaxNext+1)
	require.True(t, refusal.Is(err, refusal.CodeBadParameter), "%v", err)
	_, err = r.Schedule(ctx, "other", "x", 1)
	require.True(t, refusal.Is(err, row.CodeScheduleNotFound), "namespaces keep apart: %v", err)
}

func second[T any](_ T, err error) error { return err }

var errDied = errors.New("this process has died")

// dying is what a process sees of the bus that dies at its n-th call: neither that call nor any
// later one does anything.
type dying struct {
	kv.Store
	ports.Alarms
	left atomic.Int64
	died chan struct{}
}

func (d *dying) step() error {
	switch left := d.left.Add(-1); {
	case left == 0:
		close(d.died)
		return errDied
	case left < 0:
		return errDied
	}
	return nil
}

func (d *dying) Get(ctx context.Context, of kv.Bucket, key string) (kv.Item, error) {
	if of.Name == row.Bucket.Name {
		if err := d.step(); err != nil {
			return kv.Item{}, err
		}
	}
	return d.Store.Get(ctx, of, key)
}

func (d *dying) Update(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	if err := d.step(); err != nil {
		return 0, err
	}
	return d.Store.Update(ctx, of, it)
}

func (d *dying) SetAlarm(ctx context.Context, of ports.AlarmKey, at time.Time) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.Alarms.SetAlarm(ctx, of, at)
}

func (d *dying) ConsumeAlarms(ctx context.Context, slots int, handle func(ports.Alarm)) error {
	return d.Alarms.ConsumeAlarms(ctx, slots, func(a ports.Alarm) {
		a.Delivery = unfinished{a.Delivery, d}
		handle(a)
	})
}

// unfinished is an alarm that a dead process neither acknowledges nor gives back.
type unfinished struct {
	journal.Delivery
	d *dying
}

func (m unfinished) Ack() error {
	if m.d.left.Load() <= 0 {
		return errDied
	}
	return m.Delivery.Ack()
}

func (m unfinished) Retry(delay time.Duration) error {
	if m.d.left.Load() <= 0 {
		return errDied
	}
	return m.Delivery.Retry(delay)
}

// A gateway dies at each of its steps; the next one continues, and each firing has its one run.
func TestScheduleOutlivesGateways(t *testing.T) {
	t.Parallel()
	for n := int64(1); n <= 14; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			b := natsBus(t)
			require.NoError(t, announce.NewDirectory(b, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
			d := &dying{Store: b, Alarms: b.(ports.Alarms), died: make(chan struct{})}
			d.left.Store(1 << 40)
			first := newRig(t, b, func(cfg *control.Config) { cfg.KV, cfg.Alarms = d, d })
			first.putAgent("reporter", "openai")
			first.put("ticks", every(time.Second))
			d.left.Store(n)
			<-d.died
			first.stop()
			r := newRig(t, b, nil)
			r.history("ticks", "it goes on", atLeast(3))
			_, err := r.PauseSchedule(t.Context(), "", "ticks")
			require.NoError(t, err)
			r.stop()
			all := beforePause(r.history("ticks", "as it is", atLeast(3)))
			s, err := r.Schedule(t.Context(), "", "ticks", 1)
			require.NoError(t, err)
			r.requireRuns("ticks", time.Second, all)
			require.LessOrEqual(t, r.runs(), len(all)+len(s.Pending))
			require.GreaterOrEqual(t, r.runs(), len(all))
		})
	}
}

package sim

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/feature/schedules"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// census counts what the scenarios came to, so that one can see what they
// reach.
type census struct {
	mu     sync.Mutex
	played int
	// seen is in how many scenarios each of the sought things came up.
	seen    map[string]int
	crashes int
	stored  int
	events  map[events.Type]int
	ends    map[events.State]int
	// codes counts the codes of results and of the ends of runs.
	codes     map[string]int
	snapshots int
	// batches counts what batches of several runs came to.
	batches map[string]int
	// fetched counts what fetches came to, and the scenarios that have none.
	fetched map[string]int
	// followed counts the effects that were decided without a delivery.
	followed map[string]int
}

func (c *census) add(w *world) {
	w.audit.mu.Lock()
	defer w.audit.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.played++
	one := map[string]bool{"a snapshot": w.audit.snapshots > 0, carriedWake: w.audit.carried > 0, ledEvent: w.audit.led > 0}
	c.crashes += w.scenario.MostCrashes - int(max(w.crashes.Load(), 0))
	c.stored += len(w.audit.records)
	if c.ends == nil {
		c.seen, c.ends, c.codes, c.batches, c.fetched = map[string]int{}, map[events.State]int{}, map[string]int{}, map[string]int{}, map[string]int{}
		c.followed = map[string]int{}
	}
	c.snapshots += w.audit.snapshots
	w.mu.Lock()
	for outcome, n := range w.batches {
		c.batches[outcome] += n
		one["batch: "+outcome] = true
	}
	for outcome, n := range w.fetched {
		c.fetched[outcome] += n
		one["fetch: "+outcome] = true
	}
	for kind, n := range w.followed {
		c.followed[kind] += n
		one["followed: "+kind] = true
	}
	for _, o := range w.owners {
		for _, f := range slices.Concat(o.shown.Pending, o.shown.History) {
			one["firing: "+string(f.Outcome)] = true
		}
	}
	for _, r := range w.receivers {
		one["notice: "+noticeCame] = one["notice: "+noticeCame] || len(r.got) > 0
		one["notice: "+noticeAgain] = one["notice: "+noticeAgain] || r.repeats > 0
		one["notice: "+noticeFailed] = one["notice: "+noticeFailed] || r.tries > len(r.got)+r.repeats
	}
	if !w.scenario.Fetches {
		c.fetched[fetchHidden]++
		one["fetch: "+fetchHidden] = true
	}
	w.mu.Unlock()
	for _, r := range w.audit.runs {
		c.ends[r.mem.State]++
		if r.mem.Error != nil {
			c.codes[r.mem.Error.Code]++
			one["code "+r.mem.Error.Code] = true
		}
		for code, n := range r.codes {
			c.codes[code] += n
			one["code "+code] = true
		}
		for i := range r.mem.Trace {
			c.events[events.Type(r.mem.Trace[i].Event)]++
			one[r.mem.Trace[i].Event] = true
		}
	}
	for thing, came := range one {
		if came {
			c.seen[thing]++
		}
	}
}

// String says it in a few lines.
func (c *census) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d events, %d crashes, %d snapshots, runs %v, codes %v, batches %v, fetches %v, followed %v\n",
		c.stored, c.crashes, c.snapshots, c.ends, c.codes, c.batches, c.fetched, c.followed)
	for _, t := range slices.Sorted(maps.Keys(c.events)) {
		fmt.Fprintf(&b, " %s %d", t, c.events[t])
	}
	b.WriteString("\nscenarios with")
	for thing := range sought() {
		if n := c.seen[thing]; common*n < c.played {
			fmt.Fprintf(&b, " %q %d", thing, n)
		}
	}
	return b.String()
}

// planned are the codes of results and of the ends of runs that scenarios have
// to come to.
var planned = []string{
	codes.OK, tool.CodeFailed, codes.Panic, codes.NotApproved, codes.OutcomeUnknown, codes.NoActor,
	codes.Poison, codes.WallTime, "budget_total_tokens", "max_steps", codes.Storage,
}

// groupOutcomes are what batches of several runs have to come to.
var groupOutcomes = []string{
	simtest.BatchStored, simtest.BatchRefused, simtest.BatchUnknown, simtest.BatchLost,
	simtest.BatchCrashedBefore, simtest.BatchCrashedAfter, simtest.TwoOfOneRun,
}

// carriedWake is a request whose last input wakes the worker of what an earlier one led to.
const carriedWake = "a carried wake"

// ledEvent is an event after which its process goes on by itself.
const ledEvent = "a led event"

// fetchOutcomes are what fetches have to come to.
var fetchOutcomes = []string{fetchDone, fetchAway, fetchHidden}

// followedKinds are what processes with every role have to decide without a delivery.
var followedKinds = []effects.Kind{effects.KindObserve, effects.KindJoin}

// firingOutcomes are what firings of schedules have to come to.
var firingOutcomes = []schedules.Outcome{schedules.Started, schedules.WasMissed, schedules.Skipped, schedules.Waiting}

// What notices of webhooks have to come to.
const (
	noticeCame   = "came"
	noticeAgain  = "came again"
	noticeFailed = "failed"
)

// sought are the things that scenarios have to come to, each with how many
// scenarios it takes on average until one comes to it, rounded up.
func sought() map[string]int {
	all := map[string]int{"a snapshot": common, carriedWake: common, ledEvent: common}
	for _, kind := range append(vocabulary(), events.TypeForked) {
		all[string(kind)] = common
	}
	for _, code := range planned {
		all["code "+code] = common
	}
	for _, outcome := range groupOutcomes {
		all["batch: "+outcome] = common
	}
	for _, outcome := range fetchOutcomes {
		all["fetch: "+outcome] = common
	}
	for _, outcome := range firingOutcomes {
		all["firing: "+string(outcome)] = common
	}
	for _, what := range []string{noticeCame, noticeAgain, noticeFailed} {
		all["notice: "+what] = common
	}
	for _, kind := range followedKinds {
		all["followed: "+string(kind)] = common
	}
	maps.Copy(all, rare)
	return all
}

// common is what comes up in one of so many scenarios or more of them. rare are
// the others; what would need more than allSought has to be drawn more often.
const common = 14

var rare = map[string]int{
	"WorkingMemoryRemoved": 80, "StorageLoaded": 80,
	"code budget_total_tokens": 50, "code " + codes.Storage: 28, "code " + codes.NotApproved: 40, "code " + codes.NoActor: 60,
	"batch: " + simtest.BatchStored: 40, "batch: " + simtest.BatchRefused: 70,
	"batch: " + simtest.BatchUnknown: 70, "batch: " + simtest.BatchLost: 70,
	"firing: " + string(schedules.WasMissed): 105, "firing: " + string(schedules.Skipped): 105, "firing: " + string(schedules.Waiting): 105,
	"notice: " + noticeAgain: 60, "notice: " + noticeFailed: 30,
	"batch: " + simtest.BatchCrashedBefore: 70, "batch: " + simtest.BatchCrashedAfter: 105,
}

// sure is how many times as many scenarios as it takes on average have to be played
// until a thing is demanded: it is missing then once in a million times.
const sure = 14

// allSought is how many scenarios make the census complete: as many as .ci/run
// plays.
const allSought = 1500

// requireAll checks that everything was seen that so many scenarios come to.
func (c *census) requireAll(t *testing.T) {
	for thing, oneIn := range sought() {
		if c.seen[thing] == 0 && c.played >= sure*oneIn {
			t.Errorf("no scenario came to %q: let newScenario draw what leads there", thing)
		}
	}
}

// The census leaves nothing out where all of the scenarios are played.
func TestCensusIsComplete(t *testing.T) {
	text, err := os.ReadFile("../.ci/run")
	require.NoError(t, err)
	require.Contains(t, string(text), fmt.Sprintf("-sim.seeds %d ", allSought))
	for thing, oneIn := range sought() {
		require.LessOrEqual(t, sure*oneIn, allSought, thing)
	}
	require.Subset(t, slices.Collect(maps.Keys(sought())), slices.Collect(maps.Keys(rare)))
}

// vocabulary is every event type of the built-in table.
func vocabulary() []events.Type {
	spec := reducer.DefaultTable().Spec()
	all := slices.Clone(spec.Stay)
	for _, row := range spec.Rows {
		all = append(all, row.Event)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

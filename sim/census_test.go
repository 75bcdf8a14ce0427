package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/pkg/actor"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal/simulated"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// census counts what the scenarios came to, so that one can see what they
// reach.
type census struct {
	mu      sync.Mutex
	played  int
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
}

func (c *census) add(w *world) {
	w.audit.mu.Lock()
	defer w.audit.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.played++
	c.crashes += w.plan.MostCrashes - int(max(w.crashes.Load(), 0))
	c.stored += len(w.audit.records)
	if c.ends == nil {
		c.ends, c.codes, c.batches, c.fetched = map[events.State]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	}
	c.snapshots += w.audit.snapshots
	w.mu.Lock()
	for outcome, n := range w.batches {
		c.batches[outcome] += n
	}
	for outcome, n := range w.fetched {
		c.fetched[outcome] += n
	}
	if !w.plan.Fetches {
		c.fetched[fetchHidden]++
	}
	w.mu.Unlock()
	for _, r := range w.audit.runs {
		c.ends[r.mem.State]++
		if r.mem.Error != nil {
			c.codes[r.mem.Error.Code]++
		}
		for code, n := range r.codes {
			c.codes[code] += n
		}
		for i := range r.mem.Trace {
			c.events[events.Type(r.mem.Trace[i].Event)]++
		}
	}
}

// String says it in a few lines.
func (c *census) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d events, %d crashes, %d snapshots, runs %v, codes %v, batches %v, fetches %v\n", c.stored, c.crashes, c.snapshots, c.ends, c.codes, c.batches, c.fetched)
	for _, t := range slices.Sorted(maps.Keys(c.events)) {
		fmt.Fprintf(&b, " %s %d", t, c.events[t])
	}
	return b.String()
}

// planned are the codes of results and of the ends of runs that scenarios have
// to come to.
var planned = []string{
	tool.CodeOK, tool.CodeFailed, tool.CodePanic, actor.CodeNotApproved, reducer.CodeOutcomeUnknown, reducer.CodeNoActor,
	reducer.CodePoison, reducer.CodeWallTime, "budget_total_tokens", "max_steps", actor.CodeStorage,
}

// groupOutcomes are what batches of several runs have to come to.
var groupOutcomes = []string{
	simulated.BatchStored, simulated.BatchRefused, simulated.BatchInDoubt, simulated.BatchLost,
	simulated.BatchCrashedBefore, simulated.BatchCrashedAfter, simulated.TwoOfOneRun,
}

// fetchOutcomes are what fetches have to come to.
var fetchOutcomes = []string{fetchDone, fetchAway, fetchHidden}

// requireAll checks that every event was seen.
func (c *census) requireAll(t *testing.T) {
	for _, code := range planned {
		if c.codes[code] == 0 && c.played >= 2000 { // a few of them are rare
			t.Errorf("no scenario came to the code %s: let newScenario draw what leads there", code)
		}
	}
	for _, outcome := range groupOutcomes {
		if c.batches[outcome] == 0 && c.played >= 1000 {
			t.Errorf("no batch of several runs came to %q: let newScenario draw what leads there", outcome)
		}
	}
	for _, outcome := range fetchOutcomes {
		if c.fetched[outcome] == 0 {
			t.Errorf("no fetch of a record came to %q: let newScenario draw what leads there", outcome)
		}
	}
	if c.snapshots == 0 {
		t.Error("no snapshot was taken")
	}
	for _, kind := range append(vocabulary(), events.TypeForked) {
		if c.events[kind] == 0 {
			t.Errorf("no scenario came to %s: let newScenario draw what leads there", kind)
		}
	}
}

// vocabulary is every event type of the built-in table.
func vocabulary() []events.Type {
	spec := reducer.DefaultSpec()
	all := slices.Clone(spec.Stay)
	for _, row := range spec.Rows {
		all = append(all, row.Event)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

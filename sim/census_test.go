package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
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
		c.ends = map[events.State]int{}
	}
	for _, r := range w.audit.runs {
		c.ends[r.mem.State]++
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
	fmt.Fprintf(&b, "%d events, %d crashes, runs %v\n", c.stored, c.crashes, c.ends)
	for _, t := range slices.Sorted(maps.Keys(c.events)) {
		fmt.Fprintf(&b, " %s %d", t, c.events[t])
	}
	return b.String()
}

// elsewhere are the events that no scenario can come to, since no role appends
// them: TestLiveness has them.
var elsewhere = []events.Type{
	events.TypeLLMThought, events.TypeNeedsPaging, events.TypePageDone,
	events.TypeWorkingMemoryAdded, events.TypeWorkingMemoryRemoved, events.TypeStorageSaved, events.TypeStorageLoaded,
	events.TypeToolCallsAddedToContext,
}

// requireAll checks that every other event was seen.
func (c *census) requireAll(t *testing.T) {
	for _, kind := range vocabulary() {
		if c.events[kind] == 0 && !contains(elsewhere, kind) {
			t.Errorf("no scenario came to %s: let newScenario draw what leads there, or say elsewhere why not", kind)
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

package worker_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// seedsDefault is how many seeds are tried; MOOREBUS_SIM_SEEDS sets another
// number, MOOREBUS_SIM_FIRST the first seed.
const seedsDefault = 300

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// TestSimulatedRuns runs planner, actor and observer, in one process or several,
// on a bus on which everything goes wrong: deliveries that are late, doubled and
// out of order, acknowledgements and appends that are lost, processes that die at
// any point and come back. Whatever happens, every run gets to its end, its log
// is legal, every call has one result, and no tool that must not run twice does.
func TestSimulatedRuns(t *testing.T) {
	first, count := number(t, "MOOREBUS_SIM_FIRST", 0), number(t, "MOOREBUS_SIM_SEEDS", seedsDefault)
	for seed := first; seed < first+count; seed++ {
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { simulate(t, uint64(seed)) }) {
			t.Fatalf("seed %d failed: MOOREBUS_SIM_FIRST=%d MOOREBUS_SIM_SEEDS=1 repeats it", seed, seed)
		}
	}
}

func simulate(t *testing.T, seed uint64) {
	defer func() {
		if p := recover(); p != nil {
			panic(fmt.Sprintf("seed %d: %v", seed, p)) // a bubble that does not end
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		stop := w.open()
		for range 1 + w.chance.IntN(4) {
			w.start()
		}
		w.disturb()
		for i := range w.runs {
			w.AwaitEnd(w.runs[i].id)
		}
		stop()
		for i := range w.runs {
			w.verify(&w.runs[i])
		}
	})
}

// verify checks a run that has ended.
func (w *world) verify(r *simulatedRun) {
	w.T.Helper()
	mem := w.Memory(r.id) // every record is legal
	if r.cancelled && mem.State == events.Cancelled {
		w.requireResults(r, false)
		return
	}
	require.Equal(w.T, events.Done, mem.State, "%+v %v", mem.Error, w.Types(r.id))
	require.Equal(w.T, lastWords, *mem.FinalAnswer)
	w.requireResults(r, true)
	if w.quiet && !r.touched {
		require.Len(w.T, w.Types(r.id), r.script.events(), "%v", w.Types(r.id))
		require.Equal(w.T, r.script.failures(), w.Count(r.id, events.TypeLLMAttemptFailed))
	}
}

// requireResults checks that no call has two results, and that every call has
// one in a run that got to its answer; and that no tool ran twice that must not,
// nor succeeded without having run.
func (w *world) requireResults(r *simulatedRun, all bool) {
	w.T.Helper()
	calls, results := map[string]string{}, map[string]*events.ToolOutcome{}
	add := func(o *events.ToolOutcome) {
		if o == nil {
			return // the end of a batch
		}
		require.NotContains(w.T, results, o.CallID, "a second result")
		results[o.CallID] = o
	}
	asked := func(p *events.ToolCallReply) {
		for _, c := range append(append([]events.Call{}, p.Calls...), p.Queued...) {
			calls[c.ID] = c.Name
		}
	}
	for _, e := range w.Events(r.id) {
		switch p := e.Data.(type) {
		case *events.LLMToolCall:
			asked(&p.ToolCallReply)
		case *events.LLMParallelToolCalls:
			asked(&p.ToolCallReply)
		case *events.ToolSuccess:
			add(p.Outcome)
		case *events.ToolFailure:
			add(p.Outcome)
		case *events.ToolCallResult:
			add(&p.ToolOutcome)
		}
	}
	if all {
		require.Len(w.T, calls, r.script.calls(), "%v of %v", w.Types(r.id), r.script.replies)
		require.Len(w.T, results, len(calls), "a call without a result: %v", w.Types(r.id))
	}
	for id, name := range calls {
		ran := w.executions(r.id.ID, id)
		if isOnce(name) {
			require.LessOrEqual(w.T, ran, 1, "%s %s ran twice\n%s", name, id, w.story(r))
		}
		if o := results[id]; o != nil && o.Success {
			require.GreaterOrEqual(w.T, ran, 1, "%s %s never ran", name, id)
			require.NotEqual(w.T, "broken", name)
		}
	}
}

// story is a run's log, a line an event.
func (w *world) story(r *simulatedRun) string {
	var b strings.Builder
	for _, e := range w.Events(r.id) {
		data, _ := json.Marshal(e.Data)
		fmt.Fprintf(&b, "%3d %s %-20s %s->%s %s %.300s\n", e.N, e.Time.Format("15:04:05.000"), e.Type(), e.From, e.To, e.Source, data)
	}
	return b.String()
}

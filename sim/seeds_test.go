package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

var (
	seeds = flag.Int("sim.seeds", 60, "how many scenarios TestSeeds plays")
	first = flag.Uint64("sim.first", 0, "the first scenario's seed")
	dir   = flag.String("sim.dir", filepath.Join(os.TempDir(), "moorebus-sim"), "where the files of failing scenarios go")
	file  = flag.String("sim.file", "", "the file that TestReplaySeed plays")
	times = flag.Int("sim.times", 1, "how often it does, until it fails")
)

// stuck is how long a scenario may take in real time. One takes milliseconds.
const stuck = 2 * time.Minute

// TestSeeds plays scenarios. Whatever happens in them, every run gets to its end,
// its log is legal at each moment, nothing is done twice that must not be, and
// nothing is left undone.
func TestSeeds(t *testing.T) {
	began := time.Now()
	seen := census{events: map[events.Type]int{}}
	t.Cleanup(func() {
		t.Logf("%d scenarios from seed %d on, in %s: %s", seen.played, *first, time.Since(began).Round(time.Millisecond), &seen)
		if !t.Failed() {
			seen.requireAll(t)
		}
	})
	most := uint64(*seeds)
	if testing.Short() {
		most = min(most, 12)
	}
	var next atomic.Uint64
	for i := range 2 * runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprint("player ", i), func(t *testing.T) {
			t.Parallel()
			for n := next.Add(1) - 1; n < most && !t.Failed(); n = next.Add(1) - 1 {
				seen.add(play(t, newScenario(*first+n)))
			}
		})
	}
}

// TestReplaySeed plays a scenario from the file that a failure left.
func TestReplaySeed(t *testing.T) {
	if *file == "" {
		t.Skip("no -sim.file is given: there is nothing to play again") // reason: it is a tool for people
	}
	data, err := os.ReadFile(*file)
	require.NoError(t, err)
	var f failure
	require.NoError(t, json.Unmarshal(data, &f))
	for range *times {
		if play(t, f.Scenario); t.Failed() {
			return
		}
	}
}

// failure is what is kept of a scenario that failed.
type failure struct {
	Violation *violation `json:"violation"`
	Scenario  *scenario  `json:"scenario"`
	// Events are what was stored until then, in order.
	Events []recorded `json:"events"`
}

type recorded struct {
	Seq     uint64          `json:"seq"`
	Stored  time.Time       `json:"stored"`
	Subject string          `json:"subject"`
	Body    json.RawMessage `json:"body"`
}

// play plays a scenario, and fails the test and writes the file if it must.
func play(t *testing.T, spec *scenario) *world {
	t.Helper()
	watchdog := time.AfterFunc(stuck, func() {
		panic(fmt.Sprintf("seed %d is stuck; its file is %s", spec.Seed, keep(spec, &violation{Invariant: "stuck"}, nil)))
	})
	w, v := simulate(t, spec)
	watchdog.Stop()
	if v != nil {
		name := keep(spec, v, w)
		t.Errorf("seed %d, run %s: %s: %s\nagain: go test ./sim -v -run TestReplaySeed -sim.times 100 -sim.file %s", spec.Seed, v.Run, v.Invariant, v.Detail, name)
	}
	return w
}

// keep writes a failure's file and returns its name.
func keep(spec *scenario, v *violation, w *world) string {
	f := failure{Violation: v, Scenario: spec}
	if w != nil {
		f.Events = w.records()
	}
	data, err := json.MarshalIndent(f, "", " ")
	if err == nil {
		err = os.MkdirAll(*dir, 0o755)
	}
	name := filepath.Join(*dir, fmt.Sprintf("seed-%d.json", spec.Seed))
	if err == nil {
		err = os.WriteFile(name, data, 0o644)
	}
	if err != nil {
		return "(not written: " + err.Error() + ")"
	}
	return name
}

// records are what was stored, in the order of all runs together.
func (w *world) records() []recorded {
	w.audit.mu.Lock()
	defer w.audit.mu.Unlock()
	all := make([]recorded, len(w.audit.records))
	for i, rec := range w.audit.records {
		all[i] = recorded{Seq: rec.Seq, Stored: rec.Stored, Subject: rec.Subject, Body: rec.Body}
		if !json.Valid(rec.Body) {
			all[i].Body, _ = json.Marshal(string(rec.Body)) // a string always marshals
		}
	}
	return all
}

package sim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// log writes a run as roles that make mistakes would.
type log struct {
	t     *testing.T
	w     *world
	store *runlog.Store
	run   events.Run
}

func newLog(t *testing.T) *log {
	w := newWorld(&scenario{Shards: 1})
	l := &log{t: t, w: w, store: runlog.New(runlog.Options{Log: w.journal}), run: w.placed("00000000-0000-7000-8000-000000000001")}
	start := reducertest.StartOf("Do it.", events.ModeTask)
	start.Tools = []events.ToolSpec{{Name: "pay", Effect: string(tool.Once), Pool: "default"}}
	l.add(roleGateway, events.Idle, start)
	require.Nil(t, w.audit.violation())
	return l
}

func (l *log) add(role string, from events.State, p events.Payload) {
	l.t.Helper()
	run := l.store.Acquire(l.run)
	defer l.store.Release(run)
	run.Lock()
	defer run.Unlock()
	_, err := run.Commit(l.t.Context(), runlog.Stamp{Source: "moorebus/" + role + "/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
		return []runlog.Draft{{Origin: from, Payload: p}}, nil
	})
	require.NoError(l.t, err)
}

func (l *log) last() journal.Record { return l.w.audit.records[len(l.w.audit.records)-1] }

func oneReply(names ...string) events.ToolCallReply {
	r := events.ToolCallReply{Confidence: 1}
	for i, name := range names {
		r.Calls = append(r.Calls, events.Call{ID: string(rune('a' + i)), Name: name, Arguments: "{}"})
	}
	return r
}

// The auditor must see what must not be: an invariant that cannot fail holds
// nothing.
func TestTheAuditorSees(t *testing.T) {
	call := func(l *log) { l.add(rolePlanner, events.Planning, &events.LLMToolCall{ToolCallReply: oneReply("pay")}) }
	answer := &events.LLMFinalAnswer{Reply: events.Reply{Content: lastWords}}
	for invariant, do := range map[string]func(l *log){
		"liveness": func(l *log) { l.w.audit.Finished(l.last()) },
		"owner":    func(l *log) { l.add(roleObserver, events.Planning, answer) },
		"legal": func(l *log) {
			subject := events.Subject{Run: l.run, From: events.Planning, To: events.Done, Pool: events.DefaultPool}
			l.w.journal.Inject(0, subject.String(), []byte("{}"))
		},
		"subject": func(l *log) { l.w.journal.Inject(0, "elsewhere", []byte("{}")) },
		"calm": func(l *log) {
			l.add(rolePlanner, events.Planning, &events.LLMAttemptFailed{Kind: codes.KindWorkerLost, Key: "plan/1"})
		},
		"once": func(l *log) {
			call(l)
			l.add(roleActor, events.Acting, &events.ToolCallStarted{CallID: "a"})
			for range 2 {
				l.w.executed(toolDefinitions[2], tool.Call{Run: l.run.ID, ID: "a", Name: "pay"})
			}
		},
		"blacklist": func(l *log) {
			l.w.executed(toolDefinitions[len(toolDefinitions)-1], tool.Call{Run: l.run.ID, ID: "a", Name: "forbidden"})
		},
		"paused": func(l *log) {
			call(l)
			l.add(roleGateway, events.Control, &events.Paused{})
			l.add(roleActor, events.Acting, &events.ToolCallStarted{CallID: "a"})
		},
		"outcome unknown": func(l *log) {
			call(l)
			l.w.ran.begin(l.run.ID+"/a", &process{w: l.w, sim: l.w.journal.NewProcess()})
			l.add(roleActor, events.Acting, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "a", Code: codes.OutcomeUnknown}})
		},
		"one result": func(l *log) {
			call(l)
			l.add(roleActor, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "a", Success: true, Code: "ok"}})
			l.add(roleObserver, events.Observing, &events.Continue{})
			l.add(rolePlanner, events.Planning, answer)
			l.w.audit.finish(&runSpec{ID: l.run.ID}, false, l.w.ran.of)
		},
		"approval": func(l *log) {
			l.w.executed(tool.Definition{Name: "ask", Asks: true}, tool.Call{Run: l.run.ID, ID: "a", Name: "ask", Arguments: "{}"})
		},
		"approval, refused": func(l *log) {
			call(l)
			l.add(roleActor, events.Acting, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "a", Code: codes.NotApproved}})
		},
		"snapshot": func(l *log) { l.w.audit.snapshot(l.run.ID, ports.Snapshot{N: 1, Memory: []byte("{}")}) },
		"timer":    func(l *log) { newPerson(l.w, &runSpec{ID: l.run.ID}).timed() },
		"end":      func(l *log) { l.w.audit.finish(&runSpec{ID: l.run.ID}, false, l.w.ran.of) },
	} {
		t.Run(invariant, func(t *testing.T) {
			l := newLog(t)
			do(l)
			require.NotNil(t, l.w.audit.violation(), "nothing was seen")
			invariant, _, _ = strings.Cut(invariant, ",")
			require.Equal(t, invariant, l.w.audit.violation().Invariant, "%s", l.w.audit.violation().Detail)
			<-l.w.audit.broken
		})
	}
}

// A failure's file must play the same scenario again.
func TestAFailureIsAFile(t *testing.T) {
	was := *dir
	*dir = filepath.Join(t.TempDir(), "failures")
	defer func() { *dir = was }()
	spec := newScenario(7)
	name := keep(spec, &violation{Invariant: "none"}, newLog(t).w)
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	var f failure
	require.NoError(t, json.Unmarshal(data, &f))
	again, err := json.Marshal(f.Scenario)
	require.NoError(t, err)
	first, err := json.Marshal(spec)
	require.NoError(t, err)
	require.JSONEq(t, string(first), string(again))
	require.Equal(t, "none", f.Violation.Invariant)
	require.Len(t, f.Events, 1)
	_, v := simulate(t, f.Scenario)
	require.Nil(t, v)
}

// A scenario is a function of its seed, and so is nearly all that happens in it.
func TestASeedIsAScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it plays scenarios again and again
	}
	scenarios := min(60, *seeds/5)
	same := 0
	for seed := range uint64(scenarios) {
		first, err := json.Marshal(newScenario(seed))
		require.NoError(t, err)
		again, err := json.Marshal(newScenario(seed))
		require.NoError(t, err)
		require.Equal(t, string(first), string(again))
		if once, twice := trace(t, seed), trace(t, seed); once == twice {
			same++
		}
	}
	t.Logf("%d of %d scenarios went the same way twice, event by event", same, scenarios)
	require.Greater(t, same, scenarios/5)
}

// trace is what was stored, without ids.
func trace(t *testing.T, seed uint64) string {
	w, v := simulate(t, newScenario(seed))
	require.Nil(t, v)
	var all string
	for _, rec := range w.audit.records {
		all += rec.Stored.Format("15:04:05.000000 ") + rec.Subject + "\n"
	}
	return all
}

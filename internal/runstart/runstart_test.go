package runstart_test

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// pad is a launcher on a simulated log, with one tool and one provider that live.
type pad struct {
	*runstart.Launcher
	bus   *simtest.Process
	store *runlog.Store
	// checkScript counts the parsing of definitions; may be nil.
	checkScript func(json.RawMessage) error
}

func onPad(t *testing.T, test func(t *testing.T, p *pad)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPad(t)
		p.announce(t, "default", "work", "works")
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		test(t, p)
	})
}

// newPad is a launcher for whose runs nothing is announced yet.
func newPad(t *testing.T) *pad {
	bus := simtest.New(simtest.Options{}).NewProcess()
	p := &pad{bus: bus, store: runlog.New(runlog.Options{Log: bus})}
	p.launcherOn(t, func(s kv.Store) kv.Store { return s })
	return p
}

func (p *pad) launcherOn(t *testing.T, store func(kv.Store) kv.Store) {
	var err error
	p.Launcher, err = runstart.New(runstart.Config{
		Store: p.store, Source: "moorebus/test/1", KV: store(p.bus), Timers: p.bus, Tombstones: p.bus, FirstCheck: time.Minute,
		CheckScript:    p.checkScript,
		CheckApproval:  func(a *events.Approval) error { return refuseIf(a != nil, "no such policy") },
		CheckEstimator: func(name string) error { return refuseIf(name == "guess", "no such estimator") },
	})
	require.NoError(t, err)
}

func refuseIf(wrong bool, why string) error {
	if wrong {
		return errors.New(why)
	}
	return nil
}

func (p *pad) announce(t *testing.T, pool, name, description string) {
	t.Helper()
	spec := events.ToolSpec{Name: name, Description: description, Pool: pool, Effect: "pure", Risk: "low", Schema: json.RawMessage(`{"type":"object"}`)}
	require.NoError(t, p.Directory().Announce(t.Context(), pool, "a", []events.ToolSpec{spec}))
}

func worker(change ...func(*events.Agent)) events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.Tools = "worker", "scripted", []string{"work"}
	for _, c := range change {
		if c != nil {
			c(&a)
		}
	}
	return a
}

// pinned is a run's first event.
func (p *pad) pinned(t *testing.T, text string) *events.Start {
	t.Helper()
	start, err := p.Pin(t.Context(), worker(nil), runstart.Task{Text: text, Mode: events.ModeChat})
	require.NoError(t, err)
	return start
}

func TestPin(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		start := p.pinned(t, "Do it.")
		require.Equal(t, events.ModeChat, start.Mode, "the task's mode goes before the definition's")
		require.Equal(t, agentfile.Hash(worker(nil)), start.AgentHash, "the hash is the definition's as it was given")
		require.Equal(t, runstart.DefaultTaskType, start.TaskType)
		require.Equal(t, "works", start.Tools[0].Description)
	})
}

func TestPinRefuses(t *testing.T) {
	for code, change := range map[string]func(*events.Agent){
		refusal.CodeBadAgent:        func(a *events.Agent) { a.Mode = "monologue" },
		refusal.CodeUnknownProvider: func(a *events.Agent) { a.LLM.Provider = "oracle" },
		refusal.CodeUnknownTool:     func(a *events.Agent) { a.Tools = []string{"play"} },
		refusal.CodeAmbiguousTool:   func(a *events.Agent) { a.Tools = []string{"twin"} },
		refusal.CodeBadApproval:     func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways} },
		refusal.CodeBadEstimator:    func(a *events.Agent) { a.Config.TokenEstimator = "guess" },
	} {
		t.Run(code, func(t *testing.T) {
			onPad(t, func(t *testing.T, p *pad) {
				p.announce(t, "one", "twin", "is one")
				p.announce(t, "two", "twin", "is another")
				_, err := p.Pin(t.Context(), worker(change), runstart.Task{Text: "Do it."})
				var refused *refusal.Error
				require.ErrorAs(t, err, &refused)
				require.Equal(t, code, refused.Code, refused.Message)
			})
		})
	}
}

// A tool that several NATS services have is ambiguous, also in one pool.
func TestToolOfSeveralServices(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		spec := func(services ...string) events.ToolSpec {
			return events.ToolSpec{Name: "same", Pool: "one", Effect: "pure", Risk: "low", Schema: json.RawMessage(`{}`), Services: services}
		}
		start := func() *refusal.Error {
			p.launcherOn(t, func(s kv.Store) kv.Store { return s })
			_, err := p.Pin(t.Context(), worker(func(a *events.Agent) { a.Tools = []string{"one/same"} }), runstart.Task{Text: "Do it."})
			var refused *refusal.Error
			_ = errors.As(err, &refused)
			return refused
		}
		require.NoError(t, p.Directory().Announce(t.Context(), "one", "a", []events.ToolSpec{spec("x")}))
		require.Nil(t, start())
		require.NoError(t, p.Directory().Announce(t.Context(), "one", "b", []events.ToolSpec{spec("y")}))
		refused := start()
		require.NotNil(t, refused, "two actors, each with one service")
		require.Equal(t, refusal.CodeAmbiguousTool, refused.Code)
		require.Contains(t, refused.Message, "the services x, y")
		require.NoError(t, p.Directory().Announce(t.Context(), "one", "b", nil))
		require.Nil(t, start())
		require.NoError(t, p.Directory().Announce(t.Context(), "one", "a", []events.ToolSpec{spec("x", "y")}))
		require.NotNil(t, start(), "one actor with both")
	})
}

// A tool whose file asks for an approval is not the tool of another pool whose file does not: the
// calls would not wait.
func TestToolWithAnotherApproval(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		spec := events.ToolSpec{Name: "pay", Effect: "once", Risk: "low", Schema: json.RawMessage(`{}`), Approval: &events.Approval{Policy: events.ApproveAlways}}
		start := func() error {
			p.launcherOn(t, func(s kv.Store) kv.Store { return s })
			_, err := p.Pin(t.Context(), worker(func(a *events.Agent) { a.Tools = []string{"pay"} }), runstart.Task{Text: "Do it."})
			return err
		}
		for _, pool := range []string{"one", "two"} {
			spec.Pool = pool
			require.NoError(t, p.Directory().Announce(t.Context(), pool, "a", []events.ToolSpec{spec}))
		}
		require.NoError(t, start())
		spec.Approval = nil
		require.NoError(t, p.Directory().Announce(t.Context(), "two", "a", []events.ToolSpec{spec}))
		require.True(t, refusal.Is(start(), refusal.CodeAmbiguousTool))
	})
}

// A stored definition is parsed once, and a replaced one is parsed anew.
func TestDefinitionIsParsedOnce(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		checked := 0
		p.checkScript = func(json.RawMessage) error { checked++; return nil }
		p.launcherOn(t, func(s kv.Store) kv.Store { return s })
		for _, steps := range []int{3, 3, 4, 4, 3} {
			stored := worker(func(a *events.Agent) { a.Config.MaxSteps = steps })
			require.NoError(t, agentstore.Put(t.Context(), p.bus, "default", "worker", agentfile.Marshal(stored)))
			a, hash, err := p.Definition(t.Context(), "default", "worker")
			require.NoError(t, err)
			require.Equal(t, steps, a.Config.MaxSteps)
			start, err := p.Pin(t.Context(), a, runstart.Task{Text: "Do it.", Mode: events.ModeChat, AgentHash: hash})
			require.NoError(t, err)
			require.Equal(t, agentfile.Hash(stored), start.AgentHash)
		}
		require.Equal(t, 2, checked, "each definition is parsed once")
	})
}

// What nobody announces is looked for again at once, whatever the catalog has.
func TestPinSeesWhatCameMeanwhile(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		p.pinned(t, "fills the catalog")
		time.Sleep(time.Millisecond) // in the bubble
		p.announce(t, "web", "fetch", "fetches")
		start, err := p.Pin(t.Context(), worker(func(a *events.Agent) { a.Tools = []string{"fetch"} }), runstart.Task{Text: "Do it."})
		require.NoError(t, err)
		require.Equal(t, "web", start.Tools[0].Pool)
	})
}

func TestDefinition(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		var refused *refusal.Error
		for _, name := range []string{"nobody", "No Name"} {
			_, _, err := p.Definition(t.Context(), "default", name)
			require.ErrorAs(t, err, &refused)
			require.Equal(t, refusal.CodeAgentNotFound, refused.Code)
		}
		require.NoError(t, agentstore.Put(t.Context(), p.bus, "default", "broken", []byte(`{"name": 1}`)))
		_, _, err := p.Definition(t.Context(), "default", "broken")
		require.ErrorAs(t, err, &refused)
		require.Equal(t, refusal.CodeBadAgent, refused.Code)
		require.NoError(t, agentstore.Put(t.Context(), p.bus, "default", "worker", agentfile.Marshal(worker(nil))))
		a, hash, err := p.Definition(t.Context(), "default", "worker")
		require.NoError(t, err)
		require.Equal(t, agentfile.Hash(worker(nil)), agentfile.Hash(a))
		require.Equal(t, agentfile.Hash(worker(nil)), hash)
	})
}

// Two that open the same run do so once, and the other one is told by its check. The
// run's timer is there before the run, and at its deadline if that is sooner.
func TestOpen(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		at := p.store.Place("default", runlog.NewID())
		there := errors.New("somebody was faster")
		opening := runstart.Opening{
			First: p.pinned(t, "Do it."), Budget: &events.Budget{MaxWallTime: events.Duration(10 * time.Second)},
			Check: func(mem *reducer.Memory) error {
				if mem.N > 0 {
					return there
				}
				return nil
			},
		}
		state, n, err := p.Open(t.Context(), at, opening)
		require.NoError(t, err)
		require.Equal(t, events.Planning, state)
		require.EqualValues(t, 1, n)
		_, _, err = p.Open(t.Context(), at, opening)
		require.ErrorIs(t, err, there)
		began, due := time.Now(), make(chan events.Run, 1)
		go func() {
			_ = p.bus.ConsumeTimers(t.Context(), 1, func(d journal.TimerDelivery) { due <- d.Timer.Run })
		}()
		require.Equal(t, at, <-due)
		require.Equal(t, 10*time.Second, time.Since(began).Round(time.Second))
	})
}

// TestWhoseToolItIs: what several pools announce with one definition belongs to the one that was first,
// a name with its pool is that pool's, and a run's tool stays in its pool.
func TestWhoseToolItIs(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		for _, pool := range []string{"attic", "bank", "web"} {
			p.announce(t, pool, "pay", "pays")
		}
		p.announce(t, "bank", "twin", "is one")
		p.announce(t, "web", "twin", "is another")
		pick := func(ref string, pools map[string]string) (string, error) {
			a := worker(func(a *events.Agent) { a.Tools = []string{ref} })
			tools, err := p.Tools(t.Context(), &a, pools)
			if err != nil {
				var refused *refusal.Error
				require.ErrorAs(t, err, &refused)
				return refused.Code, err
			}
			require.Len(t, tools, 1)
			require.NotContains(t, tools[0].Name, "/", "the model sees the bare name")
			return tools[0].Pool, nil
		}
		is := func(want, ref string, pools map[string]string) {
			t.Helper()
			got, _ := pick(ref, pools)
			require.Equal(t, want, got)
		}
		is("attic", "pay", nil) // nobody remembers anything
		require.NoError(t, p.Directory().PutOffers(t.Context(), announce.Offers{First: map[string]string{"pay": "bank", "gone": "web"}, Providers: []string{"scripted", "oracle"}}))
		time.Sleep(time.Minute) // in the bubble
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		for _, pool := range []string{"attic", "bank", "web"} {
			p.announce(t, pool, "pay", "pays")
		}
		is("bank", "pay", nil)
		is("web", "web/pay", nil)
		is("web", "pay", map[string]string{"pay": "web"})
		is("bank", "bank/pay", map[string]string{"pay": "web"})
		is(refusal.CodeUnknownTool, "pay", map[string]string{"pay": "elsewhere"})
		is(refusal.CodeUnknownTool, "elsewhere/pay", nil)
		is(refusal.CodePending, "gone", nil)

		p.announce(t, "bank", "twin", "is one")
		p.announce(t, "web", "twin", "is another")
		time.Sleep(2 * time.Second) // in the bubble
		_, err := pick("twin", nil)
		require.ErrorContains(t, err, "bank/twin")
		require.ErrorContains(t, err, "--pool-tools")
		is("web", "web/twin", nil)

		oracle := worker(func(a *events.Agent) { a.LLM.Provider = "oracle" })
		_, err = p.Tools(t.Context(), &oracle, nil)
		var refused *refusal.Error
		require.ErrorAs(t, err, &refused)
		require.Equal(t, refusal.Unavailable, refused.Kind)
		require.Equal(t, refusal.CodePending, refused.Code)
	})
}

// A pattern stands for the announced tools that begin so. The guide of their server is in the
// description of the first one.
func TestPatterns(t *testing.T) {
	pin := func(p *pad, t *testing.T, refs ...string) (names []string, tools []events.ToolSpec, refused *refusal.Error) {
		start, err := p.Pin(t.Context(), worker(func(a *events.Agent) { a.Tools = refs }), runstart.Task{Text: "Do it."})
		if err != nil {
			require.ErrorAs(t, err, &refused)
			return nil, nil, refused
		}
		require.Equal(t, refs, start.Agent.Tools)
		for _, tool := range start.Tools {
			names = append(names, tool.Pool+"/"+tool.Name)
		}
		return names, start.Tools, nil
	}
	onPad(t, func(t *testing.T, p *pad) {
		var specs []events.ToolSpec
		for _, name := range []string{"git.push", "git.list", "git.list_all"} {
			specs = append(specs, events.ToolSpec{Name: name, Description: "does " + name, Pool: "code", Effect: "pure", Risk: "low", Schema: json.RawMessage(`{"type":"object"}`), Guide: "Be quick."})
		}
		require.NoError(t, p.Directory().Announce(t.Context(), "code", "b", specs))
		p.announce(t, "other", "git.list", "lists otherwise")
		_, _, refused := pin(p, t, "git.*")
		require.Equal(t, refusal.CodeAmbiguousTool, refused.Code)
		names, tools, refused := pin(p, t, "work", "code/git.*", "git.push")
		require.Nil(t, refused)
		require.Equal(t, []string{"default/work", "code/git.list", "code/git.list_all", "code/git.push"}, names)
		require.Equal(t, "does git.list\n\nBe quick.", tools[1].Description)
		require.Equal(t, "does git.list_all", tools[2].Description)
		for _, tool := range tools {
			require.Empty(t, tool.Guide)
		}
		names, _, _ = pin(p, t, "code/git.list*", "git.push*")
		require.Equal(t, []string{"code/git.list", "code/git.list_all", "code/git.push"}, names)
		_, _, refused = pin(p, t, "hub.*")
		require.Equal(t, refusal.CodeUnknownTool, refused.Code)
		require.Contains(t, refused.Message, `no announced tool begins with "hub."`)
		require.NoError(t, p.Directory().Withdraw(t.Context(), "code", "b"))
		time.Sleep(2 * time.Second) // in the bubble
		_, _, refused = pin(p, t, "code/git.*")
		require.Equal(t, refusal.CodePending, refused.Code, "they were announced a moment ago")
	})
}

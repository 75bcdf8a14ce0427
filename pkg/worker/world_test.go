package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/actor"
	"github.com/moorebus/moorebus/pkg/approval"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal/simulated"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/observer"
	"github.com/moorebus/moorebus/pkg/planner"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/reducer/reducertest"
	"github.com/moorebus/moorebus/pkg/runlog"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/schema"
	"github.com/moorebus/moorebus/pkg/worker/workertest"
)

// lastWords is every simulated run's answer.
const lastWords = "All of it is done."

// world is one simulated installation with its runs. All that happens in it
// follows from the seed, but for the order in which goroutines run.
type world struct {
	*workertest.Bench
	chance *rand.Rand
	// quiet is true where no fault was asked for.
	quiet bool
	// armed lets crash points strike; it is off while the test itself appends.
	armed   atomic.Bool
	crashes atomic.Int64
	runs    []simulatedRun
	places  []chan bool // one for each process: true kills it, false ends it

	mu      sync.Mutex
	ran     map[string]int
	scripts map[string]script
}

type simulatedRun struct {
	id     events.Run
	script script
	// touched says that something came from outside, cancelled that it was a
	// cancellation.
	touched, cancelled bool
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{chance: rand.New(rand.NewPCG(seed, 1)), ran: map[string]int{}, scripts: map[string]script{}, quiet: seed%6 == 0}
	o := simulated.Options{Seed: seed, Shards: 1 + w.chance.IntN(3)}
	if !w.quiet {
		o.Faults = w.faults()
		o.Crash = w.crash(rand.New(rand.NewPCG(seed, 2)))
		w.crashes.Store(int64(w.chance.IntN(5)))
	}
	w.Bench = workertest.New(t, o, nil)
	return w
}

// faults are some of the kinds, some of the time.
func (w *world) faults() simulated.Faults {
	some := func() float64 {
		if w.chance.IntN(2) == 0 {
			return 0
		}
		return 0.4 * w.chance.Float64()
	}
	return simulated.Faults{
		Delay: some(), Duplicate: some(), Reorder: some(), LoseAck: some(), InDoubt: some(), Lost: some(),
		MaxDelay: time.Duration(1+w.chance.IntN(20)) * time.Second,
	}
}

// crash strikes at some points, a few times in all.
func (w *world) crash(chance *rand.Rand) func(string) bool {
	var mu sync.Mutex
	return func(string) bool {
		mu.Lock()
		defer mu.Unlock()
		return chance.IntN(25) == 0 && w.armed.Load() && w.crashes.Add(-1) >= 0
	}
}

// open starts the processes, each with every role.
func (w *world) open() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.places = make([]chan bool, 1+w.chance.IntN(3))
	for i := range w.places {
		w.places[i] = make(chan bool)
		shared := w.chance.IntN(2) == 0
		pause := time.Duration(w.chance.IntN(4000)) * time.Millisecond
		running.Go(func() {
			for ctx.Err() == nil {
				w.process(ctx, fmt.Sprint(i), shared, w.places[i])
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	w.armed.Store(true)
	return func() { w.armed.Store(false); cancel(); running.Wait() }
}

// process runs every role until it dies or is ended.
func (w *world) process(ctx context.Context, instance string, shared bool, end <-chan bool) {
	p := w.Journal.NewProcess()
	store := w.NewStore(p)
	stores := func() *runlog.Store {
		if shared {
			return store
		}
		return w.NewStore(p)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	for _, run := range []func(context.Context) error{
		w.planner(p, stores(), instance), w.actor(p, stores(), instance), w.observer(p, stores(), instance),
	} {
		running.Go(func() {
			if err := run(ctx); err != nil && !errors.Is(err, simulated.ErrCrashed) {
				w.T.Errorf("a role ended: %v", err)
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-p.Dead():
	case kill := <-end:
		if kill {
			p.Kill()
		}
	}
	cancel()
}

func (w *world) planner(p *simulated.Process, store *runlog.Store, instance string) func(context.Context) error {
	made, err := planner.New(planner.Config{
		Instance: instance, Store: store, Queue: p, Feed: p, Directory: p,
		Providers: map[string]llm.Caller{"scripted": llm.CallerFunc(w.model)},
		Validator: schema.New(schema.Options{}), Approval: approval.New(), Concurrency: 2,
	})
	require.NoError(w.T, err)
	return made.Run
}

// model takes a second and then says what the run's script says. Which reply is
// next it sees from the conversation; the errors before a reply are given once
// each, whoever asks.
func (w *world) model(ctx context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if req.Purpose == llm.PurposeReflect {
		return nil, &llm.Error{Kind: llm.KindOverloaded, Message: "not now"}
	}
	said := 0
	for _, m := range req.Messages {
		if len(m.Calls) > 0 {
			said++
		}
	}
	names, failures := w.scriptOf(req.Run).reply(said)
	if w.tried(req.Run, said) <= failures {
		return nil, &llm.Error{Kind: llm.KindOverloaded, Message: "later"}
	}
	meta := llm.Meta{Confidence: 1, Usage: llm.Usage{Input: 1, Output: 1, Total: 2}}
	if names == nil {
		return llm.Text{Meta: meta, Content: lastWords}, nil
	}
	reply := llm.ToolCalls{Meta: meta}
	for i, name := range names {
		reply.Calls = append(reply.Calls, llm.Call{ID: fmt.Sprintf("call_%d_%d", said, i), Name: name, Arguments: "{}"})
	}
	return reply, nil
}

func (w *world) tried(run string, said int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := fmt.Sprint("model ", run, said)
	w.ran[key]++
	return w.ran[key]
}

func (w *world) scriptOf(run string) script {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scripts[run]
}

func (w *world) observer(p *simulated.Process, store *runlog.Store, instance string) func(context.Context) error {
	made, err := observer.New(observer.Config{Instance: instance, Store: store, Queue: p, Feed: p, Concurrency: 2})
	require.NoError(w.T, err)
	return made.Run
}

func (w *world) actor(p *simulated.Process, store *runlog.Store, instance string) func(context.Context) error {
	registry, err := tool.NewRegistry(w.tools()...)
	require.NoError(w.T, err)
	made, err := actor.New(actor.Config{
		Instance: instance, Store: store, Queue: p, Feed: p, Directory: p, Tools: registry, Blobs: p, Concurrency: 2,
	})
	require.NoError(w.T, err)
	return made.Run
}

// simulatedTool does nothing but take its time and be counted.
type simulatedTool struct {
	w   *world
	def tool.Definition
}

func (s simulatedTool) Definition() tool.Definition { return s.def }

func (s simulatedTool) Run(ctx context.Context, c tool.Call) (string, error) {
	s.w.mu.Lock()
	s.w.ran[c.IdempotencyKey()]++
	s.w.mu.Unlock()
	select {
	case <-time.After(time.Duration(len(c.ID)*37%5) * 700 * time.Millisecond):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	switch c.Name {
	case "broken":
		return "", errors.New("it is broken")
	case "panics":
		panic("it panics")
	}
	return "result of " + c.ID, nil
}

// simulatedTools are of every class and in three pools.
var simulatedTools = []tool.Definition{
	{Name: "look", Effect: tool.Pure, Pool: "default"},
	{Name: "fetch", Effect: tool.Idempotent, Pool: "web"},
	{Name: "pay", Effect: tool.Once, Pool: "web"},
	{Name: "mail", Effect: tool.Once, Pool: "default"},
	{Name: "broken", Effect: tool.Pure, Pool: "default"},
	{Name: "panics", Effect: tool.Once, Pool: "math"},
	{Name: "sum", Effect: tool.Pure, Pool: "math"},
}

func isOnce(name string) bool { return name == "pay" || name == "mail" || name == "panics" }

func (w *world) tools() []tool.Tool {
	all := make([]tool.Tool, len(simulatedTools))
	for i, def := range simulatedTools {
		all[i] = simulatedTool{w, def}
	}
	return all
}

func (w *world) executions(run, call string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ran[run+"/"+call]
}

// script is what a run's model says: the tools of each reply, an error where
// there is none.
type script struct {
	replies  [][]string
	parallel bool
}

func (w *world) script() script {
	s := script{parallel: w.chance.IntN(3) > 0, replies: make([][]string, 1+w.chance.IntN(6))}
	for i := range s.replies {
		switch w.chance.IntN(6) {
		case 0: // an error
		case 1, 2:
			s.replies[i] = w.pick(2 + w.chance.IntN(3))
		default:
			s.replies[i] = w.pick(1)
		}
	}
	return s
}

func (w *world) pick(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = simulatedTools[w.chance.IntN(len(simulatedTools))].Name
	}
	return names
}

// reply is what the model says after a number of replies with calls, nil for
// the answer, and how many errors come before.
func (s script) reply(said int) (names []string, failures int) {
	for _, names := range s.replies {
		switch {
		case names == nil && said == 0:
			failures++
		case names != nil && said == 0:
			return names, failures
		case names != nil:
			said--
		}
	}
	return nil, failures
}

func (s script) calls() int {
	n := 0
	for _, names := range s.replies {
		n += len(names)
	}
	return n
}

func (s script) failures() int {
	n := 0
	for _, names := range s.replies {
		if names == nil {
			n++
		}
	}
	return n
}

// events is how many events the script makes where nothing goes wrong.
func (s script) events() int {
	n := 2 + s.failures() // Start and the answer
	for _, names := range s.replies {
		pools := map[string]bool{}
		for _, name := range names {
			for _, def := range simulatedTools {
				if def.Name == name {
					pools[def.Pool] = true
				}
			}
			if isOnce(name) {
				n++
			}
		}
		switch {
		case len(names) == 0:
		case len(names) == 1 || !s.parallel:
			n += 3 * len(names) // the call, its outcome, Continue
		case len(pools) > 1:
			n += 3 + 2*len(names) // each is dispatched
		default:
			n += 3 + len(names) // the reply, the join, Continue
		}
	}
	return n
}

// start opens a run.
func (w *world) start() {
	r := simulatedRun{script: w.script()}
	start := reducertest.StartOf("do it", events.ModeTask)
	start.Agent.Config.ParallelTools = r.script.parallel
	if !w.quiet && w.chance.IntN(3) == 0 {
		start.Agent.Config.ReflectEveryNSteps = 1 + w.chance.IntN(3)
	} else {
		start.Agent.Config.ReflectEveryNSteps = 0
	}
	start.Tools = nil
	for _, def := range simulatedTools {
		start.Tools = append(start.Tools, events.ToolSpec{
			Name: def.Name, Effect: string(def.Effect), Pool: def.Pool, Schema: json.RawMessage(`{"type":"object"}`),
		})
	}
	r.id = w.Store.Place(events.DefaultNamespace, w.Store.NewID())
	w.mu.Lock()
	w.scripts[r.id.ID] = r.script
	w.mu.Unlock()
	w.outside(func() { w.Append(r.id, events.Idle, start) })
	w.runs = append(w.runs, r)
}

// outside does something of the test's own: its process does not crash.
func (w *world) outside(do func()) {
	w.armed.Store(false)
	defer w.armed.Store(true)
	do()
}

// disturb kills and ends processes, and pauses, resumes, cancels and talks to
// runs, at times of its own.
func (w *world) disturb() {
	if w.quiet {
		return
	}
	for range w.chance.IntN(6) {
		time.Sleep(time.Duration(w.chance.IntN(15_000)) * time.Millisecond)
		if w.chance.IntN(2) == 0 {
			place, kill := w.places[w.chance.IntN(len(w.places))], w.chance.IntN(3) > 0
			select {
			case place <- kill:
			case <-time.After(time.Second): // it is down already
			}
			continue
		}
		w.touch(&w.runs[w.chance.IntN(len(w.runs))])
	}
	for i := range w.runs {
		w.tell(&w.runs[i], &events.Resumed{}) // no run is left paused
	}
}

func (w *world) touch(r *simulatedRun) {
	r.touched = true
	switch w.chance.IntN(6) {
	case 0:
		r.cancelled = true
		w.tell(r, &events.CancelledRun{})
	case 1, 2:
		w.tell(r, &events.UserMessage{MessageID: fmt.Sprint("m", w.chance.Uint32()), Content: "and hurry"})
	case 3:
		w.tell(r, &events.Resumed{})
	default:
		w.tell(r, &events.Paused{})
		time.Sleep(time.Duration(w.chance.IntN(30_000)) * time.Millisecond)
		w.tell(r, &events.Resumed{})
	}
}

// tell appends something from outside, if the run still takes it.
func (w *world) tell(r *simulatedRun, p events.Payload) {
	w.outside(func() {
		err := w.TryAppend(r.id, events.Control, p)
		var late *reducer.TransitionError
		if err != nil && !errors.As(err, &late) {
			require.NoError(w.T, err)
		}
	})
}

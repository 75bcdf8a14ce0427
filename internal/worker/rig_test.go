package worker_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a bench on which workers with handlers of the test's own run.
type rig struct{ *workertest.Bench }

// bubble runs a test in virtual time on a journal without faults.
func bubble(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	bubbleWith(t, simtest.Options{Revision: reducer.Revision}, test)
}

func bubbleWith(t *testing.T, o simtest.Options, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, &rig{workertest.New(t, o, nil)}) })
}

// start opens a run of reducertest's agent.
func (r *rig) start() events.Run {
	return r.Start(reducertest.StartOf("find it", events.ModeTask))
}

// handlers are what the rig's workers do, by kind.
type handlers map[effects.Kind]worker.Handler

// work makes a handler of work that needs nothing of the memory.
func work(w worker.Work) worker.Handler {
	return worker.HandlerFunc(func(events.Run, *reducer.Memory, effects.Effect) worker.Work { return w })
}

// always makes a handler that has its outcome ready.
func always(payloads ...events.Payload) worker.Handler {
	return work(func(context.Context) worker.Result { return worker.Done(payloads...) })
}

func answer(text string) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: text}}
}

func call(id, tool string) events.Call { return events.Call{ID: id, Name: tool, Arguments: "{}"} }

func single(id, tool string) *events.LLMToolCall {
	return &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Calls: []events.Call{call(id, tool)}, Confidence: 1}}
}

func batch(calls ...events.Call) *events.LLMParallelToolCalls {
	return &events.LLMParallelToolCalls{ToolCallReply: events.ToolCallReply{Calls: calls, Confidence: 1}}
}

func outcome(id string) *events.ToolOutcome { return workertest.OK(id, "ok") }

// inboxes are those of a worker of every state that has one in these tests.
func inboxes() []journal.Inbox {
	all := []journal.Inbox{
		{States: []events.State{events.Planning}, Pool: events.DefaultPool},
		{States: []events.State{events.Observing}, Pool: events.DefaultPool},
	}
	for _, pool := range []string{events.DefaultPool, "web", "math"} {
		all = append(all, journal.Inbox{States: []events.State{events.Acting, events.ParallelActing}, Pool: pool})
	}
	return all
}

// worker makes a worker of every state on a process of its own store.
func (r *rig) worker(p *simtest.Process, h handlers, change ...func(*worker.Config)) *worker.Worker {
	r.T.Helper()
	if len(h) > 0 && h[effects.KindObserve] == nil {
		// Most tests end where a tool did.
		h = maps.Clone(h)
		h[effects.KindObserve] = work(func(ctx context.Context) worker.Result {
			<-ctx.Done()
			return worker.Fail(ctx.Err())
		})
	}
	cfg := worker.Config{
		Role: "test", Base: worker.Base{Instance: "1", Store: r.NewStore(p), Queue: p, Feed: p}, Inboxes: inboxes(), Handlers: h,
	}
	for _, c := range change {
		c(&cfg)
	}
	w, err := worker.New(cfg)
	require.NoError(r.T, err)
	return w
}

// spawn runs a worker on a new process until the test ends.
func (r *rig) spawn(h handlers, change ...func(*worker.Config)) (p *simtest.Process, stop func()) {
	p = r.Journal.NewProcess()
	w := r.worker(p, h, change...)
	return p, r.GoOn(p, w.Run)
}

// failures returns the failures in the run's log.
func (r *rig) failures(run events.Run) []*events.LLMAttemptFailed {
	var all []*events.LLMAttemptFailed
	for _, e := range r.Events(run) {
		if f, ok := e.Data.(*events.LLMAttemptFailed); ok {
			all = append(all, f)
		}
	}
	return all
}

func kinds(failures []*events.LLMAttemptFailed) []string {
	var all []string
	for _, f := range failures {
		all = append(all, f.Kind)
	}
	return all
}

func settled() { workertest.Quiet() }

// counter counts from several goroutines.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func (c *counter) get() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// firstAppend is a process and its log, in front of whose first append something happens.
func (r *rig) firstAppend(happens func()) (*simtest.Process, *workertest.Log) {
	p := r.Journal.NewProcess()
	log := &workertest.Log{Log: p}
	log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
		log.OnAppend = nil
		happens()
		return p.Append(ctx, run, last, entries...)
	}
	return p, log
}

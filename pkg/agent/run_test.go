package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Step goes through every role, one transition at a time.
func TestStep(t *testing.T) {
	t.Parallel()
	mock := scripted.NewMock(
		llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: "search", Arguments: `{"q":"1"}`}, {ID: "b", Name: "calculator", Arguments: `{"q":"2"}`}}},
		&llm.Error{Kind: llm.KindOverloaded, Message: "busy", RetryAfter: 1},
		scripted.Say("Pass the salt."), scripted.Say("Pass the salt, please."))
	a := build(t, mock, func(b *agent.Builder) { b.Graph(reviewed(strict)) })
	r, err := a.Stepwise(t.Context(), agent.Task(task))
	require.NoError(t, err)
	require.Equal(t, 0, mock.CallCount(), "nothing goes on by itself")
	for i, want := range []events.State{events.ParallelActing, events.Observing, events.Planning, "reviewing", events.Planning, "reviewing", events.Done, events.Done} {
		state, err := r.Step(t.Context())
		require.NoError(t, err, "step %d", i)
		require.Equal(t, want, state, "step %d", i)
		require.Equal(t, want, r.State(), "step %d", i)
	}
	answer, err := r.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "Pass the salt, please.", answer)
	require.NoError(t, r.Release())
	require.NoError(t, r.Release(), "again is no harm")
}

func TestStepSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	a := build(t, scripted.NewMock(scripted.Say("hello")), func(b *agent.Builder) { b.Chat() })
	r, err := a.Stepwise(t.Context(), agent.Task(task))
	require.NoError(t, err)
	state, err := r.Step(t.Context())
	require.NoError(t, err)
	require.Equal(t, events.WaitingForUser, state)
	_, err = r.Step(t.Context())
	require.ErrorIs(t, err, agent.ErrWaits)
	require.NoError(t, r.Release())

	r, err = build(t, scripted.NewMock(scripted.Say("hello")), nil).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	_, err = r.Step(t.Context())
	require.ErrorIs(t, err, agent.ErrStepwise)
	require.NoError(t, r.Release())
}

// An agent runs several times at once, on one set of roles.
func TestSeveralRunsAtOnce(t *testing.T) {
	t.Parallel()
	model := llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "answer of " + req.Run}, nil
	})
	a := build(t, model, func(b *agent.Builder) { b.Data(t.TempDir()) })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r, err := a.Start(t.Context(), agent.Task(task))
			if err != nil {
				t.Error(err)
				return
			}
			answer, err := r.Wait(t.Context())
			if err != nil || answer != "answer of "+r.ID() {
				t.Error(answer, err)
			}
			if err := r.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err, "and once more afterwards")
}

func TestServeErrors(t *testing.T) {
	t.Parallel()
	named := func(name string, change func(*agent.Builder)) *agent.Agent {
		b := agent.New(name).LLM(scripted.NewMock())
		change(b)
		a, err := b.Build()
		require.NoError(t, err)
		return a
	}
	make := func(change func(*agent.Builder)) *agent.Agent { return named("agent", change) }
	plain := named("plain", func(b *agent.Builder) { b.Tool(searchTool(t)).Data("here") })
	for says, agents := range map[string][]*agent.Agent{
		"there are no agents":          nil,
		"two agents are called plain":  {plain, plain},
		"have different graphs":        {plain, make(func(b *agent.Builder) { b.Graph(reviewed(strict)) })},
		"is in another place":          {plain, make(func(b *agent.Builder) { b.Data("there") })},
		"two tools are called search":  {plain, make(func(b *agent.Builder) { b.Tool(searchTool(t)) })},
		"two model callers are called": {plain, make(func(b *agent.Builder) { b.Provider("plain", llm.CallerFunc(nil)) })},
		"roles of agent agent run":     {make(func(b *agent.Builder) { b.Elsewhere().Use("x").NATS("nats://127.0.0.1:1") })},
	} {
		_, err := agent.Serve(t.Context(), agents...)
		var wrong *agent.BuildError
		require.ErrorAs(t, err, &wrong, says)
		require.ErrorContains(t, err, says)
	}
}

// The answer of a chat's Run is that of its first turn.
func TestChat(t *testing.T) {
	t.Parallel()
	a := build(t, scripted.NewMock(scripted.Say("Hello.")), func(b *agent.Builder) { b.Chat().Data(t.TempDir()) })
	answer, err := a.Agent.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "Hello.", answer)
	for run, err := range a.Runs(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, events.Done, run.State, "the conversation is closed")
	}
}

// On a bus that is reached over TCP, by URL and by connection. It is set up by the
// first one.
func TestExternalBus(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer server.Shutdown()
	answer, err := build(t, scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Say("by URL")), func(b *agent.Builder) { b.NATS(server.ClientURL()) }).Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "by URL", answer)
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	answer, err = build(t, scripted.NewMock(scripted.Say("by connection")), func(b *agent.Builder) {
		b.Conn(conn).Graph(reviewed(func(context.Context, *agent.Work) (events.Payload, error) {
			return agent.Emit("ReviewPassed", nil)
		}))
	}).Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "by connection", answer)
	_, err = build(t, scripted.NewMock(), func(b *agent.Builder) { b.NATS("nats://127.0.0.1:1") }).Run(t.Context(), task)
	require.ErrorContains(t, err, "127.0.0.1:1")
}

// The trace of a run that one watches is the trace that its log gives.
func TestLiveTraceIsThatOfTheLog(t *testing.T) {
	t.Parallel()
	bus := busOf(t)
	graph := reviewed(strict)
	a := build(t, scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Say("Pass the salt."), scripted.Say("Pass the salt, please.")),
		func(b *agent.Builder) { b.Bus(bus).Graph(graph) })
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	machine, err := graph.Machine()
	require.NoError(t, err)
	mem, err := runlog.Retrace(t.Context(), bus, machine, events.NewRun(events.DefaultNamespace, r.ID(), bus.Shards()), func(_ journal.Record, _ *events.Event) {})
	require.NoError(t, err)
	live, err := r.Trace().JSON()
	require.NoError(t, err)
	logged, err := mem.Trace.JSON()
	require.NoError(t, err)
	require.JSONEq(t, logged, live)
	require.Len(t, r.Trace(), 8)
	var entries []reducer.TraceEntry
	require.NoError(t, json.Unmarshal([]byte(live), &entries))
	require.Equal(t, 1, entries[1].Step)
	require.False(t, entries[1].Timestamp.IsZero())
	require.NoError(t, r.Release())
}

// The roles' end is told to whoever waits.
func TestServerThatEndsUnderARun(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it restarts a server
	}
	t.Parallel()
	asked := make(chan struct{})
	var once sync.Once
	model := llm.CallerFunc(func(ctx context.Context, _ llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		once.Do(func() { close(asked) })
		<-ctx.Done()
		return nil, errors.New("cut short")
	})
	a, err := agent.New("agent").LLM(model).Build()
	require.NoError(t, err)
	s, err := agent.Serve(t.Context(), a)
	require.NoError(t, err)
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	<-asked
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	_, err = r.Wait(t.Context())
	require.ErrorContains(t, err, "server is closed")
	require.NoError(t, <-closed)
	require.NoError(t, r.Release())
	require.NoError(t, s.Close(), "closing again does nothing")
	_, err = a.Run(t.Context(), task)
	require.ErrorContains(t, err, "server is closed")
	_, err = a.Stepwise(t.Context(), agent.Task(task))
	require.ErrorIs(t, err, agent.ErrStepwise)
}

// cutOff is a bus whose first append of a first event is stored without an answer:
// the caller's context ends meanwhile.
type cutOff struct {
	*simtest.Process
	once *sync.Once
	cut  func()
	run  *events.Run
}

func (b cutOff) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (seq uint64, err error) {
	seq, err = b.Process.Append(ctx, run, last, entries...)
	if last == 0 && err == nil {
		b.once.Do(func() {
			*b.run, seq, err = run, 0, journal.ErrUnknownOutcome
			b.cut()
		})
	}
	return seq, err
}

// A run whose start was cut off does not live on: nobody has its id.
func TestStartThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := simtest.New(simtest.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var run events.Run
		// A model that answered at the moment of the cancellation would end the run.
		silent := llm.CallerFunc(func(ctx context.Context, _ llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		a, err := agent.New("agent").LLM(silent).Bus(cutOff{j.NewProcess(), new(sync.Once), cancel, &run}).Build()
		require.NoError(t, err)
		began := time.Now()
		_, err = a.Run(ctx, task)
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, time.Since(began), 2*time.Second)
		head, err := j.Head(t.Context(), run)
		require.NoError(t, err)
		s, err := events.ParseSubject(head.Subject)
		require.NoError(t, err)
		require.Equal(t, events.Cancelled, s.To)
	})
}

// lost is a bus that loses the first append of a first event.
type lost struct {
	*simtest.Process
	once *sync.Once
	cut  func()
}

func (b lost) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (seq uint64, err error) {
	if last == 0 {
		b.once.Do(func() { err = journal.ErrUnknownOutcome; b.cut() })
	}
	if err != nil {
		return 0, err
	}
	return b.Process.Append(ctx, run, last, entries...)
}

// A run that was not started need not be cancelled.
func TestStartThatCameToNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := simtest.New(simtest.Options{}).NewProcess()
		a, err := agent.New("agent").LLM(scripted.NewMock(scripted.Say("hello"))).Bus(lost{p, new(sync.Once), cancel}).Build()
		require.NoError(t, err)
		_, err = a.Start(ctx, agent.Task(task))
		require.ErrorIs(t, err, context.Canceled)
		require.NotContains(t, err.Error(), "there is no run")
		answer, err := a.Run(t.Context(), task)
		require.NoError(t, err)
		require.Equal(t, "hello", answer)
	})
}

// breaks is a bus whose consumers end when it is broken; then it can be repaired.
type breaks struct {
	*simtest.Process
	broken chan struct{}
}

var errBroken = errors.New("the consumer was deleted")

func (b *breaks) Consume(ctx context.Context, inbox journal.Inbox, n int, fn func(journal.Delivery)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	broken := b.broken
	go func() {
		select {
		case <-broken:
			stop(errBroken)
		case <-ctx.Done():
		}
	}()
	err := b.Process.Consume(ctx, inbox, n, fn)
	if errors.Is(context.Cause(ctx), errBroken) {
		return errBroken
	}
	return err
}

// An agent whose roles have ended by themselves runs its next run on others, also
// while somebody holds a run of the first ones.
func TestRolesThatEndedAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &breaks{simtest.New(simtest.Options{}).NewProcess(), make(chan struct{})}
		// The roles of the second run may also answer what the first one was sent last.
		model := scripted.NewMock(scripted.Say("hello"), scripted.Say("again"), scripted.Say("again"))
		a, err := agent.New("agent").LLM(model).Chat().Bus(bus).Build()
		require.NoError(t, err)
		first, err := a.Start(t.Context(), agent.Task(task))
		require.NoError(t, err)
		_, err = first.Answer(t.Context())
		require.NoError(t, err)
		close(bus.broken)
		synctest.Wait() // until every role has ended
		_, err = first.Send(t.Context(), "more")
		require.ErrorIs(t, err, errBroken)
		bus.broken = make(chan struct{})
		answer, err := a.Run(t.Context(), task)
		require.NoError(t, err)
		require.Equal(t, "again", answer)
		require.ErrorIs(t, first.Release(), errBroken, "why they had ended")
	})
}

// userKey is the key of a value that a program gives its runs.
type userKey struct{}

func as(t *testing.T, user string) context.Context {
	t.Helper()
	return context.WithValue(t.Context(), userKey{}, user)
}

// seen are the users that models and tools saw.
type seen struct {
	mu    sync.Mutex
	users map[string][]any
}

func (s *seen) note(ctx context.Context, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == nil {
		s.users = map[string][]any{}
	}
	s.users[who] = append(s.users[who], ctx.Value(userKey{}))
}

func (s *seen) take() map[string][]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := s.users
	s.users = nil
	return users
}

// noting is a model that notes whom it answers: with the given call, then with a word.
func (s *seen) noting(who, tool, arguments string) llm.Caller {
	return llm.CallerFunc(func(ctx context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		s.note(ctx, who)
		if req.Replies == 0 && tool != "" {
			return llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: tool, Arguments: arguments}}}, nil
		}
		return llm.Text{Content: "All of it is done by now."}, nil
	})
}

// A model and a tool see the values of the context that their own run was started
// with, whoever started the roles; and so do those of the agents that it calls.
func TestContextValues(t *testing.T) {
	t.Parallel()
	var s seen
	look := agent.Func("look", "Looks.", func(ctx context.Context, _ query) (string, error) {
		s.note(ctx, "tool")
		return "nothing", nil
	}, agent.Pure)
	helper, err := agent.New("helper").LLM(s.noting("helper", "look", `{"q":"x"}`)).Tool(look).Build()
	require.NoError(t, err)
	a, err := agent.New("boss").LLM(s.noting("boss", "helper", `{"task":"x"}`)).Subagent(helper).Build()
	require.NoError(t, err)
	server, err := agent.Serve(as(t, "whoever serves"), a)
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()

	ann, err := a.Start(as(t, "ann"), agent.Task(task))
	require.NoError(t, err)
	_, err = ann.Wait(t.Context())
	require.NoError(t, err)
	want := map[string][]any{"boss": {"ann", "ann"}, "helper": {"ann", "ann"}, "tool": {"ann"}}
	require.Equal(t, want, s.take())

	_, err = a.Run(as(t, "bob"), task)
	require.NoError(t, err)
	require.Equal(t, map[string][]any{"boss": {"bob", "bob"}, "helper": {"bob", "bob"}, "tool": {"bob"}}, s.take())

	_, err = a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, map[string][]any{"boss": {nil, nil}, "helper": {nil, nil}, "tool": {nil}}, s.take())
	require.NoError(t, ann.Release())
}

// The values outlive the context that they came with, and a run that is only opened
// keeps those of its start.
func TestContextValuesAreThoseOfTheStart(t *testing.T) {
	t.Parallel()
	var s seen
	started := make(chan struct{})
	slow := agent.Func("slow", "Waits.", func(ctx context.Context, _ query) (string, error) {
		<-started
		s.note(ctx, "tool")
		return "", ctx.Err()
	}, agent.Pure)
	a, err := agent.New("agent").LLM(s.noting("model", "slow", `{"q":"x"}`)).Tool(slow).Build()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(as(t, "ann"))
	r, err := a.Start(ctx, agent.Task(task))
	require.NoError(t, err)
	cancel()
	opened, err := a.Attach(as(t, "bob"), r.ID())
	require.NoError(t, err)
	close(started)
	answer, err := opened.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "All of it is done by now.", answer)
	require.Equal(t, map[string][]any{"model": {"ann", "ann"}, "tool": {"ann"}}, s.take())
	require.NoError(t, opened.Release())
	require.NoError(t, r.Release())
}

// Each step's own context gives no values to the run.
func TestContextValuesStepwise(t *testing.T) {
	t.Parallel()
	var s seen
	a, err := agent.New("agent").LLM(s.noting("model", "", "")).Build()
	require.NoError(t, err)
	r, err := a.Stepwise(as(t, "ann"), agent.Task(task))
	require.NoError(t, err)
	_, err = r.Step(as(t, "bob"))
	require.NoError(t, err)
	require.Equal(t, map[string][]any{"model": {"ann"}}, s.take())
	require.NoError(t, r.Release())
}

// Several agents share one embedded server, each with its own model and tools.
func TestSeveralAgentsOnOneServer(t *testing.T) {
	t.Parallel()
	shared := searchTool(t)
	writer, err := agent.New("writer").LLM(scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Say("a draft"))).Tool(shared).Build()
	require.NoError(t, err)
	critic, err := agent.New("critic").LLM(scripted.NewMock(scripted.Ask("search", `{"q":"b"}`), scripted.Say("it is good"))).Tool(shared).Build()
	require.NoError(t, err)
	s, err := agent.Serve(t.Context(), writer, critic)
	require.NoError(t, err)
	answers := make(chan string, 2)
	for _, a := range []*agent.Agent{writer, critic} {
		go func() {
			answer, err := a.Run(context.Background(), task)
			answers <- fmt.Sprint(answer, " ", err)
		}()
	}
	require.ElementsMatch(t, []string{"a draft <nil>", "it is good <nil>"}, []string{<-answers, <-answers})
	_, err = writer.Stepwise(t.Context(), agent.Task(task))
	require.ErrorIs(t, err, agent.ErrStepwise)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = writer.Run(t.Context(), task)
	require.ErrorContains(t, err, "server is closed")
}

// A tool of a function shows a value as JSON, a string as it is, an error as one.
func TestFunc(t *testing.T) {
	t.Parallel()
	type numbers struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	type sum struct {
		Sum int `json:"sum"`
	}
	add := agent.Func("add", "Adds.", func(_ context.Context, in numbers) (sum, error) { return sum{in.A + in.B}, nil }, agent.Pure, agent.Risk(tool.High))
	require.Equal(t, tool.Pure, add.Definition().Effect)
	require.Equal(t, tool.High, add.Definition().Risk)
	out, err := add.Run(t.Context(), tool.Call{Arguments: `{"a":1,"b":2}`})
	require.NoError(t, err)
	require.JSONEq(t, `{"sum":3}`, out)
	odd := agent.Func("odd", "Cannot be written.", func(context.Context, numbers) (func(), error) { return func() {}, nil }, agent.Idempotent)
	require.Equal(t, tool.Idempotent, odd.Definition().Effect)
	_, err = odd.Run(t.Context(), tool.Call{Arguments: `{"a":1,"b":2}`})
	require.ErrorContains(t, err, "cannot be written as JSON")
}

// The call that sets the tokens of thinking last wins.
func TestThinkingTokens(t *testing.T) {
	t.Parallel()
	mock := scripted.NewMock(scripted.Say("the answer"))
	_, err := built(t, agent.New("agent").LLM(mock).Sampling(llm.Sampling{ThinkingTokens: 4096}).ThinkingTokens(2048)).Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, 2048, mock.Requests()[0].Sampling.ThinkingTokens)
	_, err = agent.New("agent").LLM(mock).ThinkingTokens(1).Build()
	require.ErrorContains(t, err, "thinking_tokens")
	built(t, agent.New("agent").LLM(mock).ThinkingTokens(1).Sampling(llm.Sampling{}))
}

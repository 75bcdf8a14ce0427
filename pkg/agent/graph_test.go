package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// verdict is the data of the events of reviewing.
type verdict struct {
	Remark string `json:"remark"`
}

// reviewed is the graph of the seed's extension point: answers are reviewed before
// the run is done.
func reviewed(review agent.Handler) *agent.Graph {
	return agent.NewGraph().
		Event("ReviewPassed").Event("ReviewFailed").
		State("reviewing", review).
		Row(events.Planning, events.TypeLLMFinalAnswer, "reviewing").
		Row("reviewing", "ReviewPassed", events.Done).
		Row("reviewing", "ReviewFailed", events.Planning).
		Fold("ReviewFailed", func(mem *agent.Memory, e *events.Event) {
			var v verdict
			if agent.Data(e, &v) == nil {
				mem.Note("The reviewer says: " + v.Remark)
			}
			failed := 0
			mem.Kept("reviews_failed", &failed)
			mem.Keep("reviews_failed", failed+1)
		})
}

// strict wants the word please.
func strict(_ context.Context, w *agent.Work) (events.Payload, error) {
	if *w.Memory.FinalAnswer == "Pass the salt, please." {
		return agent.Emit("ReviewPassed", nil)
	}
	return agent.Emit("ReviewFailed", verdict{Remark: "be polite"})
}

// bus opens a bus on an embedded server of the test's.
func busOf(t *testing.T) *natsbus.Bus {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: time.Minute})
	require.NoError(t, err)
	return bus
}

func customGraph(t *testing.T) {
	mock := scripted.NewMock(scripted.Say("Pass the salt."), scripted.Say("Pass the salt, please."))
	bus := busOf(t)
	graph := reviewed(strict)
	a := build(t, mock, func(b *agent.Builder) { b.Graph(graph).Bus(bus) })
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "Pass the salt, please.", answer)
	require.Equal(t, []string{"Start", "LlmFinalAnswer", "ReviewFailed", "LlmFinalAnswer", "ReviewPassed"}, eventsOf(a.Trace()))
	require.Equal(t, `{"remark":"be polite"}`, a.Trace().ForState("reviewing")[0].Data)
	failed := 0
	require.True(t, a.Memory().Kept("reviews_failed", &failed))
	require.Equal(t, 1, failed)
	second := mock.Requests()[1].Messages
	require.Equal(t, llm.Message{Role: llm.RoleUser, Content: "The reviewer says: be polite"}, second[len(second)-1])

	machine, err := graph.Machine()
	require.NoError(t, err)
	report, err := verify.Log(t.Context(), bus, machine, verify.Options{All: true})
	require.NoError(t, err)
	require.True(t, report.Clean(), report.Findings)
	require.Equal(t, 1, report.Outcomes[verify.Done])
}

// A program without the graph says which one it lacks, does nothing to the run, and
// leaves everything else alone.
func TestCustomGraphElsewhere(t *testing.T) {
	t.Parallel()
	bus := busOf(t)
	reviewing := make(chan struct{}, 1)
	hold := make(chan struct{})
	custom := buildNamed(t, "custom", scripted.NewMock(scripted.Say("the answer")), func(b *agent.Builder) {
		b.Bus(bus).Graph(reviewed(func(ctx context.Context, _ *agent.Work) (events.Payload, error) {
			reviewing <- struct{}{}
			select {
			case <-hold:
			case <-ctx.Done():
			}
			return agent.Emit("ReviewPassed", nil)
		}))
	})
	r, err := custom.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	<-reviewing

	plain, err := agent.New("agent").Elsewhere().Use("any").Bus(bus).Build()
	require.NoError(t, err)
	stock, err := plain.Attach(t.Context(), r.ID())
	require.NoError(t, err)
	_, err = stock.Wait(t.Context())
	var foreign *reducer.TableError
	require.ErrorAs(t, err, &foreign)
	require.NotEqual(t, foreign.Own, foreign.Table)
	require.ErrorAs(t, stock.Cancel(t.Context(), "no"), &foreign)
	require.NoError(t, stock.Release())
	requireUnknownTable(t, bus, r.ID(), foreign.Table)

	close(hold)
	answer, err := r.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "the answer", answer)
	require.NoError(t, r.Release())

	report, err := verify.Log(t.Context(), bus, reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true})
	require.NoError(t, err)
	require.False(t, report.Clean(), "what cannot be checked is not clean")
	require.Equal(t, 1, report.Outcomes[verify.Foreign])
	require.Len(t, report.Findings, 1)
	require.Equal(t, r.ID(), report.Findings[0].Run)
	require.Contains(t, report.Findings[0].Reason, "transition table "+foreign.Table[:12])
}

// requireUnknownTable asks a gateway without the run's graph about it.
func requireUnknownTable(t *testing.T, bus journal.Bus, run, table string) {
	t.Helper()
	registry, err := toolset.New()
	require.NoError(t, err)
	h, err := host.New(host.Options{Bus: bus, Tools: registry, Providers: map[string]llm.Caller{"any": scripted.NewMock()}})
	require.NoError(t, err)
	server, err := httpapi.New(httpapi.Config{Control: h.Gateway(), Feed: bus})
	require.NoError(t, err)
	do := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w.Code, w.Body.String()
	}
	for _, request := range [][2]string{{"GET", ""}, {"POST", "/cancel"}, {"POST", "/pause"}} {
		status, body := do(request[0], "/v1/runs/"+run+request[1])
		require.Equal(t, http.StatusConflict, status, body)
		var answer struct {
			Code, Message, Run string
			Table              string `json:"table_hash"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		require.Equal(t, refusal.CodeUnknownTable, answer.Code)
		require.Equal(t, table, answer.Table)
		require.Equal(t, run, answer.Run)
	}
	status, body := do("GET", "/v1/runs/"+run+"/events")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 2, strings.Count(body, "\n"), "what is stored can be read: %s", body)
	status, body = do("GET", "/v1/runs")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, run)
	require.Contains(t, body, `"state":"reviewing","n":2`, "as its last event says")
}

func customTerminalState(t *testing.T) {
	graph := agent.NewGraph().Event("Published").
		State("publishing", func(context.Context, *agent.Work) (events.Payload, error) {
			return agent.Emit("Published", map[string]string{"at": "somewhere"})
		}).
		Terminal("published").
		Row(events.Planning, events.TypeLLMFinalAnswer, "publishing").
		Row("publishing", "Published", "published")
	a := build(t, scripted.NewMock(scripted.Say("an article")), func(b *agent.Builder) { b.Graph(graph) })
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "an article", answer)
	require.Equal(t, events.State("published"), a.State())
}

// stuck are handlers that do not do what they should, and what their run ends with.
func TestHandlersThatFail(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real retries
	}
	t.Parallel()
	var (
		invalid *agent.InvalidTransition
		none    *agent.NoHandlerForState
	)
	for name, c := range map[string]struct {
		handler agent.Handler
		code    string
		says    string
		as      any
	}{
		"panics":             {func(context.Context, *agent.Work) (events.Payload, error) { panic("out of order") }, codes.AttemptsExhausted, "failed 4 times", nil},
		"fails":              {func(context.Context, *agent.Work) (events.Payload, error) { return nil, errors.New("no") }, codes.AttemptsExhausted, "failed 4 times", nil},
		"gives nothing":      {func(context.Context, *agent.Work) (events.Payload, error) { return nil, nil }, codes.AttemptsExhausted, "failed 4 times", nil},
		"ends its goroutine": {func(context.Context, *agent.Work) (events.Payload, error) { runtime.Goexit(); return nil, nil }, codes.AttemptsExhausted, "failed 4 times", nil},
		"hangs": {func(ctx context.Context, _ *agent.Work) (events.Payload, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, codes.AttemptsExhausted, "failed 4 times", nil},
		"gives an event without a row": {func(context.Context, *agent.Work) (events.Payload, error) { return &events.Continue{}, nil }, codes.InvalidTransition, "Continue in state reviewing", &invalid},
		"gives up": {func(context.Context, *agent.Work) (events.Payload, error) {
			return &events.FatalError{Outcome: events.Outcome{Code: "hopeless", Message: "nobody can review this"}}, nil
		}, "hopeless", "nobody can review this", nil},
		"is not there": {nil, codes.NoHandler, "no handler for state reviewing", &none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := build(t, scripted.NewMock(scripted.Say("the answer")), func(b *agent.Builder) {
				b.Graph(reviewed(c.handler).Timeout(300 * time.Millisecond))
			})
			_, err := a.Run(t.Context(), task)
			var failed *agent.Failed
			require.ErrorAs(t, err, &failed, "every failure is one")
			require.Equal(t, c.code, failed.Code)
			require.Contains(t, failed.Message, c.says)
			if c.as != nil {
				require.ErrorAs(t, err, c.as)
			}
		})
	}
}

// A handler that heeds nothing is left behind.
func TestHandlerThatHangsForEver(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real timeouts
	}
	t.Parallel()
	hold := make(chan struct{})
	defer close(hold)
	a := build(t, scripted.NewMock(scripted.Say("the answer")), func(b *agent.Builder) {
		b.Graph(reviewed(func(context.Context, *agent.Work) (events.Payload, error) { <-hold; return nil, nil }).Timeout(time.Millisecond))
	})
	_, err := a.Run(t.Context(), task)
	var failed *agent.Failed
	require.ErrorAs(t, err, &failed)
	require.Equal(t, codes.AttemptsExhausted, failed.Code)
}

func TestSafetyCapExceeded(t *testing.T) {
	t.Parallel()
	emit := func(event events.Type) agent.Handler {
		return func(context.Context, *agent.Work) (events.Payload, error) { return agent.Emit(event, nil) }
	}
	graph := agent.NewGraph().Event("Ping").Event("Pong").
		State("ping", emit("Ping")).State("pong", emit("Pong")).
		Row(events.Planning, events.TypeLLMFinalAnswer, "ping").
		Row("ping", "Ping", "pong").Row("pong", "Pong", "ping")
	a := build(t, scripted.NewMock(scripted.Say("the answer")), func(b *agent.Builder) {
		b.Graph(graph).MaxSteps(1)
	})
	_, err := a.Run(t.Context(), task)
	var capped *agent.SafetyCapExceeded
	require.ErrorAs(t, err, &capped)
	require.Contains(t, capped.Message, "more than 8 state changes")
}

func TestToolError(t *testing.T) {
	t.Parallel()
	graph := agent.NewGraph().Event("Skipped").
		State("skipping", func(context.Context, *agent.Work) (events.Payload, error) { return agent.Emit("Skipped", nil) }).
		Row(events.Planning, events.TypeLLMFinalAnswer, "skipping").
		Row("skipping", "Skipped", events.Acting)
	_, err := build(t, scripted.NewMock(scripted.Say("the answer")), func(b *agent.Builder) { b.Graph(graph) }).Run(t.Context(), task)
	var none *agent.ToolError
	require.ErrorAs(t, err, &none)
	require.Equal(t, codes.NoCurrentCall, none.Code)
}

// A fold that panics ends its run, and nothing else.
func TestMemoryError(t *testing.T) {
	t.Parallel()
	graph := agent.NewGraph().Fold(events.TypeLLMToolCall, func(*agent.Memory, *events.Event) { panic("cannot remember") })
	mock := scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Say("still here"))
	a := build(t, mock, func(b *agent.Builder) { b.Graph(graph) })
	_, err := a.Run(t.Context(), task)
	var forgot *agent.MemoryError
	require.ErrorAs(t, err, &forgot)
	require.Contains(t, forgot.Message, "cannot remember")
	require.Equal(t, uint64(2), a.Memory().Control.Poison.N)
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "still here", answer)
}

func TestGraphsThatAreWrong(t *testing.T) {
	t.Parallel()
	work := func(context.Context, *agent.Work) (events.Payload, error) { return nil, nil }
	for says, graph := range map[string]*agent.Graph{
		"event Reviewed: is used, but not added with Event": agent.NewGraph().State("x", work).Row(events.Planning, "Reviewed", "x").Row("x", events.TypeContinue, events.Done),
		"event Nothing: is used":                            agent.NewGraph().Fold("Nothing", nil),
		"state waiting_for_user: is built in":               agent.NewGraph().State(events.WaitingForUser, work),
		"state x: no row leads there":                       agent.NewGraph().State("x", work),
		"state x: no row leads out of it":                   agent.NewGraph().State("x", work).Row(events.Planning, events.TypeContinue, "x"),
		"state x: is in a row, but neither added":           agent.NewGraph().Row(events.Planning, events.TypeContinue, "x").Row("x", events.TypeContinue, events.Done),
		"state x: is terminal, so it has no work":           agent.NewGraph().State("x", work).Terminal("x").Row(events.Planning, events.TypeContinue, "x"),
		`event type "LlmThought": is already registered`:    agent.NewGraph().Event(events.TypeLLMThought),
		"done is terminal, nothing leaves it":               agent.NewGraph().Row(events.Done, events.TypeContinue, events.Planning),
		`state "acting_x": names that begin with acting_`:   agent.NewGraph().State("acting_x", work).Row(events.Planning, events.TypeContinue, "acting_x").Row("acting_x", events.TypeContinue, events.Done),
	} {
		t.Run(says, func(t *testing.T) {
			a, err := agent.New("agent").LLM(scripted.NewMock()).Graph(graph).Build()
			if err == nil {
				_, err = a.Run(t.Context(), task)
			}
			require.ErrorContains(t, err, says)
		})
	}
}

func TestEmit(t *testing.T) {
	t.Parallel()
	_, err := agent.Emit("X", []int{1})
	require.ErrorContains(t, err, "not a JSON object")
	_, err = agent.Emit("X", func() {})
	require.Error(t, err)
	p, err := agent.Emit("X", nil)
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(p.(*events.Custom).Data))
	require.Error(t, agent.Data(&events.Event{Data: &events.Continue{}}, &verdict{}))
}

// What is wrong with tools, providers and places is said when the agent is built.
func TestBuildErrors(t *testing.T) {
	t.Parallel()
	model := scripted.NewMock()
	for says, b := range map[string]*agent.Builder{
		"there is no model caller":                            agent.New("agent"),
		`there is no model caller "big"`:                      agent.New("agent").LLM(model).Use("big"),
		`there is no model caller "big", which a model names`: agent.New("agent").LLM(model).Model("m", "big/m"),
		`the model caller "big" is nil`:                       agent.New("agent").LLM(model).Provider("big", nil),
		`the provider "agent" has the name`:                   agent.New("agent").LLM(model).Provider("agent", model),
		"the function is nil":                                 agent.New("agent").LLM(model).Tool(agent.Func[query, string]("a", "a", nil)),
		"the input must be a struct":                          agent.New("agent").LLM(model).Tool(agent.Func("a", "a", func(context.Context, int) (string, error) { return "", nil })),
		"a tool is nil":                                       agent.New("agent").LLM(model).Tool(nil),
		"two tools have this name":                            agent.New("agent").LLM(model).Tool(searchTool(t), searchTool(t)),
		`name: "No Name" is not a name`:                       agent.New("No Name").LLM(model),
		"config.max_steps: must be at least 1":                agent.New("agent").LLM(model).MaxSteps(0),
		"the roles run in other processes, but no bus is":     agent.New("agent").Use("big").Elsewhere(),
	} {
		_, err := b.Build()
		var wrong *agent.BuildError
		require.ErrorAs(t, err, &wrong, says)
		require.ErrorContains(t, err, says)
	}
	a, err := agent.New("agent").LLM(model).Build()
	require.NoError(t, err)
	_, err = a.Run(t.Context(), " ")
	var refused *agent.Refused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refusal.CodeEmptyTask, refused.Code)
	_, err = build(t, model, nil).Attach(t.Context(), "no id")
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = build(t, model, nil).Attach(t.Context(), "018f0000-0000-7000-8000-000000000000")
	require.ErrorIs(t, err, journal.ErrNotFound)
}

// The last setting wins.
func TestLastSettingWins(t *testing.T) {
	t.Parallel()
	first, last := scripted.NewMock(), scripted.NewMock(scripted.Say("from the last one"))
	a := build(t, first, func(b *agent.Builder) {
		b.Provider("spare", first).Use("spare").LLM(first).Provider("spare", last).Use("spare").SystemPrompt("a").SystemPrompt("b").Model("m").Model("n")
	})
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "from the last one", answer)
	require.Zero(t, first.CallCount())
	require.Equal(t, "n", last.ModelForCall(0))
	require.Equal(t, "b", last.Requests()[0].Messages[0].Content)
	require.Equal(t, "spare", a.Memory().Control.Agent.LLM.Provider)
}

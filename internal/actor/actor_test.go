package actor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestSingleCall(t *testing.T) {
	for _, effect := range []tool.Effect{tool.Pure, tool.Idempotent, tool.Once} {
		t.Run(string(effect), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				f := &fn{def: tool.Definition{Name: "f", Effect: effect}, run: func(_ context.Context, c tool.Call) (string, error) {
					time.Sleep(30 * time.Millisecond) // in the bubble
					return c.Run + " " + c.ID + " " + c.Arguments, nil
				}}
				r.spawn([]tool.Tool{f})
				run := r.plan("f")
				o := r.outcome(run)
				require.Equal(t, &events.ToolOutcome{
					CallID: "c1", Success: true, Observation: "SUCCESS: " + run.ID + " c1 {}", Code: "ok", LatencyMS: 30,
				}, o)
				want := []string{"Start", "LlmToolCall", "ToolSuccess"}
				if effect == tool.Once {
					want = []string{"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess"}
				}
				quiet()
				require.Equal(t, want, r.Types(run))
				require.Equal(t, "moorebus/actor/1", r.Events(run)[2].Source)
				require.Equal(t, 1, f.count("c1"))
			})
		})
	}
}

func TestFailures(t *testing.T) {
	tools := []tool.Tool{
		pure("fails", "default", func(context.Context, tool.Call) (string, error) { return "", errors.New("disk full") }),
		pure("coded", "default", func(context.Context, tool.Call) (string, error) {
			return "", tool.Failf("http_status", "503 \xff")
		}),
		pure("panics", "default", func(context.Context, tool.Call) (string, error) { panic("at the disco") }),
		&fn{def: tool.Definition{Name: "hangs", Effect: tool.Pure, Timeout: time.Second}, run: func(ctx context.Context, _ tool.Call) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}},
	}
	for _, c := range []struct{ name, code, says string }{
		{"fails", "tool_failed", "ERROR: disk full"},
		{"coded", "http_status", "ERROR: 503 \uFFFD"},
		{"panics", "panic", "ERROR: the tool \"panics\" panicked: at the disco"},
		{"hangs", "timeout", "ERROR: the tool \"hangs\" did not finish within 1s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.spawn(tools)
				run := r.plan(c.name)
				o := r.outcome(run)
				require.False(t, o.Success)
				require.Equal(t, c.code, o.Code)
				require.Equal(t, c.says, o.Observation)
				require.Equal(t, []string{"Start", "LlmToolCall", "ToolFailure"}, r.Types(run), "it is data, not a failed attempt")
			})
		})
	}
}

func TestUnknownToolIsAFailure(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn([]tool.Tool{pure("known", "default", says("x"))})
		run := r.plan("gone") // its actor was replaced by one without it
		o := r.outcome(run)
		require.Equal(t, "not_found", o.Code)
		require.Equal(t, `ERROR: tool "gone" not found`, o.Observation)
	})
}

func TestOutcomeUnknownAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began := make(chan struct{}, 10)
		f := once("pay", func(ctx context.Context, _ tool.Call) (string, error) {
			began <- struct{}{}
			<-ctx.Done()
			return "paid", nil
		})
		p := r.spawn([]tool.Tool{f})
		run := r.plan("pay")
		<-began
		p.Kill()
		r.spawn([]tool.Tool{f})
		o := r.outcome(run)
		require.Equal(t, codes.OutcomeUnknown, o.Code)
		require.Contains(t, o.Observation, "pay")
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "LlmAttemptFailed", "ToolFailure"}, r.Types(run))
		require.Equal(t, 1, f.count("c1"), "it never runs twice")
	})
}

func TestRepeatableCallRunsAgainAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began := make(chan struct{}, 10)
		f := &fn{def: tool.Definition{Name: "get", Effect: tool.Idempotent}}
		f.run = func(ctx context.Context, c tool.Call) (string, error) {
			began <- struct{}{}
			if f.count(c.ID) == 1 {
				<-ctx.Done()
			}
			return c.IdempotencyKey(), nil
		}
		p := r.spawn([]tool.Tool{f})
		run := r.plan("get")
		<-began
		p.Kill()
		r.spawn([]tool.Tool{f})
		o := r.outcome(run)
		require.True(t, o.Success)
		require.Equal(t, "SUCCESS: "+run.ID+"/c1", o.Observation, "under the same key")
		require.Equal(t, []string{"Start", "LlmToolCall", "LlmAttemptFailed", "ToolSuccess"}, r.Types(run))
	})
}

func TestCancelledCall(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began, ended := make(chan struct{}), make(chan struct{})
		r.spawn([]tool.Tool{once("slow", func(ctx context.Context, _ tool.Call) (string, error) {
			close(began)
			<-ctx.Done()
			close(ended)
			return "", ctx.Err()
		})})
		run := r.plan("slow")
		<-began
		r.Append(run, events.Control, &events.CancelledRun{})
		<-ended
		quiet()
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "Cancelled"}, r.Types(run))
	})
}

// No state of a log leads to Acting without a call; one that is forged ends its
// run.
func TestActingWithoutACall(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Rows = append(spec.Rows, reducer.Row{From: events.Planning, Event: events.TypeContinue, To: events.Acting})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	bubble(t, func(t *testing.T, r *rig) {
		r.Machine = reducer.NewMachine(reducer.MachineOptions{Table: table})
		r.Store = r.NewStore(r.Journal)
		r.spawn([]tool.Tool{pure("f", "default", says("x"))})
		start := startWith(r)
		run := r.Start(start)
		r.Append(run, events.Planning, &events.Continue{})
		require.Equal(t, "no_current_call", r.AwaitEnd(run).Error.Code)
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		registry, err := toolset.New(pure("f", "default", says("x")))
		require.NoError(t, err)
		for name, spoil := range map[string]func(*actor.Config){
			"actor: Store":                  func(c *actor.Config) { c.Store = nil },
			"Tools":                         func(c *actor.Config) { c.Tools = nil },
			"KV":                            func(c *actor.Config) { c.KV = nil },
			"too short":                     func(c *actor.Config) { c.Results.Secrets = []string{"abc"} },
			"pattern":                       func(c *actor.Config) { c.Results.Patterns = []string{"("} },
			"MaxBytes":                      func(c *actor.Config) { c.Results.MaxBytes = 1000 },
			`the pool "agents" is reserved`: func(c *actor.Config) { c.Pools = []string{events.AgentsPool} },
		} {
			cfg := actor.Config{Base: worker.Base{Instance: "1", Store: r.Store, Queue: r.Journal, Feed: r.Journal}, KV: r.Journal, Tools: registry}
			spoil(&cfg)
			_, err := actor.New(cfg)
			require.ErrorContains(t, err, name)
		}
		agents, err := toolset.New(pure("f", events.AgentsPool, says("x")), pure("g", "web", says("x")))
		require.NoError(t, err)
		for _, pools := range [][]string{nil, {"web"}} {
			cfg := actor.Config{Base: worker.Base{Instance: "1", Store: r.Store, Queue: r.Journal, Feed: r.Journal}, KV: r.Journal, Tools: agents, Pools: pools}
			_, err := actor.New(cfg)
			require.ErrorContains(t, err, `the pool "agents" is reserved`)
		}
	})
}

// A human who lets a call run again that was started lets it run again.
func TestApprovedCallRunsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		f := once("pay", says("paid"))
		r.specs = []events.ToolSpec{{Name: "pay", Effect: "once", Pool: "default"}}
		run := r.plan("pay")
		r.Append(run, events.Acting, &events.ToolCallStarted{CallID: "c1"})
		r.Append(run, events.Acting, &events.HumanApprovalRequired{Requests: []events.Request{{CallID: "c1", Tool: "pay", Reason: "outcome unknown"}}})
		r.Append(run, events.WaitingForHuman, &events.HumanModified{Decision: events.Decision{CallID: "c1", Decision: "modified", Arguments: `{"again":true}`}})
		r.spawn([]tool.Tool{f})
		require.True(t, r.outcome(run).Success)
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "HumanApprovalRequired", "HumanModified", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
		require.Equal(t, `{"again":true}`, r.Memory(run).CurrentToolCall.Arguments)
	})
}

func TestAnnouncement(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, stop := r.run([]tool.Tool{pure("a", "default", says("")), pure("b", "web", says("")), pure("c", "math", says(""))},
			func(c *actor.Config) { c.Pools = []string{"web", "default"} })
		announced := func() (names []string) {
			synctest.Wait()
			specs, err := announce.NewDirectory(r.Journal, nil).Tools(t.Context())
			require.NoError(t, err)
			for _, s := range specs {
				names = append(names, s.Name+"/"+s.Pool+"/"+s.Effect+"/"+s.Risk)
			}
			return names
		}
		for range 3 {
			time.Sleep(25 * time.Second) // in the bubble
			require.Equal(t, []string{"a/default/pure/low", "b/web/pure/low"}, announced(), "only the pools it serves")
		}
		stop()
		require.Empty(t, announced(), "it is taken back")
	})
}

func TestStep(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		registry, err := toolset.New(pure("a", "default", says("1")), pure("b", "web", says("2")))
		require.NoError(t, err)
		made, err := actor.New(actor.Config{
			Base: worker.Base{Instance: "1", Store: r.Store, Queue: r.Journal, Feed: r.Journal}, KV: r.Journal, Tools: registry,
		})
		require.NoError(t, err)
		r.specs = append(actor.Specs(registry, "default"), actor.Specs(registry, "web")...)
		one, two := r.plan("a"), r.plan("b")
		require.NoError(t, made.Step(t.Context()))
		require.Len(t, r.Types(one), 3)
		require.Len(t, r.Types(two), 2)
		require.NoError(t, made.Step(t.Context()))
		require.Len(t, r.Types(two), 3)
		require.False(t, strings.Contains(strings.Join(append(r.Types(one), r.Types(two)...), " "), "LlmAttemptFailed"))
	})
}

package toolset_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

// fake is a tool that is a function, with a count of its runs.
type fake struct {
	def tool.Definition
	fn  func(ctx context.Context, call tool.Call) (string, error)

	mu     sync.Mutex
	runs   []time.Time
	closed bool
}

func (f *fake) Definition() tool.Definition { return f.def }

func (f *fake) Close() error {
	f.closed = true
	return nil
}

func (f *fake) Run(ctx context.Context, call tool.Call) (string, error) {
	f.mu.Lock()
	f.runs = append(f.runs, time.Now())
	f.mu.Unlock()
	return f.fn(ctx, call)
}

func returning(err error) func(context.Context, tool.Call) (string, error) {
	return func(context.Context, tool.Call) (string, error) { return "not a result", err }
}

func named(name, pool string) *fake {
	return &fake{def: tool.Definition{Name: name, Pool: pool}, fn: func(_ context.Context, call tool.Call) (string, error) {
		return call.Arguments, nil
	}}
}

func execute(t *testing.T, f *fake) toolset.Outcome {
	t.Helper()
	f.def.Name = "t"
	r, err := toolset.New(f)
	require.NoError(t, err)
	return r.Execute(t.Context(), tool.Call{Run: "r", ID: "c", Name: "t", Arguments: "{}"})
}

func requireCode(t *testing.T, out toolset.Outcome, code, want string) {
	t.Helper()
	require.NotNil(t, out.Failure)
	require.Equal(t, code, out.Failure.Code, out.Failure.Message)
	require.Contains(t, out.Failure.Message, want)
	require.Empty(t, out.Result)
}

func TestRegistryHoldsTools(t *testing.T) {
	b := named("b.tool-1", "web")
	r, err := toolset.New(b, named("a", ""), named("c", "web"))
	require.NoError(t, err)
	defs := r.Definitions()
	require.Len(t, defs, 3)
	require.Equal(t, tool.Definition{
		Name: "a", Schema: json.RawMessage(`{"type":"object"}`), Effect: tool.Once,
		Pool: "default", Risk: tool.Low, Timeout: 30 * time.Second,
	}, defs[0])
	require.Equal(t, "b.tool-1", defs[1].Name)
	require.Equal(t, []string{"default", "web"}, r.Pools())
	found, ok := r.Lookup("b.tool-1")
	require.True(t, ok)
	require.Equal(t, defs[1], found.Definition())
	_, ok = r.Lookup("d")
	require.False(t, ok)
	require.NoError(t, r.Close())
	require.True(t, b.closed)
}

func TestNewRegistryNamesEverythingThatIsWrong(t *testing.T) {
	_, err := toolset.New(named("a", ""), named("a", ""), named("", ""), named("b c", ""), named(strings.Repeat("x", 65), ""),
		&fake{def: tool.Definition{Name: "d", Effect: "twice", Risk: "none", Pool: "a b", Timeout: -1, Retries: -1, Breaker: tool.Breaker{Failures: -1, Open: -1}, Schema: json.RawMessage("{")}})
	for _, want := range []string{
		`"a": two tools`, `"": the name`, `"b c": the name`, `"` + strings.Repeat("x", 65),
		`effect "twice"`, `risk "none"`, `pool "a b"`, "timeout -1ns", "retries -1", "breaker.failures -1", "breaker.open -1ns", "not valid JSON",
	} {
		require.ErrorContains(t, err, want)
	}
	r, err := toolset.New()
	require.NoError(t, err)
	require.Empty(t, r.Definitions())
}

func Test_tool_registry_execute_unknown_returns_err(t *testing.T) {
	r, err := toolset.New()
	require.NoError(t, err)
	out := r.Execute(t.Context(), tool.Call{Name: "nope"})
	requireCode(t, out, tool.CodeNotFound, `"nope" not found`)
}

func TestExecuteSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := execute(t, &fake{fn: func(context.Context, tool.Call) (string, error) {
			<-time.After(3 * time.Second)
			return "a\x00ü", nil
		}})
		require.Equal(t, toolset.Outcome{Result: "a\x00ü", Latency: 3 * time.Second}, out)
	})
}

// A result that is not UTF-8 would be stored with other characters in its place.
func TestResultsAreUTF8(t *testing.T) {
	out := execute(t, &fake{fn: func(context.Context, tool.Call) (string, error) { return "caf\xe9", nil }})
	requireCode(t, out, tool.CodeFailed, "not UTF-8")
}

func TestExecuteContainsPanics(t *testing.T) {
	var log bytes.Buffer
	boom := &fake{def: tool.Definition{Name: "t"}, fn: func(context.Context, tool.Call) (string, error) {
		panic(fmt.Errorf("kaboom \xff"))
	}}
	r, err := toolset.New(boom)
	require.NoError(t, err)
	defer r.Start(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))()
	out := r.Execute(t.Context(), tool.Call{Name: "t"})
	requireCode(t, out, codes.Panic, "panicked: kaboom \uFFFD")
	require.NotContains(t, out.Failure.Message, "goroutine")
	require.Contains(t, log.String(), "registry_test.go")

	out = execute(t, &fake{fn: func(context.Context, tool.Call) (string, error) {
		runtime.Goexit()
		return "", nil
	}})
	requireCode(t, out, codes.Panic, "ended its goroutine")
	out = execute(t, &fake{fn: returning(explosive{})})
	requireCode(t, out, codes.Panic, "not even the error")
}

// explosive is an error that cannot be printed.
type explosive struct{}

func (explosive) Error() string { panic("not even the error") }

func TestExecuteNamesErrors(t *testing.T) {
	var none *tool.Failure
	for _, c := range []struct {
		err        error
		code, want string
	}{
		{errors.New("disk \xff full"), tool.CodeFailed, "disk \uFFFD full"},
		{tool.Failf("no_seat", "none left"), "no_seat", "none left"},
		{fmt.Errorf("booking: %w", tool.Failf("no_seat", "none left")), "no_seat", "booking: none left"},
		{&tool.Failure{Message: "codeless"}, tool.CodeFailed, "codeless"},
		{none, tool.CodeFailed, "without saying why"},
		{fmt.Errorf("inner: %w", context.DeadlineExceeded), tool.CodeTimeout, "inner"},
		{context.Canceled, tool.CodeFailed, "canceled"},
	} {
		requireCode(t, execute(t, &fake{def: tool.Definition{Effect: tool.Pure}, fn: returning(c.err)}), c.code, c.want)
	}
}

func TestExecuteTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := execute(t, &fake{fn: func(ctx context.Context, _ tool.Call) (string, error) {
			<-ctx.Done()
			f := tool.Failf("late", "noticed: %v", ctx.Err())
			f.NotSent = true
			return "", f
		}})
		requireCode(t, out, tool.CodeTimeout, "did not finish within 30s")
		require.Equal(t, 30*time.Second, out.Latency)
		require.True(t, out.Failure.NotSent)
	})
}

func TestExecuteLeavesStubbornToolsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stubborn := func() *fake {
			return &fake{def: tool.Definition{Effect: tool.Pure, Timeout: time.Second}, fn: func(context.Context, tool.Call) (string, error) {
				<-release
				return "late", nil
			}}
		}
		out := execute(t, stubborn())
		requireCode(t, out, tool.CodeTimeout, "within 1s")
		require.Less(t, out.Latency, 2*time.Second)

		r, err := toolset.New(&fake{def: tool.Definition{Name: "t"}, fn: stubborn().fn})
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		go cancel(errors.New("obsolete"))
		out = r.Execute(ctx, tool.Call{Name: "t"})
		requireCode(t, out, codes.Cancelled, "obsolete")
		require.Less(t, out.Latency, time.Second)
		close(release)
	})
}

// What a tool did is done, even if its time was up while it finished.
func TestExecuteKeepsALateSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := execute(t, &fake{def: tool.Definition{Timeout: time.Second}, fn: func(ctx context.Context, _ tool.Call) (string, error) {
			<-ctx.Done()
			return "done", nil
		}})
		require.Nil(t, out.Failure)
		require.Equal(t, "done", out.Result)
	})
}

func TestExecuteRetries(t *testing.T) {
	busy := &tool.Failure{Code: tool.CodeHTTPStatus, Message: "503", Passing: true}
	away := &tool.Failure{Code: tool.CodeUnreachable, Message: "reset"}
	notSent := &tool.Failure{Code: tool.CodeUnreachable, Message: "refused", NotSent: true}
	for _, c := range []struct {
		name   string
		effect tool.Effect
		err    error
		runs   int
	}{
		{"pure", tool.Pure, busy, 3},
		{"idempotent", tool.Idempotent, away, 3},
		{"timeout", tool.Pure, context.DeadlineExceeded, 3},
		{"once", tool.Once, away, 1},
		{"once busy", tool.Once, busy, 1},
		{"once not sent", tool.Once, notSent, 3},
		{"permanent", tool.Pure, &tool.Failure{Code: tool.CodeHTTPStatus, Message: "404"}, 1},
		{"permanent not sent", tool.Once, &tool.Failure{Code: tool.CodeFailed, Message: "no command", NotSent: true}, 1},
		{"failed", tool.Pure, errors.New("no"), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{def: tool.Definition{Effect: c.effect, Retries: 2}, fn: returning(c.err)}
			out := execute(t, f)
			require.NotNil(t, out.Failure, c.name)
			require.Len(t, f.runs, c.runs, c.name)
			if c.runs == 3 {
				require.Equal(t, 100*time.Millisecond, f.runs[1].Sub(f.runs[0]))
				require.Equal(t, 200*time.Millisecond, f.runs[2].Sub(f.runs[1]))
				require.Equal(t, 300*time.Millisecond, out.Latency)
			}
		})
	}
}

// Only a tool that may not run twice has unknown outcomes, and only if it was sent
// the call and did not say what became of it.
func TestUnansweredOnceCalls(t *testing.T) {
	for _, c := range []struct {
		effect tool.Effect
		err    error
		code   string
	}{
		{tool.Once, context.DeadlineExceeded, codes.OutcomeUnknown},
		{tool.Once, fmt.Errorf("calling: %w", tool.Failf(tool.CodeUnreachable, "reset")), codes.OutcomeUnknown},
		{tool.Once, &tool.Failure{Code: tool.CodeTimeout, Message: "connecting", NotSent: true}, tool.CodeTimeout},
		{tool.Once, tool.Failf(tool.CodeHTTPStatus, "503"), tool.CodeHTTPStatus},
		{tool.Idempotent, context.DeadlineExceeded, tool.CodeTimeout},
		{tool.Pure, tool.Failf(tool.CodeUnreachable, "reset"), tool.CodeUnreachable},
	} {
		out := execute(t, &fake{def: tool.Definition{Effect: c.effect}, fn: returning(c.err)})
		requireCode(t, out, c.code, "")
		require.Equal(t, c.code == codes.OutcomeUnknown, strings.HasSuffix(out.Failure.Message, "; it may or may not have taken effect"))
	}
}

// A tool that wants to be left alone is, but not for longer than a call waits.
func TestExecuteWaitsAsLongAsItIsTold(t *testing.T) {
	for after, runs := range map[time.Duration]int{3 * time.Second: 2, 5 * time.Second: 2, 6 * time.Second: 1} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{def: tool.Definition{Effect: tool.Pure, Retries: 1}, fn: returning(&tool.Failure{Passing: true, RetryAfter: after})}
			execute(t, f)
			require.Len(t, f.runs, runs)
			if runs == 2 {
				require.Equal(t, after, f.runs[1].Sub(f.runs[0]))
			}
		})
	}
}

func TestExecuteRetriesUntilItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{def: tool.Definition{Effect: tool.Pure, Retries: 9}}
		f.fn = func(context.Context, tool.Call) (string, error) {
			if len(f.runs) < 9 {
				return "", tool.Failf(tool.CodeUnreachable, "not yet")
			}
			return "works", nil
		}
		out := execute(t, f)
		require.Nil(t, out.Failure)
		require.Equal(t, "works", out.Result)
		require.Equal(t, 5*time.Second, f.runs[8].Sub(f.runs[7]), "pauses are bounded")
	})
}

func TestExecuteIsCancelledBetweenRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{def: tool.Definition{Name: "t", Effect: tool.Pure, Retries: 9}, fn: returning(tool.Failf(tool.CodeUnreachable, "away"))}
		r, err := toolset.New(f)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		out := r.Execute(ctx, tool.Call{Name: "t"})
		requireCode(t, out, codes.Cancelled, "away")
		require.Equal(t, 250*time.Millisecond, out.Latency)
		require.Len(t, f.runs, 2)

		out = r.Execute(ctx, tool.Call{Name: "t"})
		requireCode(t, out, codes.Cancelled, "before it started")
		require.True(t, out.Failure.NotSent)
		require.Len(t, f.runs, 2)
	})
}

func TestExecuteInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{def: tool.Definition{Name: "t"}, fn: func(context.Context, tool.Call) (string, error) {
			<-time.After(100 * time.Millisecond)
			return "ok", nil
		}}
		r, err := toolset.New(f)
		require.NoError(t, err)
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { r.Execute(t.Context(), tool.Call{Name: "t"}) })
		}
		wg.Wait()
		require.Less(t, time.Since(start), 180*time.Millisecond)
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

package breaker_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/breaker"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a tool that does what run says, and counts its runs.
type fake struct {
	def  tool.Definition
	run  func(ctx context.Context) error
	runs int
}

func (f *fake) Definition() tool.Definition { return f.def }

func (f *fake) Run(ctx context.Context, _ tool.Call) (string, error) {
	f.runs++
	return "ok", f.run(ctx)
}

func guarded(t *testing.T, f *fake) func(ctx context.Context) string {
	t.Helper()
	f.def.Name = "t"
	r, err := toolset.NewWith(toolset.Options{Gate: breaker.New}, f)
	require.NoError(t, err)
	return func(ctx context.Context) string {
		out := r.Execute(ctx, tool.Call{Run: "r", ID: "c", Name: "t"})
		if out.Failure == nil {
			return tool.CodeOK
		}
		return out.Failure.Code
	}
}

func failing(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func hanging(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestWhatOpensACircuit(t *testing.T) {
	for name, c := range map[string]struct {
		run   func(context.Context) error
		opens bool
	}{
		"unreachable":   {failing(tool.Failf(tool.CodeUnreachable, "away")), true},
		"timeout":       {hanging, true},
		"panic":         {func(context.Context) error { panic("boom") }, true},
		"overloaded":    {failing(&tool.Failure{Code: tool.CodeHTTPStatus, Passing: true}), true},
		"a bad request": {failing(tool.Failf(tool.CodeHTTPStatus, "404")), false},
		"exit status":   {failing(tool.Failf(tool.CodeExitStatus, "1")), false},
		"an error":      {failing(errors.New("no")), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{run: c.run}
				execute := guarded(t, f)
				for range breaker.DefaultFailures {
					require.NotEqual(t, tool.CodeCircuitOpen, execute(t.Context()))
				}
				require.Equal(t, c.opens, execute(t.Context()) == tool.CodeCircuitOpen)
				runs := breaker.DefaultFailures
				if !c.opens {
					runs++
				}
				require.Equal(t, runs, f.runs)
			})
		})
	}
}

// What this machine lacks says nothing about the tool.
func TestAShortageOpensNoCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{run: failing(&tool.Failure{Code: tool.CodeUnreachable, NotSent: true, Err: os.NewSyscallError("socket", syscall.EMFILE)})}
		execute := guarded(t, f)
		for range 2 * breaker.DefaultFailures {
			require.Equal(t, tool.CodeUnreachable, execute(t.Context()))
		}
		f.run = func(context.Context) error { return nil }
		require.Equal(t, tool.CodeOK, execute(t.Context()))
	})
}

// Only failures in a row open it, and an ordinary error is an answer.
func TestSuccessesStartTheCountAgain(t *testing.T) {
	away := tool.Failf(tool.CodeUnreachable, "away")
	for _, answer := range []error{nil, errors.New("no such city")} {
		f := &fake{def: tool.Definition{Breaker: tool.Breaker{Failures: 3}}}
		execute := guarded(t, f)
		for range 5 {
			for _, err := range []error{away, away, answer} {
				f.run = failing(err)
				require.NotEqual(t, tool.CodeCircuitOpen, execute(t.Context()))
			}
		}
	}
}

func TestOneProbeClosesOrOpensIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{def: tool.Definition{Effect: tool.Pure, Breaker: tool.Breaker{Failures: 1, Open: time.Minute}}, run: hanging}
		execute := guarded(t, f)
		require.Equal(t, tool.CodeTimeout, execute(t.Context()))
		began := time.Now()
		require.Equal(t, tool.CodeCircuitOpen, execute(t.Context()))
		require.Zero(t, time.Since(began), "it is answered at once")

		time.Sleep(time.Minute + 1) // in the bubble
		probe := make(chan string)
		go func() { probe <- execute(t.Context()) }()
		synctest.Wait()
		require.Equal(t, tool.CodeCircuitOpen, execute(t.Context()), "one at a time")
		require.Equal(t, tool.CodeTimeout, <-probe)
		require.Equal(t, tool.CodeCircuitOpen, execute(t.Context()), "it is still down")

		time.Sleep(time.Minute + 1) // in the bubble
		ctx, cancel := context.WithCancel(t.Context())
		go func() { probe <- execute(ctx) }()
		synctest.Wait()
		cancel()
		require.Equal(t, tool.CodeCancelled, <-probe)
		f.run = failing(nil)
		require.Equal(t, tool.CodeOK, execute(t.Context()), "a probe that was cancelled says nothing, and the next may try")
		require.Equal(t, tool.CodeOK, execute(t.Context()))
		require.Equal(t, 5, f.runs)
	})
}

// A circuit that opens under a call's retries leaves it with the failure that
// opened it.
func TestRetriesEndWhenTheCircuitOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			def: tool.Definition{Effect: tool.Pure, Retries: 9, Breaker: tool.Breaker{Failures: 2}},
			run: failing(tool.Failf(tool.CodeUnreachable, "away")),
		}
		execute := guarded(t, f)
		require.Equal(t, tool.CodeUnreachable, execute(t.Context()))
		require.Equal(t, 2, f.runs)
		require.Equal(t, tool.CodeCircuitOpen, execute(t.Context()))
		require.Equal(t, 2, f.runs)
	})
}

func TestACircuitCanBeTurnedOff(t *testing.T) {
	require.Nil(t, breaker.New(tool.Definition{Breaker: tool.Breaker{Off: true}}))
}

package toolset_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

func guarded(t *testing.T, f *fake) func(ctx context.Context) string {
	t.Helper()
	f.def.Name = "t"
	r, err := toolset.NewWith(toolset.Options{Breakers: true}, f)
	require.NoError(t, err)
	return func(ctx context.Context) string {
		out := r.Execute(ctx, tool.Call{Run: "r", ID: "c", Name: "t"})
		if out.Failure == nil {
			return codes.OK
		}
		return out.Failure.Code
	}
}

func hanging(ctx context.Context, _ tool.Call) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func TestWhatOpensACircuit(t *testing.T) {
	for name, c := range map[string]struct {
		run   func(context.Context, tool.Call) (string, error)
		opens bool
	}{
		"unreachable":   {returning(tool.Failf(tool.CodeUnreachable, "away")), true},
		"timeout":       {hanging, true},
		"panic":         {func(context.Context, tool.Call) (string, error) { panic("boom") }, true},
		"overloaded":    {returning(&tool.Failure{Code: tool.CodeHTTPStatus, Passing: true}), true},
		"a bad request": {returning(tool.Failf(tool.CodeHTTPStatus, "404")), false},
		"exit status":   {returning(tool.Failf(tool.CodeExitStatus, "1")), false},
		"an error":      {returning(errors.New("no")), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{fn: c.run}
				execute := guarded(t, f)
				for range toolset.DefaultFailures {
					require.NotEqual(t, codes.CircuitOpen, execute(t.Context()))
				}
				require.Equal(t, c.opens, execute(t.Context()) == codes.CircuitOpen)
				runs := toolset.DefaultFailures
				if !c.opens {
					runs++
				}
				require.Len(t, f.runs, runs)
			})
		})
	}
}

// What this machine lacks says nothing about the tool.
func TestAShortageOpensNoCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{fn: returning(&tool.Failure{Code: tool.CodeUnreachable, NotSent: true, Err: os.NewSyscallError("socket", syscall.EMFILE)})}
		execute := guarded(t, f)
		for range 2 * toolset.DefaultFailures {
			require.Equal(t, tool.CodeUnreachable, execute(t.Context()))
		}
		f.fn = returning(nil)
		require.Equal(t, codes.OK, execute(t.Context()))
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
				f.fn = returning(err)
				require.NotEqual(t, codes.CircuitOpen, execute(t.Context()))
			}
		}
	}
}

func TestOneProbeClosesOrOpensIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{def: tool.Definition{Effect: tool.Pure, Breaker: tool.Breaker{Failures: 1, Open: time.Minute}}, fn: hanging}
		execute := guarded(t, f)
		require.Equal(t, tool.CodeTimeout, execute(t.Context()))
		began := time.Now()
		require.Equal(t, codes.CircuitOpen, execute(t.Context()))
		require.Zero(t, time.Since(began), "it is answered at once")

		time.Sleep(time.Minute + 1) // in the bubble
		probe := make(chan string)
		go func() { probe <- execute(t.Context()) }()
		synctest.Wait()
		require.Equal(t, codes.CircuitOpen, execute(t.Context()), "one at a time")
		require.Equal(t, tool.CodeTimeout, <-probe)
		require.Equal(t, codes.CircuitOpen, execute(t.Context()), "it is still down")

		time.Sleep(time.Minute + 1) // in the bubble
		ctx, cancel := context.WithCancel(t.Context())
		go func() { probe <- execute(ctx) }()
		synctest.Wait()
		cancel()
		require.Equal(t, codes.Cancelled, <-probe)
		f.fn = returning(nil)
		require.Equal(t, codes.OK, execute(t.Context()), "a probe that was cancelled says nothing, and the next may try")
		require.Equal(t, codes.OK, execute(t.Context()))
		require.Len(t, f.runs, 5)
	})
}

// A circuit that opens under a call's retries leaves it with the failure that
// opened it.
func TestRetriesEndWhenTheCircuitOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			def: tool.Definition{Effect: tool.Pure, Retries: 9, Breaker: tool.Breaker{Failures: 2}},
			fn:  returning(tool.Failf(tool.CodeUnreachable, "away")),
		}
		execute := guarded(t, f)
		require.Equal(t, tool.CodeUnreachable, execute(t.Context()))
		require.Len(t, f.runs, 2)
		require.Equal(t, codes.CircuitOpen, execute(t.Context()))
		require.Len(t, f.runs, 2)
	})
}

func TestACircuitCanBeTurnedOff(t *testing.T) {
	f := &fake{def: tool.Definition{Breaker: tool.Breaker{Off: true}}, fn: returning(tool.Failf(tool.CodeUnreachable, "away"))}
	execute := guarded(t, f)
	for range 2 * toolset.DefaultFailures {
		require.NotEqual(t, codes.CircuitOpen, execute(t.Context()))
	}
}

package custom_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/custom"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const reviewing = events.State("reviewing")

// machine has reviewing between planning and done.
func machine(t testing.TB) *reducer.Machine {
	t.Helper()
	spec := reducer.DefaultTable().Spec()
	spec.Rows = append(spec.Rows,
		reducer.Row{From: events.Planning, Event: "ReviewNeeded", To: reviewing},
		reducer.Row{From: reviewing, Event: "Reviewed", To: events.Done})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	codec, err := events.NewCodec(events.TypeSpec{Type: "ReviewNeeded"}, events.TypeSpec{Type: "Reviewed"})
	require.NoError(t, err)
	return reducer.NewMachine(reducer.MachineOptions{Table: table, Codec: codec})
}

func event(name events.Type) *events.Custom { return &events.Custom{Name: name, Data: []byte("{}")} }

// inReview brings a run to reviewing and serves that state with the handler.
func inReview(t *testing.T, handler custom.Handler, test func(t *testing.T, b *workertest.Bench, c *custom.Custom, run events.Run)) {
	synctest.Test(t, func(t *testing.T) {
		b := workertest.New(t, simtest.Options{}, machine(t))
		p := b.Journal.NewProcess()
		c, err := custom.New(custom.Config{
			Base: worker.Base{Instance: "1", Store: b.NewStore(p), Queue: p, Feed: p}, Timeout: time.Minute,
			States: map[events.State]custom.Handler{reviewing: handler},
		})
		require.NoError(t, err)
		run := b.Start(reducertest.StartOf("x", events.ModeTask))
		b.Append(run, events.Planning, event("ReviewNeeded"))
		test(t, b, c, run)
	})
}

func TestHandlerTakesTheRunOn(t *testing.T) {
	var seen *reducer.Memory
	handler := func(_ context.Context, v custom.Visit) (events.Payload, error) {
		mem := v.Memory
		seen = mem
		mem.Task, mem.State = "changed", events.Done // its own copy
		return event("Reviewed"), nil
	}
	inReview(t, handler, func(t *testing.T, b *workertest.Bench, c *custom.Custom, run events.Run) {
		require.NoError(t, c.Step(t.Context()))
		require.Equal(t, []string{"Start", "ReviewNeeded", "Reviewed"}, b.Types(run))
		require.Equal(t, "x", b.Memory(run).Task)
		require.Equal(t, run.ID, seen.RunID)
		require.Equal(t, "moorebus/custom/1", b.Events(run)[2].Source)
	})
}

// A failure is tried again, and what passes goes on.
func TestHandlerThatFailsAtFirst(t *testing.T) {
	tries := 0
	handler := func(ctx context.Context, _ custom.Visit) (events.Payload, error) {
		switch tries++; tries {
		case 1:
			return nil, errors.New("not yet")
		case 2:
			panic("not at all")
		case 3:
			<-ctx.Done() // as long as it may
			return nil, ctx.Err()
		}
		return event("Reviewed"), nil
	}
	inReview(t, handler, func(t *testing.T, b *workertest.Bench, c *custom.Custom, run events.Run) {
		stop := b.Go(c.Run)
		require.Equal(t, events.Done, b.AwaitEnd(run).State)
		stop()
		require.Equal(t, 3, b.Count(run, events.TypeLLMAttemptFailed))
		var says []string
		for _, e := range b.Events(run) {
			if p, ok := e.Data.(*events.LLMAttemptFailed); ok {
				says = append(says, p.Message)
			}
		}
		require.Equal(t, "not yet", says[0])
		require.Contains(t, says[1], "panic: not at all")
		require.Contains(t, says[2], context.DeadlineExceeded.Error())
	})
}

// A run that is cancelled cancels its handler.
func TestCancelledRunCancelsItsHandler(t *testing.T) {
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	handler := func(ctx context.Context, _ custom.Visit) (events.Payload, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}
	inReview(t, handler, func(t *testing.T, b *workertest.Bench, c *custom.Custom, run events.Run) {
		defer b.Go(c.Run)()
		<-began
		b.Append(run, events.Control, &events.CancelledRun{})
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestStateWithoutAHandler(t *testing.T) {
	inReview(t, nil, func(t *testing.T, b *workertest.Bench, c *custom.Custom, run events.Run) {
		require.NoError(t, c.Step(t.Context()))
		require.Equal(t, codes.NoHandler, b.Memory(run).Error.Code)
	})
}

func TestNewChecksItsStates(t *testing.T) {
	b := workertest.New(t, simtest.Options{}, machine(t))
	for says, state := range map[string]events.State{
		"state planning is another role's":                events.Planning,
		"state unheard_of is not in the transition table": "unheard_of",
	} {
		_, err := custom.New(custom.Config{Base: worker.Base{Instance: "1", Store: b.Store, Queue: b.Journal, Feed: b.Journal}, States: map[events.State]custom.Handler{state: nil}})
		require.ErrorContains(t, err, says)
	}
	_, err := custom.New(custom.Config{})
	require.ErrorContains(t, err, "required")
	_, err = custom.New(custom.Config{Base: worker.Base{Store: b.Store}, States: map[events.State]custom.Handler{reviewing: nil}})
	require.Error(t, err)
}

package agent_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

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
		a, err := agent.New("x").LLM(scripted.NewMock(scripted.Say("hello"))).Bus(cutOff{j.NewProcess(), new(sync.Once), cancel, &run}).Build()
		require.NoError(t, err)
		began := time.Now()
		_, err = a.Run(ctx)
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
		a, err := agent.New("x").LLM(scripted.NewMock(scripted.Say("hello"))).Bus(lost{p, new(sync.Once), cancel}).Build()
		require.NoError(t, err)
		_, err = a.Start(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.NotContains(t, err.Error(), "there is no run")
		answer, err := a.Run(t.Context())
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
		a, err := agent.New("x").LLM(model).Chat().Bus(bus).Build()
		require.NoError(t, err)
		first, err := a.Start(t.Context())
		require.NoError(t, err)
		_, err = first.Answer(t.Context())
		require.NoError(t, err)
		close(bus.broken)
		synctest.Wait() // until every role has ended
		_, err = first.Send(t.Context(), "more")
		require.ErrorIs(t, err, errBroken)
		bus.broken = make(chan struct{})
		answer, err := a.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, "again", answer)
		require.ErrorIs(t, first.Release(), errBroken, "why they had ended")
	})
}

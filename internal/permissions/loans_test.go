package permissions

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TestLoans: actors of a pool lend to each other under their permissions, read which
// tools the pool has, and take their announcements back. An actor of another pool
// cannot lend to them, and is told so at once.
func TestLoans(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lender, borrower, other := r.open(t, "actor_web"), r.open(t, "actor_web"), r.open(t, "actor_gpu")
	run := journaltest.NewRun(t, r.log)
	_, err := r.log.Append(t.Context(), run, 0, journaltest.Entry(run, events.Acting, "web", "{}"))
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	got, ended := make(chan journal.Delivery, 1), make(chan error, 1)
	go func() {
		ended <- lender.Consume(ctx, inbox("web", events.Acting, events.ParallelActing), 1, func(d journal.Delivery) { got <- d })
	}()
	d := <-got
	defer func() { stop(); require.NoError(t, <-ended) }()
	loan := journal.Loan{Pool: "web", Name: "search", Key: "tool/2/c1"}
	done, err := borrower.Borrow("web", "search", func(d journal.Delivery, l journal.Loan) (time.Duration, error) {
		return time.Second, d.Extend()
	})
	require.NoError(t, err)
	defer done()
	require.Eventually(t, func() bool {
		retry, err := lender.Lend(ctx, d, loan)
		return err == nil && retry == time.Second
	}, patience, 10*time.Millisecond)
	_, err = other.Lend(ctx, d, loan)
	require.ErrorIs(t, err, journal.ErrDenied)
	require.NoError(t, d.Ack())

	spec := events.ToolSpec{Name: "search", Pool: "web", Effect: "pure", Risk: "low"}
	require.NoError(t, borrower.Announce(ctx, "web", "b", []events.ToolSpec{spec}))
	tools, err := lender.PoolTools(ctx, "web")
	require.NoError(t, err)
	require.Equal(t, []string{"search"}, []string{tools[0].Name})
	require.NoError(t, borrower.Withdraw(ctx, "web", "b"))
	tools, err = lender.PoolTools(ctx, "web")
	require.NoError(t, err)
	require.Empty(t, tools)
}

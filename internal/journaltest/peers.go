package journaltest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

// LogPeers is a journal of one process that can append, deliver and lend.
type LogPeers interface {
	LogQueue
	ports.Peers
}

// Peers tests [ports.Peers]. The factory returns two processes on one journal, whose
// ack wait should be two seconds or less. Play runs each test: a journal without a network is
// tested with [testing/synctest.Test], where a busy machine cannot delay an extension.
func Peers(t *testing.T, play func(*testing.T, func(*testing.T)), open func(t *testing.T) (lender, borrower LogPeers)) {
	for name, test := range map[string]func(*testing.T, LogPeers, LogPeers){
		"what was done":             testLend,
		"what went wrong":           testLoanErrors,
		"nobody":                    testNobodyBorrows,
		"only the lender itself":    testLendToItself,
		"the delivery is extended":  testLoanExtends,
		"the lender ends meanwhile": testLenderEnds,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, func(t *testing.T) {
				lender, borrower := open(t)
				test(t, lender, borrower)
			})
		})
	}
}

// InRealTime plays a test as it is.
func InRealTime(t *testing.T, test func(*testing.T)) { test(t) }

// held is a delivery in its own pool.
func held(t *testing.T, lender LogPeers) (pool string, d journal.Delivery, c *consumer) {
	t.Helper()
	pool = NewToken(t)
	c = consume(t, lender, acting(pool), 4, nil)
	spread(t, lender, pool, 1)
	return pool, c.next(t), c
}

func testLend(t *testing.T, lender, borrower LogPeers) {
	pool, d, _ := held(t, lender)
	loan := ports.Loan{Pool: pool, Name: "a.tool", Key: "tool/2/c1", Started: 7}
	stop, err := borrower.Borrow(pool, loan.Name, func(got journal.Delivery, l ports.Loan) (time.Duration, error) {
		if l != loan || got.Record().Subject != d.Record().Subject || got.Record().Seq != d.Record().Seq || got.Attempt() != d.Attempt() {
			return 0, ports.ErrPeerHolds
		}
		return 3 * time.Second, errors.Join(got.Ack(), got.Retry(0), got.Extend())
	})
	require.NoError(t, err)
	defer stop()
	retry := awaitLoan(t, lender, d, loan)
	require.Equal(t, 3*time.Second, retry)
	require.NoError(t, d.Ack())
}

// awaitLoan lends until somebody takes it: an offer is known a moment after it is made.
func awaitLoan(t *testing.T, lender LogPeers, d journal.Delivery, l ports.Loan) (retry time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		retry, err = lender.Lend(bounded(t), d, l)
		if err != nil {
			require.ErrorIs(t, err, ports.ErrNoPeer)
		}
		return err == nil
	}, patience, 20*time.Millisecond)
	return retry
}

func testLoanErrors(t *testing.T, lender, borrower LogPeers) {
	pool, d, _ := held(t, lender)
	for name, want := range map[string]error{
		"busy": ports.ErrPeersBusy, "held": ports.ErrPeerHolds, "lost": ports.ErrPeerLost,
	} {
		stop, err := borrower.Borrow(pool, name, func(journal.Delivery, ports.Loan) (time.Duration, error) { return 0, want })
		require.NoError(t, err)
		defer stop()
		require.Eventually(t, func() bool {
			_, err := lender.Lend(bounded(t), d, ports.Loan{Pool: pool, Name: name})
			return errors.Is(err, want)
		}, patience, 20*time.Millisecond, name)
	}
	require.NoError(t, d.Ack())
}

func testNobodyBorrows(t *testing.T, lender, borrower LogPeers) {
	pool, d, _ := held(t, lender)
	stop, err := borrower.Borrow(pool, "other", func(journal.Delivery, ports.Loan) (time.Duration, error) { return 0, nil })
	require.NoError(t, err)
	awaitLoan(t, lender, d, ports.Loan{Pool: pool, Name: "other"})
	_, err = lender.Lend(bounded(t), d, ports.Loan{Pool: pool, Name: "tool"})
	require.ErrorIs(t, err, ports.ErrNoPeer)
	stop()
	require.Eventually(t, func() bool {
		_, err := lender.Lend(bounded(t), d, ports.Loan{Pool: pool, Name: "other"})
		return errors.Is(err, ports.ErrNoPeer)
	}, patience, 20*time.Millisecond)
	require.NoError(t, d.Ack())
}

// testLendToItself: the lender may be asked itself, and is told what it answers.
func testLendToItself(t *testing.T, lender, _ LogPeers) {
	pool, d, _ := held(t, lender)
	asked := make(chan struct{}, 1)
	stop, err := lender.Borrow(pool, "tool", func(journal.Delivery, ports.Loan) (time.Duration, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		return 0, ports.ErrNoPeer
	})
	require.NoError(t, err)
	defer stop()
	require.Eventually(t, func() bool {
		_, err := lender.Lend(bounded(t), d, ports.Loan{Pool: pool, Name: "tool"})
		require.ErrorIs(t, err, ports.ErrNoPeer)
		return len(asked) > 0
	}, patience, 20*time.Millisecond)
	require.NoError(t, d.Ack())
}

// testLoanExtends: the lender does not extend here, and nothing comes again.
func testLoanExtends(t *testing.T, lender, borrower LogPeers) {
	pool, d, c := held(t, lender)
	wait, err := lender.AckWait(bounded(t), acting(pool))
	require.NoError(t, err)
	stop, err := borrower.Borrow(pool, "tool", func(journal.Delivery, ports.Loan) (time.Duration, error) {
		c.nothing(t, 2*wait)
		return 0, nil
	})
	require.NoError(t, err)
	defer stop()
	awaitLoan(t, lender, d, ports.Loan{Pool: pool, Name: "tool"})
	require.NoError(t, d.Ack())
}

func testLenderEnds(t *testing.T, lender, borrower LogPeers) {
	pool, d, _ := held(t, lender)
	ctx, cancel := context.WithCancel(bounded(t))
	finish := make(chan struct{})
	stop, err := borrower.Borrow(pool, "tool", func(_ journal.Delivery, l ports.Loan) (time.Duration, error) {
		if l.Key == "slow" {
			cancel()
			<-finish
		}
		return 0, nil
	})
	require.NoError(t, err)
	defer stop()
	defer close(finish)
	awaitLoan(t, lender, d, ports.Loan{Pool: pool, Name: "tool"})
	_, err = lender.Lend(ctx, d, ports.Loan{Pool: pool, Name: "tool", Key: "slow"})
	require.ErrorIs(t, err, ports.ErrPeerHolds)
	require.ErrorIs(t, err, context.Canceled)
}

package ports

import (
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// The errors of [Peers.Lend], in addition to those of the bus.
var (
	// ErrNoPeer says that no other worker takes the loan: no worker offers the name, or the
	// one that does no longer has it or does not answer.
	ErrNoPeer = errors.New("no other worker takes it")
	// ErrPeersBusy says that a worker offers the name and has no free slot.
	ErrPeersBusy = errors.New("the other worker has no free slot")
	// ErrPeerLost says that a worker took the loan and was not heard of for the
	// ack wait. It may have done the work, or a part of it.
	ErrPeerLost = errors.New("the worker that took it went away")
	// ErrPeerHolds says that another worker may still be at the work, so that the
	// delivery has to be left without a verdict: the caller's context ended
	// meanwhile, or the work was started under another delivery.
	ErrPeerHolds = errors.New("another worker is at it")
)

// Loan is one piece of work under a delivery. The receiver finds all else in the log.
type Loan struct {
	// Pool and Name say who can do it: the workers that offer the name in that pool.
	Pool, Name string
	// Key is the effect's. Started is the ToolCallStarted that it had when the
	// delivery came to the lender, 0 for none.
	Key     string
	Started uint64
}

// Peers passes work from the worker that holds a delivery to another worker of the
// same pool. The delivery stays with the lender, who alone finishes it; as long as the
// borrower is at work, it extends the delivery too, so the death of the lender does
// not make another worker repeat the work.
type Peers interface {
	// Lend asks one worker that offers the name to do the work, and returns when that
	// has done it: the outcome is in the log. A positive duration says that
	// the work failed, which is in the log too, and when the delivery is to come
	// again. The lender extends the delivery meanwhile. Once the loan was asked for, the
	// end of ctx is ErrPeerHolds, whether somebody was heard to take it or not.
	//
	// If the lender also offers the name, its own take may get the loan: it must not wait for
	// anything that waits for Lend.
	Lend(ctx context.Context, d journal.Delivery, l Loan) (retry time.Duration, err error)

	// Borrow offers a name in a pool until stop is called, and calls take for each
	// loan, each in its own goroutine. The delivery names its record by subject
	// and sequence number and has no body; it is extended while take runs, and its
	// Ack and Retry do nothing. Lend returns what take returns; for an error that
	// this port does not declare it returns a short delay. Every lender of the pool can
	// forge a loan, so take must rely on the log alone.
	Borrow(pool, name string, take func(d journal.Delivery, l Loan) (retry time.Duration, err error)) (stop func(), err error)
}

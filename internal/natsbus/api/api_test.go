package api

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestParseReply(t *testing.T) {
	for _, reply := range []string{
		"$JS.ACK.MOORE_0.planning.3.77.12.1700000000000000001.5",
		"$JS.ACK.dom.ACCHASH.MOORE_0.planning.3.77.12.1700000000000000001.5",
		"$JS.ACK.dom.ACCHASH.MOORE_0.planning.3.77.12.1700000000000000001.5.rand",
	} {
		d, err := ParseReply(reply)
		require.NoError(t, err, reply)
		require.Equal(t, Delivered{Attempt: 3, Seq: 77, Pending: 5, Number: 12, Stored: time.Unix(0, 1700000000000000001).UTC()}, d)
	}
	for _, reply := range []string{"", "$JS.ACK.", "_INBOX.a.b.c.d.e.f.g.h", "$JS.ACK.S.c.x.77.12.17.5", "$JS.ACK.S.c.1.2.3"} {
		_, err := ParseReply(reply)
		require.Error(t, err, reply)
	}
}

func TestClassify(t *testing.T) {
	code := func(n int) error { return &Error{Code: 400, ErrCode: n, Description: "x"} }
	for _, c := range []struct{ err, want error }{
		{code(10071), journal.ErrConflict}, {code(10164), journal.ErrConflict}, {code(10201), journal.ErrConflict},
		{code(10054), journal.ErrTooLarge}, {code(10199), journal.ErrTooLarge}, {nats.ErrMaxPayload, journal.ErrTooLarge},
		{code(10002), journal.ErrFull}, {code(10023), journal.ErrFull}, {code(10047), journal.ErrFull}, {code(10077), journal.ErrFull},
		{code(10059), journal.ErrNotReady}, {code(10014), journal.ErrNotReady}, {code(10076), journal.ErrNotReady},
		{&jetstream.APIError{ErrorCode: 10071}, journal.ErrConflict},
		{jetstream.ErrKeyNotFound, journal.ErrNotFound}, {jetstream.ErrBucketNotFound, journal.ErrNotReady},
		{&DeniedError{"a.b"}, journal.ErrDenied}, {nats.ErrPermissionViolation, journal.ErrDenied},
	} {
		require.ErrorIs(t, Classify(c.err), c.want, "%v", c.err)
		if c.want != journal.ErrNotFound {
			require.ErrorIs(t, UnknownOutcome(c.err), c.want, "%v", c.err)
		}
		require.ErrorIs(t, Classify(fmt.Errorf("wrapped: %w", c.err)), c.want)
	}
	for _, err := range []error{
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionClosed, context.Canceled,
		context.DeadlineExceeded, &Error{Code: 503, ErrCode: 10008}, code(10176),
	} {
		require.ErrorIs(t, UnknownOutcome(err), journal.ErrUnknownOutcome, "%v", err)
		require.ErrorIs(t, UnknownOutcome(err), err)
	}
	refused := UnknownOutcome(code(10077))
	require.NotErrorIs(t, refused, journal.ErrUnknownOutcome, "the server said that it did not store it")
	require.NoError(t, Classify(nil))
}

func TestDeniedSubject(t *testing.T) {
	const publish = `publish to "`
	subject, ok := deniedSubject(fmt.Errorf(`%w: Permissions Violation for Publish to "a.b.c"`, nats.ErrPermissionViolation), publish)
	require.True(t, ok)
	require.Equal(t, "a.b.c", subject)
	_, ok = deniedSubject(fmt.Errorf(`%w: Permissions Violation for Subscription to "a"`, nats.ErrPermissionViolation), publish)
	require.False(t, ok)
	_, ok = deniedSubject(errors.New(`publish to "a"`), publish)
	require.False(t, ok)
}

// TestTurn takes the turns to ask for pages: they are bounded, released once each,
// and not waited for longer than the context goes.
func TestTurn(t *testing.T) {
	t.Parallel()
	b := &Client{asking: make(chan struct{}, 2)}
	first, err := b.turn(t.Context())
	require.NoError(t, err)
	_, err = b.turn(t.Context())
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.turn(ended)
	require.ErrorIs(t, err, context.Canceled)
	first()
	first()
	require.Len(t, b.asking, 1, "a turn ends once")
	_, err = b.turn(t.Context())
	require.NoError(t, err)
}

// A tail takes its own consumer's deliveries only, each of them once and in order.
func TestAccept(t *testing.T) {
	const mark = ".MOORE_0.read_a."
	o := &Tail{mark: mark, open: 2, delivered: 4}
	take := func(consumer string, number int) error {
		_, err := o.accept(&nats.Msg{Reply: fmt.Sprintf("$JS.ACK.MOORE_0.%s.1.77.%d.1700000000000000001.5", consumer, number)})
		return err
	}
	require.ErrorIs(t, take("read_a", 4), ErrGap, "a second time")
	require.ErrorIs(t, take("read_a", 6), ErrGap, "one is missing")
	require.ErrorIs(t, take("read_b", 5), ErrGap, "of another consumer")
	require.NoError(t, take("read_a", 5))
	require.NoError(t, take("read_a", 6))
	require.Zero(t, o.open)
	_, err := o.accept(&nats.Msg{Reply: "_INBOX.x"})
	require.Error(t, err)
}

// A burst of reads leaves few inboxes behind, each of which is a subscription at the server.
func TestInboxesThatAreKept(t *testing.T) {
	c := &Client{idle: map[int][]*Inbox{}, waiters: map[*waiter]struct{}{}}
	for range 2 * maxIdle {
		for _, size := range []int{OneAnswer, keptSize, PageRecords + pageSlack} {
			c.Give(&Inbox{size: size, sub: &nats.Subscription{}}, true)
		}
	}
	require.Len(t, c.idle[OneAnswer], maxIdle)
	require.Len(t, c.idle[keptSize], maxIdlePages)
	require.Empty(t, c.idle[PageRecords+pageSlack])
}

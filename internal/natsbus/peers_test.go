package natsbus

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TestLoanWithoutAnswer: who was asked may have begun, even if the lender ends before
// it hears so.
func TestLoanWithoutAnswer(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := bus.Conn().Subscribe("loan.default.ask.tool", func(*nats.Msg) { cancel() })
	require.NoError(t, err)
	_, err = bus.Lend(ctx, &delivery{conn: bus.NC}, journal.Loan{Pool: events.DefaultPool, Name: "tool"})
	require.ErrorIs(t, err, journal.ErrPeerHolds)
	require.ErrorIs(t, err, context.Canceled)
}

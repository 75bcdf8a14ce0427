package runs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/journal"
)

// TestUntilSetUp: who sets the bus up need not restart the gateway, and its log says each reason once.
func TestUntilSetUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		other := errors.New("something else")
		answers := []error{fmt.Errorf("a bucket: %w", journal.ErrNotReady), fmt.Errorf("a subject: %w", journal.ErrDenied), fmt.Errorf("a subject: %w", journal.ErrDenied), nil}
		part := func(context.Context) error {
			answer := answers[0]
			answers = answers[1:]
			return answer
		}
		require.NoError(t, UntilSetUp(t.Context(), log, "nothing fires", part))
		require.Empty(t, answers)
		require.Equal(t, 2, strings.Count(out.String(), "nothing fires: run `moorebus init` and print the permissions again"), out.String())
		require.Contains(t, out.String(), "a bucket")

		answers = []error{other}
		require.ErrorIs(t, UntilSetUp(t.Context(), log, "x", part), other)
	})
}

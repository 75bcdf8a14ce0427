package journaltest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/ports"
)

// Questions tests [ports.Questions]. The factory returns two processes on one journal.
func Questions(t *testing.T, open func(t *testing.T) (asker, answerer ports.Questions)) {
	t.Run("one answers", func(t *testing.T) {
		asker, answerer := open(t)
		topic := NewToken(t)
		_, err := asker.Question(t.Context(), topic, []byte("who?"))
		require.ErrorIs(t, err, ports.ErrNoAnswer)
		asked := make(chan string, 10)
		answer := func(_ context.Context, question []byte) []byte {
			asked <- string(question)
			return append([]byte("to "), question...)
		}
		for _, p := range []ports.Questions{asker, answerer} {
			stop, err := p.Answer(topic, answer)
			require.NoError(t, err)
			defer stop()
		}
		require.Eventually(t, func() bool {
			got, err := asker.Question(t.Context(), topic, []byte("me"))
			return err == nil && string(got) == "to me"
		}, time.Minute, 10*time.Millisecond)
		require.Len(t, asked, 1, "one process gets it")
	})
	t.Run("large answers", func(t *testing.T) {
		asker, answerer := open(t)
		topic := NewToken(t)
		large := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 MiB
		stop, err := answerer.Answer(topic, func(context.Context, []byte) []byte { return large })
		require.NoError(t, err)
		defer stop()
		var got []byte
		require.Eventually(t, func() bool {
			got, err = asker.Question(t.Context(), topic, nil)
			return err == nil
		}, time.Minute, 10*time.Millisecond)
		require.True(t, bytes.Equal(large, got), "%d bytes", len(got))
	})
	t.Run("nobody answers in time", func(t *testing.T) {
		asker, answerer := open(t)
		topic := NewToken(t)
		began := make(chan struct{}, 10)
		stop, err := answerer.Answer(topic, func(ctx context.Context, _ []byte) []byte {
			began <- struct{}{}
			<-ctx.Done()
			return nil
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { <-began; cancel() }()
		require.Eventually(t, func() bool {
			_, err = asker.Question(ctx, topic, nil)
			return ctx.Err() != nil
		}, time.Minute, 10*time.Millisecond)
		require.ErrorIs(t, err, ports.ErrNoAnswer)
		stop()
		_, err = asker.Question(t.Context(), topic, nil)
		require.ErrorIs(t, err, ports.ErrNoAnswer)
	})
}

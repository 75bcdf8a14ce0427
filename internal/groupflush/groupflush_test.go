package groupflush

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestOneFlushForAll: whoever comes while a flush is made shares the next one, and a
// record that the running one was begun for waits for no other.
func TestOneFlushForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flushes []uint64
		gate := make(chan struct{})
		g := New(func(wanted uint64) (uint64, error) {
			flushes = append(flushes, wanted)
			<-gate
			return wanted, nil
		})
		done := make(chan uint64, 10)
		wait := func(seq uint64) {
			go func() {
				if g.Wait(t.Context(), seq) == nil {
					done <- seq
				}
			}()
			synctest.Wait()
		}
		for _, seq := range []uint64{5, 4, 7, 6, 0} {
			wait(seq)
		}
		require.Equal(t, []uint64{5}, flushes)
		gate <- struct{}{}
		synctest.Wait()
		require.Len(t, done, 2)
		require.EqualValues(t, 5, g.Flushed())
		require.Equal(t, []uint64{5, 7}, flushes)
		gate <- struct{}{}
		synctest.Wait()
		require.Len(t, done, 5)
		require.NoError(t, g.Wait(t.Context(), 7))
		require.Equal(t, []uint64{5, 7}, flushes, "what is flushed needs no flush")
	})
}

func TestNothingIsFlushedWithoutProof(t *testing.T) {
	failed := errors.New("no")
	g := New(func(uint64) (uint64, error) { return 9, failed })
	require.ErrorIs(t, g.Wait(t.Context(), 3), failed)
	require.Zero(t, g.Flushed())
	g = New(func(uint64) (uint64, error) { return 2, nil })
	require.ErrorIs(t, g.Wait(t.Context(), 3), ErrMissing)
	require.EqualValues(t, 2, g.Flushed())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never := New(func(uint64) (uint64, error) { <-t.Context().Done(); return 0, nil })
	require.ErrorIs(t, never.Wait(ctx, 1), context.Canceled)
}

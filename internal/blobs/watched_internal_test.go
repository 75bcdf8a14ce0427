package blobs

import (
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A connection on which nothing moves fails. One that is written to has time for its answer.
func TestWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		conn, began := watched{ours}, time.Now()
		failed := make(chan error, 1)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			failed <- err
		}()
		go func() {
			for range 3 {
				time.Sleep(2 * patience)
				_, _ = theirs.Read(make([]byte, 1))
			}
		}()
		for range 3 {
			_, err := conn.Write([]byte("x"))
			require.NoError(t, err)
		}
		require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
		// The last write began when the second one was taken.
		require.Equal(t, 7*patience, time.Since(began))
		_, err := conn.Write([]byte("x"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 10*patience, time.Since(began))
		require.NoError(t, ours.Close())
		require.NoError(t, theirs.Close())
	})
}

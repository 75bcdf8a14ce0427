package agui_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agui"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TestEndedThreadsAreForgotten: 90 days after its last run has ended a thread is unknown. One
// whose run has not ended stays, and a thread of that name can begin again.
func TestEndedThreadsAreForgotten(t *testing.T) {
	w := newWorld(t)
	for _, thread := range []string{"ended", "open"} {
		status, run, text := w.post("chat", said(thread, "turn-1", "Hello."))
		require.Equal(t, http.StatusOK, status, text)
		if thread == "ended" {
			_, err := w.gateway.Close(t.Context(), "", run, events.By{})
			require.NoError(t, err)
		}
	}
	known := func() (n int) {
		for _, err := range w.bus.Each(t.Context(), buckets.Threads, ">") {
			require.NoError(t, err)
			n++
		}
		return n
	}
	after := func(days int) {
		face := agui.New(agui.Config{
			Control: w.gateway, Feed: w.bus, KV: w.bus,
			Now: func() time.Time { return time.Now().Add(time.Duration(days) * 24 * time.Hour) },
		})
		require.NoError(t, face.Forget(t.Context()))
	}
	after(89)
	require.Equal(t, 2, known())
	after(91)
	require.Equal(t, 1, known())
	_, err := w.bus.Get(t.Context(), buckets.Threads, "default.chat."+events.Hash([]byte("ended")))
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = w.bus.Get(t.Context(), buckets.Threads, "default.chat."+events.Hash([]byte("open")))
	require.NoError(t, err)
	status, _, text := w.post("chat", said("ended", "turn-1", "Hello."))
	require.Equal(t, http.StatusOK, status, text)
	require.Equal(t, 2, known())
}

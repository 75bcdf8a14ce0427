package openai

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
)

// A stream that has begun and goes silent is given up long before the call's
// time is over, and asked for plainly.
func TestSilentStreamIsGivenUp(t *testing.T) {
	t.Parallel()
	c := serveWith(t, Options{Timeout: time.Minute, Silence: 100 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		if !isStream(t, r) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, plainHello)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, events(delta(`"content":"never"`, "")))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	began := time.Now()
	res, err := c.Call(t.Context(), request(), func(llm.Chunk) {})
	require.NoError(t, err)
	require.Equal(t, "plain hello", res.(llm.Text).Content)
	require.Less(t, time.Since(began), 30*time.Second)
}

// A model that thinks is not silent where its server says so, nor before the
// stream has begun.
func TestStreamThatShowsLifeIsNotGivenUp(t *testing.T) {
	t.Parallel()
	// Signs of life come fifteen times as often, so that a busy machine's pauses do
	// not look like silence.
	const silence, steps = 3 * time.Second, 36
	plain := false
	c := serveWith(t, Options{Timeout: time.Minute, Silence: silence}, func(w http.ResponseWriter, r *http.Request) {
		plain = plain || !isStream(t, r)
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		ticker := time.NewTicker(silence / 15)
		defer ticker.Stop()
		for n := range steps {
			<-ticker.C
			if n < steps/2 {
				continue // the model reads the prompt
			}
			_, _ = io.WriteString(w, ": still thinking\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, events(delta(`"content":"hello"`, ""), delta("", "stop"), done))
	})
	res, err := c.Call(t.Context(), request(), func(llm.Chunk) {})
	require.NoError(t, err)
	require.Equal(t, "hello", res.(llm.Text).Content)
	require.False(t, plain)
}

package llm_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

func TestSecretIsKept(t *testing.T) {
	key := llm.Secret("sk-secret-0123456789")
	require.Equal(t, "bad key [API key], and \uFFFD", key.Clean("bad key "+string(key)+", and \xff"))
	require.Len(t, key.Clean(strings.Repeat("ü", 9000)), llm.MaxMessage+len("…"))
	require.Nil(t, key.Harmless(errors.New("POST https://x:"+string(key)+"@y")))
	require.Error(t, key.Harmless(errors.New("refused")))
	require.Equal(t, "none is set", llm.Secret("none").Clean("none is set"), "a placeholder is an ordinary word")
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name, header, value string
		want                time.Duration
	}{
		{"none", "X", "1", 0},
		{"seconds", "Retry-After", "20", 20 * time.Second},
		{"fraction", "Retry-After", " 0.5 ", 500 * time.Millisecond},
		{"milliseconds", "Retry-After-Ms", "250", 250 * time.Millisecond},
		{"date", "Retry-After", "Fri, 02 Jan 2026 03:05:05 GMT", time.Minute},
		{"date in the past", "Retry-After", "Fri, 02 Jan 2026 03:00:00 GMT", 0},
		{"negative", "Retry-After", "-5", 0},
		{"zero", "Retry-After", "0", 0},
		{"words", "Retry-After", "soon", 0},
		{"infinite", "Retry-After", "inf", 0},
		{"not a number", "Retry-After", "NaN", 0},
		{"overflow", "Retry-After", "1e300", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, llm.RetryAfter(http.Header{tt.header: {tt.value}}, now))
		})
	}
}

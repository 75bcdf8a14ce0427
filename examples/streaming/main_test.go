package main

import (
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm/openai"
)

// screen is what was printed so far.
type screen struct {
	mu   sync.Mutex
	text string
}

func (s *screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(data)
	return len(data), nil
}

func (s *screen) shows(text string) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.text == text
	}
}

// The server holds each further word back until all before it are on the screen.
func TestWordsAreShownAsTheyCome(t *testing.T) {
	var out screen
	all := strings.SplitAfter(words, " ")
	said := 0
	server := httptest.NewServer(model{pace: func() {
		said++
		assert.Eventually(t, out.shows(strings.Join(all[:said], "")), time.Minute, time.Millisecond)
	}})
	t.Cleanup(server.Close)
	require.NoError(t, run(t.Context(), &out, openai.Options{BaseURL: server.URL, Model: "local"}))
	require.True(t, out.shows(words+"\n(71 characters, as one event of the log)\n")(), out.text)
}

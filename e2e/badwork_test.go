package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder notes the requests that a player gets.
type recorder struct {
	player
	mu       sync.Mutex
	requests []*chatRequest
}

func (r *recorder) reply(request *chatRequest) (modelReply, error) {
	r.mu.Lock()
	r.requests = append(r.requests, request)
	r.mu.Unlock()
	return r.player.reply(request)
}

// last returns the last message of the n-th request, n from 0.
func (r *recorder) last(t *testing.T, n int) *message {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Greater(t, len(r.requests), n)
	messages := r.requests[n].Messages
	return &messages[len(messages)-1]
}

func badReplies(t *testing.T, s *stage) {
	t.Run("a stream that breaks off", func(t *testing.T) {
		whole := says("The plain request gets the whole answer, once.")
		whole.truncated = true
		r := &recorder{player: script{whole}}
		end, view := s.finish(t, s.begin(t, r))
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
		require.Equal(t, *whole.content, *view.Memory.FinalAnswer)
		require.Len(t, r.requests, 2)
		require.True(t, r.requests[0].Stream)
		require.False(t, r.requests[1].Stream, "the fallback is the plain call")
	})
	for name, c := range map[string]struct {
		call modelReply
		says string
		code string
	}{
		"malformed arguments": {asks("c-1", "echo", `{"text": "unfinished`), "", "invalid_arguments"},
		"no object":           {asks("c-1", "echo", `"text"`), "", "invalid_arguments"},
		"a tool that is none": {asks("c-1", "sing", `{}`), "not found", "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{player: script{c.call, says("I see what I did wrong.")}}
			run := s.begin(t, r, "echo")
			end, view := s.finish(t, run)
			require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
			require.Len(t, r.requests, 2)
			told := r.last(t, 1)
			require.Equal(t, "tool", told.Role)
			require.Equal(t, "c-1", told.ToolCallID)
			require.True(t, strings.HasPrefix(told.text(), "ERROR: "), told.text())
			require.Contains(t, told.text(), c.says)
			asked := r.requests[1].Messages[len(r.requests[1].Messages)-2]
			require.Equal(t, c.call.calls, asked.ToolCalls, "the call is sent back as the model made it")
			require.NotNil(t, view.Memory.ToolCalls["c-1"].Result)
			require.Equal(t, told.text(), view.Memory.ToolCalls["c-1"].Result.Failed.Error)
			require.Equal(t, []string{c.code}, refusals(t, s, run))
		})
	}
	t.Run("one bad call of three", func(t *testing.T) {
		s.tools.handle("echo", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "heard") })
		three := asks("c-1", "sing", `{}`)
		three.calls = append(three.calls, asks("c-2", "echo", `{"n": 2}`).calls[0], asks("c-3", "echo", `{"n": `).calls[0])
		r := &recorder{player: script{three, says("One of three is something.")}}
		run := s.begin(t, r, "echo")
		end, view := s.finish(t, run)
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
		require.ElementsMatch(t, []string{"not_found", "invalid_arguments"}, refusals(t, s, run))
		require.Len(t, r.requests, 2)
		sent := r.requests[1].Messages
		require.Len(t, sent, 5)
		require.Equal(t, three.calls, sent[1].ToolCalls, "the calls are sent back as the model made them, in its order")
		for i, id := range []string{"c-1", "c-2", "c-3"} {
			require.Equal(t, id, sent[2+i].ToolCallID)
		}
		require.Equal(t, "heard", sent[3].text())
		require.Len(t, view.Memory.ToolCalls, 3)
	})
	t.Run("an error for good", func(t *testing.T) {
		end, view := s.finish(t, s.begin(t, script{}))
		require.Equal(t, "FatalError", end.Type)
		require.Equal(t, "error", view.State)
		require.Contains(t, view.Memory.Error.Message, "the script has 0 replies", "the provider's own words")
	})
}

// refusals returns the codes of the calls that were answered without being run.
func refusals(t *testing.T, s *stage, run string) []string {
	t.Helper()
	var codes []string
	_, err := s.api.follow(t.Context(), run, func(e *event) error {
		var reply struct {
			Results []struct{ Code string } `json:"results"`
			Refused []struct{ Code string } `json:"refused"`
		}
		if err := json.Unmarshal(e.Data, &reply); err != nil {
			return err
		}
		for _, r := range append(reply.Results, reply.Refused...) {
			codes = append(codes, r.Code)
		}
		return nil
	})
	require.NoError(t, err)
	return codes
}

func badTools(t *testing.T, s *stage) {
	t.Run("5 MB of output", func(t *testing.T) { hugeOutput(t, s) })
	t.Run("no answer", func(t *testing.T) {
		s.tools.handle("silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		r := &recorder{player: script{asks("c-1", "silent", `{}`), says("It keeps silent.")}}
		end, view := s.finish(t, s.begin(t, r, "silent"))
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
		require.Equal(t, "timeout", view.Memory.History[0].Code)
		require.True(t, strings.HasPrefix(r.last(t, 1).text(), "ERROR: "), r.last(t, 1).text())
	})
	t.Run("output that is no text", func(t *testing.T) {
		s.tools.handle("echo", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a\xff\x00b")) })
		r := &recorder{player: script{asks("c-1", "echo", `{}`), says("Whatever that was.")}}
		end, view := s.finish(t, s.begin(t, r, "echo"))
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
		require.True(t, view.Memory.History[0].Success)
		require.True(t, strings.HasPrefix(r.last(t, 1).text(), "a"), "%q", r.last(t, 1).text())
	})
}

// hugeOutput checks that a result too large for the log is kept elsewhere, and
// that the model sees its beginning and its end.
func hugeOutput(t *testing.T, s *stage) {
	var b strings.Builder
	for i := 0; b.Len() < 5<<20; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	b.WriteString("the very end")
	output := b.String()
	s.tools.handle("huge", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, output) })
	r := &recorder{player: script{asks("c-1", "huge", `{}`), says("That was a lot.")}}
	run := s.begin(t, r, "huge")
	var result struct {
		Success bool `json:"success"`
		Ref     *struct {
			Bucket string `json:"bucket"`
			Key    string `json:"key"`
			Size   int    `json:"size"`
			SHA256 string `json:"sha256"`
		} `json:"ref"`
	}
	end, err := s.api.follow(t.Context(), run, func(e *event) error {
		if e.Type == "ToolSuccess" {
			return json.Unmarshal(e.Data, &result)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	sum := sha256.Sum256([]byte(output))
	require.NotNil(t, result.Ref, "the whole result is kept elsewhere")
	require.Equal(t, len(output), result.Ref.Size)
	require.Equal(t, hex.EncodeToString(sum[:]), result.Ref.SHA256)
	require.NotEmpty(t, result.Ref.Bucket+result.Ref.Key)

	shown := r.last(t, 1).text()
	require.Less(t, len(shown), 256<<10)
	require.True(t, strings.HasPrefix(shown, "line 0\nline 1\n"), "%.80q", shown)
	require.True(t, strings.HasSuffix(shown, "the very end"))
	require.Contains(t, shown, "moorebus", "a marker says that something is left out")
}

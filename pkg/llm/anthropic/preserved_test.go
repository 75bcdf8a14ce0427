package anthropic

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// turn asks for a reply and appends it, as the log would hold it, and the results of its
// calls.
func turn(t *testing.T, c *llmhttp.Caller, req *llm.Request, model string) {
	t.Helper()
	req.Model, req.Provider = model, "claude"
	res, err := c.Call(t.Context(), *req, nil)
	require.NoError(t, err)
	calls, ok := res.(llm.ToolCalls)
	require.True(t, ok)
	m := llm.Message{Role: llm.RoleAssistant, Content: calls.Content, Calls: calls.Calls, Asked: events.Asked{Provider: "claude", Model: model}}
	logged, err := json.Marshal(calls.Reasoning)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(logged, &m.Reasoning))
	req.Messages = append(req.Messages, m, result(calls.Calls[0].ID, "look", "found"))
}

// Thinking goes back for as long as nothing before it has changed, and is left out from
// there on when something has. No request is refused.
func TestBoundThinking(t *testing.T) {
	const model = "claude-fable-5-1"
	for name, tt := range map[string]struct {
		// change is made after three replies, before two more. Then each request has the
		// given number of blocks.
		change func(*llm.Request)
		next   string
		want   []int
	}{
		"nothing changed":       {func(*llm.Request) {}, model, []int{6, 8}},
		"the window moved":      {func(r *llm.Request) { r.Messages = append(r.Messages[:1:1], r.Messages[2:]...) }, model, []int{0, 2}},
		"a result was edited":   {func(r *llm.Request) { r.Messages[5].Content = "found (shortened)" }, model, []int{4, 6}},
		"the prompt was edited": {func(r *llm.Request) { r.Messages[0].Content = "Be long." }, model, []int{0, 2}},
		"a tool came":           {func(r *llm.Request) { r.Tools = append(r.Tools, llm.Tool{Name: "more"}) }, model, []int{0, 2}},
		"the tools went":        {func(r *llm.Request) { r.Tools = nil }, model, []int{0, 2}},
		"a summary came": {func(r *llm.Request) {
			r.Messages = []llm.Message{r.Messages[0], user("Summary: found."), r.Messages[6], r.Messages[7]}
		}, model, []int{0, 2}},
		"the user said more":     {func(r *llm.Request) { r.Messages = append(r.Messages, user("And then?")) }, model, []int{6, 8}},
		"another model replied":  {func(*llm.Request) {}, "claude-opus-5-5", []int{0, 6}},
		"a reply without origin": {func(r *llm.Request) { r.Messages[2].Asked = events.Asked{} }, model, []int{6, 8}},
		"of a build before": {func(r *llm.Request) {
			for i := range r.Messages { // which kept no digest
				if len(r.Messages[i].Reasoning) > 0 {
					r.Messages[i].Reasoning = r.Messages[i].Reasoning[1:]
				}
			}
		}, model, []int{0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &llmtest.Binding{}
			server := httptest.NewServer(s)
			t.Cleanup(server.Close)
			c := open(t, server.URL)
			req := llm.Request{
				Messages: []llm.Message{{Role: llm.RoleSystem, Content: "Be brief."}, user("Look <here>.")},
				Tools:    []llm.Tool{{Name: "look", Schema: json.RawMessage(`{"type":"object"}`)}},
			}
			for range 3 {
				turn(t, c, &req, model)
			}
			require.Equal(t, []int{0, 2, 4}, s.Thoughts())
			tt.change(&req)
			turn(t, c, &req, tt.next)
			turn(t, c, &req, model)
			require.Equal(t, tt.want, s.Thoughts())
			// Nothing that was kept breaks later.
			turn(t, c, &req, model)
		})
	}
}

// A window moves with every message.
func TestBoundThinkingInAMovingWindow(t *testing.T) {
	s := &llmtest.Binding{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c := open(t, server.URL)
	all := llm.Request{Messages: []llm.Message{user("Look.")}, Tools: []llm.Tool{{Name: "look"}}}
	for range 8 {
		shown := all
		if n := len(all.Messages); n > 5 {
			shown.Messages = append([]llm.Message{all.Messages[0]}, all.Messages[n-4:]...)
		}
		before := len(shown.Messages)
		turn(t, c, &shown, "claude-fable-5-1")
		all.Messages = append(all.Messages, shown.Messages[before:]...)
	}
	require.Equal(t, []int{0, 2, 4, 0, 0, 0, 0, 0}, s.Thoughts())
}

// The digest is never sent, and only kept where it matters.
func TestTheDigestStaysHere(t *testing.T) {
	s := &llmtest.Binding{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c := open(t, server.URL)
	req := llm.Request{Messages: []llm.Message{user("Look.")}, Tools: []llm.Tool{{Name: "look"}}}
	turn(t, c, &req, "claude-fable-5-1")
	kept := req.Messages[1].Reasoning
	require.Equal(t, contextID, kept[0].ID)
	require.Regexp(t, `^\{"sha256":"[0-9a-f]{64}","places":\[\[0,0\],\[16,0\]\]\}$`, string(kept[0].Data))
	body, _ := capture(t, llm.Request{Model: "claude-fable-5-1", Messages: req.Messages, Tools: req.Tools})
	require.NotContains(t, string(body["messages"]), "sha256")
	require.Contains(t, string(body["messages"]), `"Where?"`)

	req.Messages = req.Messages[:1]
	turn(t, c, &req, "claude-opus-5")
	require.Equal(t, `{"places":[[0,0],[16,0]]}`, string(req.Messages[1].Reasoning[0].Data))
}

// A server that refuses what was sent back all the same is asked once more without it.
func TestThinkingThatIsRefused(t *testing.T) {
	for why, again := range map[string]int{
		"messages.1.content.0: Invalid `signature` in `thinking` block":                                                        1,
		"messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. …": 1,
		"thinking.type.enabled is not supported for this model":                                                                0,
	} {
		for _, model := range []string{"claude-fable-5-1", "claude-sonnet-4-5"} {
			var bodies []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				data, _ := io.ReadAll(r.Body)
				bodies = append(bodies, string(data))
				if strings.Contains(string(data), `"signature":"s"`) {
					w.WriteHeader(http.StatusBadRequest)
					_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"type": "invalid_request_error", "message": why}})
					return
				}
				_, _ = io.WriteString(w, `{"type":"message","content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn"}`)
			}))
			t.Cleanup(server.Close)
			c := open(t, server.URL, func(o *Options) { o.Capabilities = json.RawMessage(`{"preserved":false}`) })
			req := thinkingRequest(asks("", llm.Call{ID: "a", Name: "f"}), result("a", "f", "found"))
			req.Model, req.Messages[1].Reasoning = model, signed("Hm.", "s")
			got, err := c.Call(t.Context(), req, nil)
			require.Len(t, bodies, 1+again)
			if again == 0 {
				require.Equal(t, why, wantError(t, err, llm.KindInvalid).Message)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, "ok", got.(llm.Text).Content)
			require.NotContains(t, bodies[1], `"signature"`)
			require.Equal(t, model == "claude-fable-5-1", strings.Contains(bodies[1], `"adaptive"`))
			require.NotContains(t, bodies[1], `"enabled"`, "a budget cannot begin in the middle of a turn")
		}
	}
}

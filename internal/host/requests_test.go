package host_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/responses"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// keeper is a model server that keeps the bodies that it is sent, by their digest. It calls a
// tool twice, the second time after a failure, and then answers; what has no tools is answered
// in words.
type keeper struct {
	call, text string

	mu     sync.Mutex
	bodies map[string]string
	asked  int
}

func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	defer k.mu.Unlock()
	sum := sha256.Sum256(body)
	k.bodies[hex.EncodeToString(sum[:])] = string(body)
	w.Header().Set("Content-Type", "application/json")
	if strings.Contains(string(body), "Summarize the following") {
		_, _ = fmt.Fprintf(w, k.text, "in short: <nothing>")
		return
	}
	switch k.asked++; k.asked {
	case 1, 3:
		_, _ = fmt.Fprintf(w, k.call, k.asked)
	case 2:
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		_, _ = fmt.Fprintf(w, k.text, `{\"place\":\"here\"}`)
	}
}

// keepers are servers of every API, with the callers of them. Some want parameters of the
// provider file.
func keepers(t *testing.T) (servers map[string]*keeper, callers map[string]llm.Caller) {
	t.Helper()
	chatCall := `{"object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Looking.","tool_calls":[{"id":"c%d","type":"function","function":{"name":"look","arguments":"{\"at\":\"<x> & y\"}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`
	chatText := `{"object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`
	servers = map[string]*keeper{
		"chat": {call: chatCall, text: chatText}, "second": {call: chatCall, text: chatText},
		"responses": {
			call: `{"object":"response","status":"completed","model":"m","output":[{"type":"function_call","id":"fc","call_id":"c%d","name":"look","arguments":"{\"at\":\"x\"}"}],"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}}`,
			text: `{"object":"response","status":"completed","model":"m","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"%s"}]}],"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}}`,
		},
		"claude": {
			call: `{"type":"message","model":"m","content":[{"type":"text","text":"Looking."},{"type":"tool_use","id":"c%d","name":"look","input":{"at":"x"}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":1}}`,
			text: `{"type":"message","model":"m","content":[{"type":"text","text":"%s"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}`,
		},
	}
	callers = map[string]llm.Caller{}
	for name, k := range servers {
		k.bodies = map[string]string{}
		server := httptest.NewServer(k)
		t.Cleanup(server.Close)
		extra := map[string]json.RawMessage{"user": json.RawMessage(`"<somebody>"`)}
		var err error
		switch name {
		case "responses":
			callers[name], err = responses.New(responses.Options{BaseURL: server.URL, Model: "m", ExtraBody: extra})
		case "claude":
			callers[name], err = anthropic.New(anthropic.Options{BaseURL: server.URL, Model: "claude-opus-5-5", MaxTokens: 77})
		case "second":
			callers[name], err = openai.New(openai.Options{BaseURL: server.URL, Model: "m", Capabilities: json.RawMessage(`{"output_with_tools":"second_pass"}`)})
		default:
			callers[name], err = openai.New(openai.Options{BaseURL: server.URL, Model: "m", ExtraBody: extra})
		}
		require.NoError(t, err, name)
		t.Cleanup(callers[name].(interface{ Close() }).Close)
	}
	return servers, callers
}

// Every reply's request follows from the log, byte for byte: with calls and their results, after
// a failure, a reflection and under an output schema, for every API.
func TestRequestsFollowFromTheLog(t *testing.T) {
	t.Parallel()
	servers, callers := keepers(t)
	look, err := typed.New(tool.Definition{Name: "look", Description: "Looks <around>.", Effect: tool.Pure},
		func(context.Context, lookAt) (string, error) { return "not <here>", nil })
	require.NoError(t, err)
	registry, err := toolset.New(look)
	require.NoError(t, err)
	h, _ := running(t, host.Options{Bus: simtest.New(simtest.Options{}), Tools: registry, Providers: callers})
	for name, k := range servers {
		t.Run(name, func(t *testing.T) {
			def := events.DefaultAgent()
			def.Name, def.LLM.Provider, def.Tools, def.SystemPrompt = "asked", name, []string{"look"}, "Be brief & <kind>."
			def.OutputSchema = json.RawMessage(`{"type":"object","properties":{"place":{"type":"string"}},"required":["place"]}`)
			def.Config.ReflectEveryNSteps = 1
			started, err := h.Gateway().Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "Where is it?"})
			require.NoError(t, err)
			mem := carry(t, h.Gateway(), started.RunID)
			require.Nil(t, mem.Error)
			checked := 0
			records, err := h.Gateway().Events(t.Context(), "", started.RunID, 1)
			require.NoError(t, err)
			at := uint64(0)
			for rec, err := range records {
				require.NoError(t, err)
				at++
				var e struct {
					Type events.Type `json:"type"`
					Data struct {
						Sum string `json:"request_sha256"`
					} `json:"data"`
				}
				require.NoError(t, json.Unmarshal(rec.Body, &e))
				req, err := h.Gateway().Request(t.Context(), "", started.RunID, at)
				switch {
				case e.Type == events.TypeReflectDone, e.Type == events.TypeLLMAttemptFailed:
					require.NoError(t, err)
					sum := sha256.Sum256(req.Body)
					require.NotEmpty(t, k.bodies[hex.EncodeToString(sum[:])], "event %d, %s: %s", at, e.Type, req.Body)
				case e.Data.Sum == "":
					require.ErrorContains(t, err, "is no reply", "event %d, %s", at, e.Type)
					continue
				default:
					require.NoError(t, err)
					require.Equal(t, k.bodies[e.Data.Sum], string(req.Body), "event %d, %s", at, e.Type)
					require.True(t, *req.Exact)
				}
				require.Equal(t, at-1, req.N)
				checked++
			}
			require.GreaterOrEqual(t, checked, 5)
		})
	}
}

package textprotocol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/stretchr/testify/require"
)

// written is a reply as a model writes it that only speaks text.
func written(r llm.Response) string {
	switch r := r.(type) {
	case llm.ToolCalls:
		c := r.Calls[0]
		return "<agent><thinking_log>" + r.Content + "</thinking_log><action><type>" + c.Name + "</type><arguments><![CDATA[" +
			c.Arguments + "]]></arguments></action></agent>"
	case llm.Structured:
		return answer(r.Content)
	case llm.Text:
		return answer(r.Content)
	}
	panic("the suite has no other reply")
}

func answer(text string) string {
	return "Well.\n<agent><action><type>answer</type><value>" + text + "</value></action></agent>"
}

func TestConformanceOverHTTP(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		server := httptest.NewServer(speaking(t, conv))
		t.Cleanup(server.Close)
		caller, err := openai.New(openai.Options{BaseURL: server.URL + "/v1", APIKey: "sk-none"})
		require.NoError(t, err)
		t.Cleanup(caller.Close)
		return textprotocol.Wrap(caller)
	}, llmtest.NoConfidence, llmtest.OneCall)
}

// speaking is a server that knows no tools: a request that has some is refused.
// Which turn it is follows from the number of assistant messages.
func speaking(t *testing.T, conv llmtest.Conversation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Stream   bool              `json:"stream"`
			Tools    []json.RawMessage `json:"tools"`
			Messages []struct {
				Role string `json:"role"`
			} `json:"messages"`
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Tools) > 0 {
			t.Errorf("decode: %v, tools: %s", err, req.Tools)
		}
		n := 0
		for i, m := range req.Messages {
			if m.Role == "assistant" {
				n++
			}
			if i > 0 && m.Role == req.Messages[i-1].Role {
				t.Errorf("message %d has the role of the one before it: %s", i, m.Role)
			}
		}
		turn := conv[n]
		switch {
		case turn.Hang:
			<-r.Context().Done()
		case turn.Err != nil:
			refuse(w, turn.Err)
		default:
			speak(w, req.Stream, turn.Reply)
		}
	}
}

func refuse(w http.ResponseWriter, e *llm.Error) {
	status, code := http.StatusBadRequest, "bad"
	switch e.Kind {
	case llm.KindRateLimited:
		status, code = http.StatusTooManyRequests, "rate_limit_exceeded"
		w.Header().Set("Retry-After", strconv.Itoa(int(e.RetryAfter/time.Second)))
	case llm.KindOverloaded:
		status = http.StatusServiceUnavailable
	case llm.KindAuth:
		status, code = http.StatusUnauthorized, "invalid_api_key"
	case llm.KindContextTooLong:
		code = "context_length_exceeded"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": e.Message, "type": "t", "code": code}})
}

func speak(w http.ResponseWriter, stream bool, reply llm.Response) {
	u := reply.About().Usage
	usage := map[string]any{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Total,
		"prompt_tokens_details": map[string]any{"cached_tokens": u.Cached},
	}
	body := map[string]any{"id": "c", "created": 1, "model": reply.About().Model, "usage": usage}
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		body["object"] = "chat.completion"
		body["choices"] = []any{map[string]any{"index": 0, "finish_reason": "stop",
			"message": map[string]any{"role": "assistant", "content": written(reply)}}}
		_ = json.NewEncoder(w).Encode(body)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	body["object"] = "chat.completion.chunk"
	send := func(delta, finish any, usage any) {
		body["usage"], body["choices"] = usage, []any{map[string]any{"index": 0, "finish_reason": finish, "delta": delta}}
		data, _ := json.Marshal(body)
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	}
	for _, r := range written(reply) {
		send(map[string]any{"content": string(r)}, nil, nil)
	}
	send(map[string]any{}, "stop", usage)
	_, _ = fmt.Fprint(w, "data: [DONE]\n\n")
}

func TestConformanceOverScripts(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		var script []map[string]any
		for _, turn := range conv {
			switch {
			case turn.Err != nil:
				script = append(script, map[string]any{"error": map[string]any{
					"kind": turn.Err.Kind, "message": turn.Err.Message, "retry_after_ms": turn.Err.RetryAfter.Milliseconds()}})
			default:
				u := turn.Reply.About().Usage
				script = append(script, map[string]any{"text": written(turn.Reply), "confidence": turn.Reply.About().Confidence,
					"usage": map[string]any{"input": u.Input, "output": u.Output, "cached": u.Cached}})
			}
		}
		settings, err := json.Marshal(map[string]any{"provider": "scripted", "text": true,
			"state_prompts": map[string]string{"base": "b"}, "script": script})
		require.NoError(t, err)
		caller := textprotocol.Wrap(scripted.New())
		return llm.CallerFunc(func(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
			req.Settings = settings
			return caller.Call(ctx, req, stream)
		})
	}, llmtest.OneCall)
}

// TestNothingOfTheXMLIsStreamed: whoever listens gets one empty chunk when the
// model begins, and then the answer's words.
func TestNothingOfTheXMLIsStreamed(t *testing.T) {
	for name, c := range map[string]struct {
		said string
		want []llm.Chunk
	}{
		"answer":  {answer("It is 42."), []llm.Chunk{{Kind: llm.ChunkText}, {Kind: llm.ChunkText, Text: "It "}, {Kind: llm.ChunkText, Text: "is "}, {Kind: llm.ChunkText, Text: "42."}}},
		"thought": {"<agent><thinking_log>a secret plan</thinking_log></agent>", []llm.Chunk{{Kind: llm.ChunkText}}},
		"invalid": {"no XML at all", []llm.Chunk{{Kind: llm.ChunkText}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []llm.Chunk
			caller := textprotocol.Wrap(scripted.NewMock(scripted.Say(c.said)))
			_, err := caller.Call(t.Context(), llmtest.Request(0), func(chunk llm.Chunk) { got = append(got, chunk) })
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// read is a model whose replies were read already.
type read struct{ llm.Caller }

func (read) Describe() llm.Description { return llm.Description{Parsed: true} }

func TestWhatPassesThrough(t *testing.T) {
	calls := llm.ToolCalls{Meta: llm.Meta{Model: "m", Confidence: 1}, Calls: []llm.Call{{ID: "a", Name: "x", Arguments: "{}"}}}
	mock := scripted.NewMock(calls, scripted.Say("a summary, in plain words"))
	caller := textprotocol.Wrap(mock)
	got, err := caller.Call(t.Context(), llmtest.Request(0), nil)
	require.NoError(t, err)
	require.Equal(t, calls.Calls, got.(llm.ToolCalls).Calls, "calls of a provider that knows them")

	reflection := llm.Request{Purpose: llm.PurposeReflect, Messages: []llm.Message{{Role: llm.RoleUser, Content: "Summarize."}}}
	got, err = caller.Call(t.Context(), reflection, nil)
	require.NoError(t, err)
	require.Equal(t, "a summary, in plain words", got.(llm.Text).Content)
	require.Equal(t, reflection.Messages, mock.Requests()[1].Messages)

	plain := read{scripted.NewMock(scripted.Say("It is 42."))}
	got, err = textprotocol.Wrap(plain).Call(t.Context(), llmtest.Request(0), nil)
	require.NoError(t, err)
	require.Equal(t, "It is 42.", got.(llm.Text).Content, "a recording was read when it was made")
}

func TestTheProviderSeesPlainText(t *testing.T) {
	mock := scripted.NewMock(scripted.Say(answer("ok")))
	req := llmtest.Request(1)
	req.OutputSchema = []byte(`{"type":"object"}`)
	req.Memory = &llm.Memory{State: "executing"}
	_, err := textprotocol.Wrap(mock).Call(t.Context(), req, nil)
	require.NoError(t, err)
	sent := mock.Requests()[0]
	require.Empty(t, sent.Tools)
	require.Empty(t, sent.OutputSchema)
	require.Nil(t, sent.Memory)
	require.Equal(t, req.Replies, sent.Replies)
	for _, m := range sent.Messages {
		require.Empty(t, m.Calls)
		require.Empty(t, m.CallID)
	}
	require.Contains(t, sent.Messages[0].Content, "satisfies this JSON Schema:\n{\"type\":\"object\"}")
	require.True(t, strings.HasPrefix(sent.Messages[0].Content, "You are tested.\n\nYour state is executing"), sent.Messages[0].Content)
}

// Images go along with the text that they belong to, also those of results.
func TestTheProviderSeesImages(t *testing.T) {
	mock := scripted.NewMock(scripted.Say(answer("ok")))
	image := events.Part{Type: events.PartImage, MediaType: "image/png", Data: []byte("a")}
	chart := events.Part{Type: events.PartImage, MediaType: "image/png", Data: []byte("b")}
	req := llmtest.Request(1)
	req.Memory = &llm.Memory{State: "executing"}
	req.Messages = []llm.Message{
		{Role: llm.RoleUser, Content: "What is this?", Parts: []events.Part{{Type: events.PartText, Text: "What is this?"}, image, {Type: events.PartText, Text: "[gone]"}}},
		{Role: llm.RoleAssistant, Calls: []llm.Call{{ID: "c", Name: "draw", Arguments: "{}"}}},
		{Role: llm.RoleTool, CallID: "c", Name: "draw", Content: "drawn", Parts: []events.Part{{Type: events.PartText, Text: "drawn"}, chart}},
	}
	_, err := textprotocol.Wrap(mock).Call(t.Context(), req, nil)
	require.NoError(t, err)
	sent := mock.Requests()[0].Messages
	require.Equal(t, []events.Part{{Type: events.PartText, Text: "What is this?\n[gone]"}, image}, sent[1].Parts)
	last := sent[len(sent)-1]
	require.Contains(t, last.Content, "<value>drawn</value>")
	require.Equal(t, []events.Part{{Type: events.PartText, Text: last.Content}, chart}, last.Parts)
}

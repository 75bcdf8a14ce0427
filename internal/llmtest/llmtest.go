// Package llmtest is the suite that every [llm.Caller] passes.
//
// An adapter's test gives [Run] a function that makes a Caller from a [Conversation].
// For a Caller of a real provider the conversation is played by a server in the
// provider's wire format; a Caller with ready replies has it as its replies. The
// request says which turn it asks for: by its Replies, and by the number of assistant
// messages in its conversation.
package llmtest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
)

// Turn is what the model answers once: a reply or an error.
type Turn struct {
	Reply llm.Response
	Err   *llm.Error
	// Hang asks for a model that does not answer before the request's context has
	// ended. A Caller without a model may answer with Reply.
	Hang bool
	// Finish says how a reply ends, and Thinking what the model thought before it.
	// They count only over a [Wire].
	Finish   Finish
	Thinking string
}

// Conversation is what the model answers to the first request of a run, to the
// second, and so on.
type Conversation []Turn

// Trait is something that a Caller's provider cannot do.
type Trait string

// NoConfidence marks a Caller whose provider gives no confidence; every reply
// of it has confidence 1.
const NoConfidence Trait = "no confidence"

// ObjectArguments marks a Caller whose provider gives the arguments of a reply in
// one piece as a JSON object, so that they are always valid.
const ObjectArguments Trait = "object arguments"

// OneCall marks a Caller whose provider asks for one call at a time, without an id. It
// returns the first call of a reply, under its own id.
const OneCall Trait = "one call"

// ModelName is the model that the suite's requests name.
const ModelName = "suite-model"

// patience bounds how long a Caller may take to notice that its context ended.
const patience = 30 * time.Second

// suite is one run of [Run].
type suite struct {
	open  func(*testing.T, Conversation) llm.Caller
	lacks []Trait
}

// Run tests the Callers that open makes. The traits say what is not expected.
func Run(t *testing.T, open func(t *testing.T, conv Conversation) llm.Caller, lacks ...Trait) {
	t.Helper()
	s := suite{open: open, lacks: lacks}
	t.Run("text", s.text)
	t.Run("calls", s.calls)
	t.Run("structured", s.structured)
	t.Run("confidence", s.confidence)
	t.Run("turns in order", s.turns)
	t.Run("streamed text", s.streamedText)
	t.Run("streamed calls", s.streamedCalls)
	t.Run("errors", s.errors)
	t.Run("concurrent", s.concurrent)
	t.Run("context ended before", s.endedBefore)
	t.Run("context ends during", s.endsDuring)
}

// Request returns the request that the suite makes for the given turn of a run
// (counted from 0): a system prompt, a task, and for each turn before it a call
// with its result.
func Request(turn int) llm.Request {
	req := llm.Request{
		Run:     "0190a0b0-0000-7000-8000-000000000001",
		Purpose: llm.PurposePlan,
		Model:   ModelName,
		Replies: turn,
		Messages: []llm.Message{
			{Role: llm.RoleSystem, Content: "You are tested."},
			{Role: llm.RoleUser, Content: "Do it."},
		},
		Tools: []llm.Tool{{
			Name:        "search",
			Description: "finds things",
			Schema:      []byte(`{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}`),
		}},
	}
	for i := range turn {
		id := "call_" + strconv.Itoa(i)
		req.Messages = append(req.Messages,
			llm.Message{Role: llm.RoleAssistant, Calls: []llm.Call{{ID: id, Name: "search", Arguments: `{"q":"x"}`}}},
			llm.Message{Role: llm.RoleTool, CallID: id, Name: "search", Content: "found"})
		req.Observations = append(req.Observations, "found")
	}
	return req
}

func meta(input, output, cached int) llm.Meta {
	return llm.Meta{
		Model:      ModelName,
		Usage:      llm.Usage{Input: input, Output: output, Cached: cached, Total: input + output},
		Confidence: 1,
	}
}

func someCalls() llm.ToolCalls {
	return llm.ToolCalls{
		Meta:    meta(30, 7, 16),
		Content: "I look at both.",
		Calls: []llm.Call{
			{ID: "call_a", Name: "search", Arguments: `{"q": "größe <b>", "n": 1.50}`},
			{ID: "call_b", Name: "search", Arguments: `{"q":"second"}`},
			{ID: "call_c", Name: "search", Arguments: `{"q": cut`},
		},
	}
}

// want is what a reply has to come as, given what came.
func (s suite) want(reply llm.ToolCalls, got llm.Response) llm.ToolCalls {
	if calls, ok := got.(llm.ToolCalls); ok && slices.Contains(s.lacks, OneCall) && len(calls.Calls) > 0 && calls.Calls[0].ID != "" {
		reply.Calls = reply.Calls[:1]
		reply.Calls[0].ID = calls.Calls[0].ID
	}
	return reply
}

func (s suite) text(t *testing.T) {
	want := llm.Text{Meta: meta(12, 3, 0), Content: "Hello, wörld.\nBye."}
	got, err := s.open(t, Conversation{{Reply: want}}).Call(t.Context(), Request(0), nil)
	require.NoError(t, err)
	Same(t, want, got)
}

func (s suite) calls(t *testing.T) {
	want := someCalls()
	if slices.Contains(s.lacks, ObjectArguments) {
		want.Calls[2].Arguments = `{"q": [1, 2.50e3]}`
	}
	got, err := s.open(t, Conversation{{Reply: want}}).Call(t.Context(), Request(0), nil)
	require.NoError(t, err)
	Same(t, s.want(want, got), got)
}

func (s suite) structured(t *testing.T) {
	want := llm.Structured{Meta: meta(12, 3, 0), Content: `{"answer": 42}`}
	caller := s.open(t, Conversation{{Reply: want}, {Reply: want}})
	for turn, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		req := Request(turn)
		req.OutputSchema = []byte(`{"type":"object","properties":{"answer":{"type":"integer"}}}`)
		got, err := caller.Call(t.Context(), req, stream)
		require.NoError(t, err)
		Same(t, want, got)
	}
}

func (s suite) confidence(t *testing.T) {
	reply := someCalls()
	reply.Confidence = 0.25
	got, err := s.open(t, Conversation{{Reply: reply}}).Call(t.Context(), Request(0), nil)
	require.NoError(t, err)
	want := 0.25
	if slices.Contains(s.lacks, NoConfidence) {
		want = 1
	}
	require.InDelta(t, want, got.About().Confidence, 1e-9)
}

func (s suite) turns(t *testing.T) {
	var conv Conversation
	for i := range 4 {
		conv = append(conv, Turn{Reply: llm.Text{Meta: meta(i, 1, 0), Content: "turn " + strconv.Itoa(i)}})
	}
	caller := s.open(t, conv)
	for i := range conv {
		got, err := caller.Call(t.Context(), Request(i), nil)
		require.NoError(t, err)
		Same(t, conv[i].Reply, got)
	}
}

func (s suite) streamedText(t *testing.T) {
	want := llm.Text{Meta: meta(12, 3, 4), Content: "One two  three.\n\nVier, fünf. 🙂"}
	var text strings.Builder
	got, err := s.open(t, Conversation{{Reply: want}}).Call(t.Context(), Request(0), func(c llm.Chunk) {
		require.Equal(t, llm.ChunkText, c.Kind)
		text.WriteString(c.Text)
	})
	require.NoError(t, err)
	Same(t, want, got)
	require.Equal(t, want.Content, text.String())
}

func (s suite) streamedCalls(t *testing.T) {
	want := someCalls()
	var text strings.Builder
	calls := make([]llm.Call, len(want.Calls))
	got, err := s.open(t, Conversation{{Reply: want}}).Call(t.Context(), Request(0), func(c llm.Chunk) {
		if c.Kind == llm.ChunkText {
			text.WriteString(c.Text)
			return
		}
		require.Equal(t, llm.ChunkToolCall, c.Kind)
		require.Less(t, c.Index, len(calls))
		calls[c.Index].Name = max(calls[c.Index].Name, c.Name)
		calls[c.Index].Arguments += c.Text
	})
	require.NoError(t, err)
	want = s.want(want, got)
	Same(t, want, got)
	require.Equal(t, want.Content, text.String())
	for i, c := range want.Calls {
		require.Equal(t, c.Name, calls[i].Name)
		require.Equal(t, c.Arguments, calls[i].Arguments)
	}
}

func (s suite) errors(t *testing.T) {
	kinds := []llm.ErrorKind{
		llm.KindRateLimited, llm.KindOverloaded, llm.KindAuth, llm.KindInvalid, llm.KindContextTooLong,
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			turn := Turn{Err: &llm.Error{Kind: kind, Message: "the provider's words"}}
			if kind == llm.KindRateLimited {
				turn.Err.RetryAfter = 7 * time.Second
			}
			caller := s.open(t, Conversation{turn, turn})
			for n, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				got, err := caller.Call(t.Context(), Request(n), stream)
				require.Nil(t, got)
				var e *llm.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, kind, e.Kind)
				require.Contains(t, e.Message, "the provider's words")
				require.Equal(t, turn.Err.RetryAfter, e.RetryAfter)
			}
		})
	}
}

// concurrent makes no claim about which call gets which reply, so that Callers
// that answer in order of arrival pass too.
func (s suite) concurrent(t *testing.T) {
	const n = 16
	var conv Conversation
	want := make([]string, n)
	for i := range n {
		want[i] = "reply " + strconv.Itoa(i)
		conv = append(conv, Turn{Reply: llm.Text{Meta: meta(1, 1, 0), Content: want[i]}})
	}
	caller := s.open(t, conv)
	type outcome struct {
		text, streamed string
		err            error
	}
	outcomes := make(chan outcome, n)
	for i := range n {
		go func() {
			var streamed strings.Builder
			got, err := caller.Call(t.Context(), Request(i), func(c llm.Chunk) { streamed.WriteString(c.Text) })
			text, _ := got.(llm.Text)
			outcomes <- outcome{text.Content, streamed.String(), err}
		}()
	}
	var got []string
	for range n {
		o := <-outcomes
		require.NoError(t, o.err)
		require.Equal(t, o.text, o.streamed)
		got = append(got, o.text)
	}
	require.ElementsMatch(t, want, got)
}

func (s suite) endedBefore(t *testing.T) {
	caller := s.open(t, Conversation{{Reply: llm.Text{Meta: meta(1, 1, 0), Content: "late"}}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		got, err := caller.Call(ctx, Request(0), stream)
		require.Nil(t, got)
		require.ErrorIs(t, err, context.Canceled)
		var e *llm.Error
		require.False(t, errors.As(err, &e), "the context's own error is not the provider's")
	}
}

func (s suite) endsDuring(t *testing.T) {
	turn := Turn{Reply: llm.Text{Meta: meta(1, 1, 0), Content: "late"}, Hang: true}
	caller := s.open(t, Conversation{turn, turn})
	for n, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := caller.Call(ctx, Request(n), stream)
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.Less(t, time.Since(begun), patience)
	}
}

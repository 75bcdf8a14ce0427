package llm_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// shout is a model of one's own: it says what it was told, louder.
type shout struct{}

// Call answers the last message. Where stream is not nil, it gets the text as it comes.
func (shout) Call(_ context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if len(req.Messages) == 0 {
		// The kind says what happens next: an invalid request ends the run, an
		// overloaded provider is asked again.
		return nil, &llm.Error{Kind: llm.KindInvalid, Message: "there is nothing to answer"}
	}
	text := strings.ToUpper(req.Messages[len(req.Messages)-1].Content)
	if stream != nil {
		stream(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
	return llm.Text{Meta: llm.Meta{Model: "shout", Usage: llm.Usage{Input: 3, Output: 3, Total: 6}}, Content: text}, nil
}

func ExampleCaller() {
	var model llm.Caller = shout{}
	reply, err := model.Call(context.Background(), llm.Request{Messages: []llm.Message{{Role: llm.RoleUser, Content: "hello"}}}, nil)
	fmt.Println(reply.(llm.Text).Content, err)
	_, err = model.Call(context.Background(), llm.Request{}, nil)
	fmt.Println(err)
	// Output:
	// HELLO <nil>
	// invalid: there is nothing to answer
}

// A model that asks for a tool, as a function.
func ExampleCallerFunc() {
	model := llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		if req.Replies == 0 {
			return llm.ToolCalls{Calls: []llm.Call{{ID: "call_1", Name: "search", Arguments: `{"q":"moore"}`}}}, nil
		}
		return llm.Text{Content: "Here it is."}, nil
	})
	reply, _ := model.Call(context.Background(), llm.Request{}, nil)
	fmt.Println(reply.(llm.ToolCalls).Calls[0].Name)
	// Output: search
}

func ExampleChunks() {
	for c := range llm.Chunks(llm.ToolCalls{Content: "I look.", Calls: []llm.Call{{Name: "search", Arguments: `{"q":"x"}`}}}) {
		fmt.Printf("%s %s%q\n", c.Kind, c.Name, c.Text)
	}
	// Output:
	// text "I "
	// text "look."
	// tool_call search"{\"q\":\"x\"}"
}

func ExamplePrice_Cost() {
	price := llm.Price{Input: 2.5, CachedInput: 1.25, Output: 10} // US dollars for a million tokens
	fmt.Printf("%.4f\n", price.Cost(llm.Usage{Input: 10_000, Cached: 8_000, Output: 500}))
	// Output: 0.0200
}

package scripted_test

import (
	"context"
	"fmt"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

func ExampleNew() {
	settings := []byte(`{"provider": "scripted", "script": [
		{"calls": [{"name": "word_count", "arguments": {"text": "one two"}}]},
		{"text": "I counted {{observation -1}} words."}]}`)
	model := scripted.New()

	first, _ := model.Call(context.Background(), llm.Request{Settings: settings}, nil)
	fmt.Println(first.(llm.ToolCalls).Calls[0])

	second, _ := model.Call(context.Background(),
		llm.Request{Settings: settings, Replies: 1, Observations: []string{"2"}}, nil)
	fmt.Println(second.(llm.Text).Content)
	// Output:
	// {call_1_1 word_count {"text":"one two"}}
	// I counted 2 words.
}

func ExampleMock() {
	model := scripted.NewMock(scripted.Ask("search", `{"q":"moore"}`), scripted.Say("Found it."))
	for range 3 {
		reply, err := model.Call(context.Background(), llm.Request{Model: "small"}, nil)
		if err != nil {
			fmt.Println(err)
			break
		}
		fmt.Printf("%T\n", reply)
	}
	fmt.Println(model.CallCount(), model.ModelForCall(0))
	// Output:
	// llm.ToolCalls
	// llm.Text
	// invalid: no more programmed responses: there were 2, and this is call 3
	// 3 small
}

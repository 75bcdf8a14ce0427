package agent_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func ExampleBuilder() {
	type text struct {
		Text string `json:"text"`
	}
	words, err := typed.New(tool.Definition{Name: "word_count", Description: "Counts words.", Effect: tool.Pure},
		func(_ context.Context, in text) (string, error) { return fmt.Sprint(len(strings.Fields(in.Text))), nil })
	if err != nil {
		fmt.Println(err)
		return
	}
	// For a real model: openai.New(openai.Options{APIKey: …, Model: …}).
	model := scripted.NewMock(scripted.Ask("word_count", `{"text":"a log of events"}`), scripted.Say("There are 4 words."))

	a, err := agent.New("Count the words of: a log of events").LLM(model).Tool(words).Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := a.Run(context.Background())
	fmt.Println(answer, err)
	for _, entry := range a.Trace() {
		fmt.Println(entry.State, entry.Event)
	}
	// Output:
	// There are 4 words. <nil>
	// idle Start
	// planning LlmToolCall
	// acting ToolSuccess
	// observing Continue
	// planning LlmFinalAnswer
}

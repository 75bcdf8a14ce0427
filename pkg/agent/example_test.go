package agent_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

type text struct {
	Text string `json:"text"`
}

func countWords(_ context.Context, in text) (int, error) { return len(strings.Fields(in.Text)), nil }

func ExampleBuilder() {
	// For a real model: openai.New(openai.Options{APIKey: …, Model: …}).
	model := scripted.NewMock(scripted.Ask("word_count", `{"text":"a log of events"}`), scripted.Say("There are 4 words."))

	a := must(agent.New("Count the words of: a log of events").
		LLM(model).
		Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).
		Build())
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

// A state of one's own between planning and done.
func ExampleGraph() {
	review := func(_ context.Context, mem *agent.Memory) (events.Payload, error) {
		if strings.HasSuffix(*mem.FinalAnswer, "please.") {
			return agent.Emit("ReviewPassed", nil)
		}
		return agent.Emit("ReviewFailed", map[string]string{"remark": "be polite"})
	}
	graph := agent.NewGraph().
		Event("ReviewPassed").Event("ReviewFailed").
		State("reviewing", review).
		Row(events.Planning, events.TypeLLMFinalAnswer, "reviewing").
		Row("reviewing", "ReviewPassed", events.Done).
		Row("reviewing", "ReviewFailed", events.Planning)

	model := scripted.NewMock(scripted.Say("Pass the salt."), scripted.Say("Pass the salt, please."))
	a := must(agent.New("Ask for the salt.").LLM(model).Graph(graph).Build())
	fmt.Println(a.Run(context.Background()))
	_ = a.Trace().Print(os.Stdout)
	// Output:
	// Pass the salt, please. <nil>
	// STEP  STATE      EVENT           DATA
	// 0     idle       Start           Ask for the salt.
	// 1     planning   LlmFinalAnswer  Pass the salt.
	// 1     reviewing  ReviewFailed    {"remark":"be polite"}
	// 2     planning   LlmFinalAnswer  Pass the salt, please.
	// 2     reviewing  ReviewPassed    {}
}

// An end of one's own.
func ExampleGraph_Terminal() {
	publish := func(context.Context, *agent.Memory) (events.Payload, error) { return agent.Emit("Published", nil) }
	graph := agent.NewGraph().
		Event("Published").
		State("publishing", publish).
		Terminal("published").
		Row(events.Planning, events.TypeLLMFinalAnswer, "publishing").
		Row("publishing", "Published", "published")

	a := must(agent.New("Write.").LLM(scripted.NewMock(scripted.Say("An article."))).Graph(graph).Build())
	answer, err := a.Run(context.Background())
	fmt.Println(a.State(), answer, err)
	// Output: published An article. <nil>
}

// Memory of one's own: how many tools were called, counted from the log.
func ExampleGraph_Fold() {
	graph := agent.NewGraph().Fold(events.TypeToolSuccess, func(mem *agent.Memory, _ *events.Event) {
		count := 0
		mem.Kept("calls", &count)
		mem.Keep("calls", count+1)
	})
	model := scripted.NewMock(
		scripted.Ask("word_count", `{"text":"one"}`), scripted.Ask("word_count", `{"text":"one two"}`), scripted.Say("Both counted."))
	a := must(agent.New("Count.").LLM(model).Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).Graph(graph).Build())
	if _, err := a.Run(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	count := 0
	a.Memory().Kept("calls", &count)
	fmt.Println(count, "calls")
	// Output: 2 calls
}

// echo is a model provider of one's own: it says what the user said.
type echo struct{}

// Call answers with the last message.
func (echo) Call(_ context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	said := req.Messages[len(req.Messages)-1].Content
	if stream != nil {
		stream(llm.Chunk{Kind: llm.ChunkText, Text: said})
	}
	return llm.Text{Meta: llm.Meta{Model: "echo", Confidence: 1}, Content: said}, nil
}

// A model provider of one's own.
func ExampleBuilder_LLM() {
	a := must(agent.New("Hello there.").LLM(echo{}).Build())
	fmt.Println(a.Run(context.Background()))
	// Output: Hello there. <nil>
}

// What a run does, as it does it.
func ExampleBuilder_OnOutput() {
	show := func(o agent.Output) {
		switch o := o.(type) {
		case agent.ToolCallStarted:
			fmt.Println("calls", o.Name, o.Arguments)
		case agent.ToolCallFinished:
			fmt.Println("it says", o.Observation)
		case agent.FinalAnswer:
			fmt.Println("answer:", o.Content)
		}
	}
	model := scripted.NewMock(scripted.Ask("word_count", `{"text":"a b"}`), scripted.Say("Two words."))
	a := must(agent.New("Count.").LLM(model).Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).OnOutput(show).Build())
	if _, err := a.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// calls word_count {"text":"a b"}
	// it says SUCCESS: 2
	// answer: Two words.
}

// Several agents on one server: what the first one writes is the other one's task.
func ExampleServe() {
	ctx := context.Background()
	writer := must(agent.New("Write a sentence.").Name("writer").LLM(scripted.NewMock(scripted.Say("The log is the truth."))).Build())
	critic := must(agent.New("Judge it.").Name("critic").LLM(scripted.NewMock(scripted.Say("It is good."))).Build())
	server := must(agent.Serve(ctx, writer, critic))
	defer func() { _ = server.Close() }()
	for _, a := range []*agent.Agent{writer, critic} {
		fmt.Println(a.Run(ctx))
	}
	// Output:
	// The log is the truth. <nil>
	// It is good. <nil>
}

// One transition at a time, over all roles.
func ExampleRun_Step() {
	ctx := context.Background()
	model := scripted.NewMock(scripted.Ask("word_count", `{"text":"a b"}`), scripted.Say("Two words."))
	a := must(agent.New("Count.").LLM(model).Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).Build())
	run := must(a.Stepwise(ctx))
	defer func() { _ = run.Release() }()
	for run.State() != events.Done {
		fmt.Println(must(run.Step(ctx)))
	}
	// Output:
	// acting
	// observing
	// planning
	// done
}

// A conversation.
func ExampleRun_Send() {
	ctx := context.Background()
	a := must(agent.New("Hello.").Chat().LLM(scripted.NewMock(scripted.Say("Hello, Ann."), scripted.Say("Fine."))).Build())
	run := must(a.Start(ctx))
	defer func() { _ = run.Release() }()
	fmt.Println(run.Answer(ctx))
	fmt.Println(run.Send(ctx, "How are you?"))
	fmt.Println(run.Finish(ctx))
	// Output:
	// Hello, Ann. <nil>
	// Fine. <nil>
	// <nil>
}

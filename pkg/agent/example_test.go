package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
)

type text struct {
	Text string `json:"text"`
}

func countWords(_ context.Context, in text) (int, error) { return len(strings.Fields(in.Text)), nil }

func ExampleBuilder() {
	// For a real model: openai.New(openai.Options{APIKey: …, Model: …}).
	model := scripted.NewMock(scripted.Ask("word_count", `{"text":"a log of events"}`), scripted.Say("There are 4 words."))

	a := must(agent.New("counter").
		LLM(model).
		Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).
		Build())
	fmt.Println(a.Run(context.Background(), "Count the words of: a log of events"))
	// Output: There are 4 words. <nil>
}

// A state of one's own between planning and done.
func ExampleGraph() {
	review := func(_ context.Context, w *agent.Work) (events.Payload, error) {
		if strings.HasSuffix(*w.Memory.FinalAnswer, "please.") {
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
	run := must(must(agent.New("guest").LLM(model).Graph(graph).Build()).Start(context.Background(), agent.Task("Ask for the salt.")))
	defer func() { _ = run.Release() }()
	fmt.Println(run.Wait(context.Background()))
	_ = run.Trace().Print(os.Stdout)
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
	publish := func(context.Context, *agent.Work) (events.Payload, error) { return agent.Emit("Published", nil) }
	graph := agent.NewGraph().
		Event("Published").
		State("publishing", publish).
		Terminal("published").
		Row(events.Planning, events.TypeLLMFinalAnswer, "publishing").
		Row("publishing", "Published", "published")

	a := must(agent.New("writer").LLM(scripted.NewMock(scripted.Say("An article."))).Graph(graph).Build())
	run := must(a.Start(context.Background(), agent.Task("Write.")))
	defer func() { _ = run.Release() }()
	answer, err := run.Wait(context.Background())
	fmt.Println(run.State(), answer, err)
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
	a := must(agent.New("counter").LLM(model).Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).Graph(graph).Build())
	run := must(a.Start(context.Background(), agent.Task("Count.")))
	defer func() { _ = run.Release() }()
	_ = must(run.Wait(context.Background()))
	count := 0
	run.Memory().Kept("calls", &count)
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
	a := must(agent.New("parrot").LLM(echo{}).Build())
	fmt.Println(a.Run(context.Background(), "Hello there."))
	// Output: Hello there. <nil>
}

// What a run does, as it does it.
func ExampleRun_Outputs() {
	ctx := context.Background()
	model := scripted.NewMock(scripted.Ask("word_count", `{"text":"a b"}`), scripted.Say("Two words."))
	a := must(agent.New("counter").LLM(model).Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).Build())
	run := must(a.Start(ctx, agent.Task("Count.")))
	defer func() { _ = run.Release() }()
	for o, err := range run.Outputs(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		switch o := o.Output.(type) {
		case agent.ToolCallStarted:
			fmt.Println("calls", o.Name, o.Arguments)
		case agent.ToolCallFinished:
			fmt.Println("it says", o.Observation)
		case agent.FinalAnswer:
			fmt.Println("answer:", o.Content)
		}
	}
	// Output:
	// calls word_count {"text":"a b"}
	// it says SUCCESS: 2
	// answer: Two words.
}

// Several agents on one server: what the first one writes is the other one's task.
func ExampleServe() {
	ctx := context.Background()
	writer := must(agent.New("writer").LLM(scripted.NewMock(scripted.Say("The log is the truth."))).Build())
	critic := must(agent.New("critic").LLM(scripted.NewMock(scripted.Say("It is good."))).Build())
	server := must(agent.Serve(ctx, writer, critic))
	defer func() { _ = server.Close() }()
	for _, a := range []*agent.Agent{writer, critic} {
		fmt.Println(a.Run(ctx, "Say it in a sentence."))
	}
	// Output:
	// The log is the truth. <nil>
	// It is good. <nil>
}

// One transition at a time, over all roles.
func ExampleRun_Step() {
	ctx := context.Background()
	model := scripted.NewMock(scripted.Ask("word_count", `{"text":"a b"}`), scripted.Say("Two words."))
	a := must(agent.New("counter").LLM(model).Tool(agent.Func("word_count", "Counts words.", countWords, agent.Pure)).Build())
	run := must(a.Stepwise(ctx, agent.Task("Count.")))
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
	a := must(agent.New("host").Chat().LLM(scripted.NewMock(scripted.Say("Hello, Ann."), scripted.Say("Fine."))).Build())
	run := must(a.Start(ctx, agent.Task("Hello.")))
	defer func() { _ = run.Release() }()
	fmt.Println(run.Answer(ctx))
	fmt.Println(run.Send(ctx, "How are you?"))
	fmt.Println(run.Finish(ctx))
	// Output:
	// Hello, Ann. <nil>
	// Fine. <nil>
	// <nil>
}

// must is for examples that are about something else.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// A run that goes on by itself while the program does something else.
func ExampleAgent_Start() {
	ctx := context.Background()
	a := must(agent.New("speaker").LLM(scripted.NewMock(scripted.Say("Something."))).Build())
	run := must(a.Start(ctx, agent.Task("Say something.")))
	defer func() { _ = run.Release() }()
	fmt.Println(run.Wait(ctx))
	fmt.Println(run.State(), run.Memory().Step)
	// Output:
	// Something. <nil>
	// done 1
}

// The loop that decides on everything that waits for a human.
func ExampleRun_Approvals() {
	ctx := context.Background()
	pay := agent.Func("pay", "Pays.", func(_ context.Context, in struct {
		Crowns int `json:"crowns"`
	}) (string, error) {
		return fmt.Sprintf("paid %d crowns", in.Crowns), nil
	}, agent.Risk(tool.High))
	model := scripted.NewMock(scripted.Ask("pay", `{"crowns":10}`), scripted.Ask("pay", `{"crowns":9000}`), scripted.Say("Done."))
	a := must(agent.New("cashier").LLM(model).Tool(pay).Approval(events.Approval{Policy: events.ApproveAbove, Risk: "medium"}).Build())
	run := must(a.Start(ctx, agent.Task("Pay.")))
	defer func() { _ = run.Release() }()
	for call := range run.Approvals(ctx) {
		d := events.Decision{Decision: events.DecisionApproved, By: "ann"}
		if len(call.Arguments) > len(`{"crowns":99}`) {
			d.Decision, d.Reason = events.DecisionRejected, "too much"
		}
		if err := call.Decide(ctx, d); err != nil {
			log.Fatal(err)
		}
	}
	for _, entry := range run.Memory().History {
		fmt.Println(entry.Observation)
	}
	// Output:
	// SUCCESS: paid 10 crowns
	// REJECTED: too much
}

// A run is its log: a program that starts later, on the same data, carries it on.
func ExampleAgent_Attach() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "moorebus-"))
	defer func() { _ = os.RemoveAll(dir) }()
	program := func(replies ...any) *agent.Agent {
		return must(agent.New("host").Chat().LLM(scripted.NewMock(replies...)).Data(dir).Build())
	}
	run := must(program(scripted.Say("Hello, Ann.")).Start(ctx, agent.Task("Hello.")))
	fmt.Println(must(run.Answer(ctx)))
	_ = run.Release() // the run waits for its user; this could be the end of the process

	again := must(program(scripted.Say("Fine.")).Attach(ctx, run.ID()))
	defer func() { _ = again.Release() }()
	fmt.Println(must(again.Send(ctx, "How are you?")))
	// Output:
	// Hello, Ann.
	// Fine.
}

// An answer that satisfies a JSON Schema. One that does not is told to the model.
func ExampleBuilder_OutputSchema() {
	a := must(agent.New("counter").
		LLM(scripted.NewMock(scripted.Say("forty-two"), llm.Structured{Content: `{"n":42}`})).
		OutputSchema(json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)).
		Build())
	fmt.Println(a.Run(context.Background(), "How many?"))
	// Output: {"n":42} <nil>
}

// An agent as a tool of another one: a call of it is a run with a log of its own.
func ExampleBuilder_Subagent() {
	helper := must(agent.New("helper").LLM(scripted.NewMock(scripted.Say("It is 42."))).Build())
	boss := must(agent.New("boss").
		LLM(scripted.NewMock(scripted.Ask("helper", `{"task":"6*7"}`), scripted.Say("42."))).
		Subagent(helper, func(c *agent.Callee) { c.Description = "Calculates." }).
		Build())
	fmt.Println(boss.Run(context.Background(), "What is 6 times 7?"))
	// Output: 42. <nil>
}

// An agent that hands the conversation over: the other one goes on in the same run.
func ExampleBuilder_Handoff() {
	poet := must(agent.New("poet").LLM(scripted.NewMock(scripted.Say("Roses are red."))).Build())
	desk := must(agent.New("desk").LLM(scripted.NewMock(scripted.Ask("transfer_to_poet", `{}`))).Handoff(poet).Build())
	fmt.Println(desk.Run(context.Background(), "A poem, please."))
	// Output: Roses are red. <nil>
}

// A tool of a function that says what it does: it may run again after a crash.
func ExampleFunc() {
	type words struct {
		Text string `json:"text" jsonschema:"what to count"`
	}
	count := agent.Func("word_count", "Counts words.", func(_ context.Context, in words) (map[string]int, error) {
		return map[string]int{"words": len(strings.Fields(in.Text))}, nil
	}, agent.Pure)
	fmt.Println(count.Run(context.Background(), tool.Call{Arguments: `{"text":"a log of events"}`}))
	// Output: {"words":4} <nil>
}

// What a run may use. A run that uses more ends with an error that says so.
func ExampleBuilder_Budget() {
	dear := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
		return llm.ToolCalls{Meta: llm.Meta{Usage: llm.Usage{Input: 900, Output: 200, Total: 1100}}, Calls: []llm.Call{{ID: "a", Name: "none", Arguments: "{}"}}}, nil
	})
	a := must(agent.New("thinker").LLM(dear).Budget(events.Budget{MaxTotalTokens: 1000}).Build())
	_, err := a.Run(context.Background(), "Think long.")
	var failed *agent.Failed
	if errors.As(err, &failed) {
		fmt.Println(failed.Code)
	}
	// Output: budget_total_tokens
}

// The words of a model, streamed to a browser by the application's own web server.
func ExampleRun_Outputs_web() {
	a := must(agent.New("speaker").LLM(scripted.NewMock(scripted.Say("Hello to the web."))).Build())
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run, err := a.Start(r.Context(), agent.Task("Greet."))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = run.Release() }()
		w.Header().Set("Content-Type", "text/event-stream")
		for o, err := range run.Outputs(r.Context()) {
			if err != nil {
				return // the browser is gone
			}
			if answer, ok := o.Output.(agent.FinalAnswer); ok { // an agent.LLMToken is a piece of it
				_, _ = fmt.Fprintf(w, "data: %s\n\n", answer.Content)
				_ = http.NewResponseController(w).Flush()
			}
		}
	}))
	defer web.Close()
	page := must(http.Get(web.URL))
	fmt.Printf("%s", must(io.ReadAll(page.Body)))
	// Output: data: Hello to the web.
}

// A tool that the program itself carries out, whenever it can: the run waits in the log.
func ExampleRun_ClientCalls() {
	ctx := context.Background()
	locate := events.ClientTool{Name: "locate", Description: "Says where the user is.", Schema: json.RawMessage(`{"type":"object"}`)}
	model := scripted.NewMock(scripted.Ask("locate", `{}`), scripted.Say("You are in Prague."))
	run := must(must(agent.New("guide").LLM(model).ClientTool(locate).Build()).Start(ctx, agent.Task("Where am I?")))
	defer func() { _ = run.Release() }()
	for call := range run.ClientCalls(ctx) {
		if err := call.Return(ctx, "Prague", nil); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(run.Wait(ctx))
	// Output: You are in Prague. <nil>
}

// Our HTTP interface under a path of an application's own server. Agents come at any time.
func ExampleServer_Handler() {
	server := must(agent.Serve(context.Background(), must(agent.New("first").LLM(scripted.NewMock()).Build())))
	defer func() { _ = server.Close() }()
	if err := server.Add(context.Background(), must(agent.New("second").LLM(scripted.NewMock()).Build())); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/agents/", http.StripPrefix("/agents", server.Handler()))
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest("GET", "/agents/v1/runs", nil))
	fmt.Println(answer.Body)
	// Output: {"runs":[]}
}

// A handler around the work of a built-in state: it keeps an eye on the planning.
func ExampleWork_Next() {
	limited := func(_ context.Context, w *agent.Work) (events.Payload, error) {
		if w.Memory.TotalUsage.Total > 1000 {
			return &events.FatalError{Outcome: events.Outcome{Code: "too_dear", Message: "the run used up its tokens"}}, nil
		}
		return w.Next()
	}
	a := must(agent.New("speaker").LLM(scripted.NewMock(scripted.Say("Cheap."))).Graph(agent.NewGraph().State(events.Planning, limited)).Build())
	fmt.Println(a.Run(context.Background(), "Speak."))
	// Output: Cheap. <nil>
}

// Agents over HTTP. The run is forked after its first event, by any HTTP client.
func ExampleServeHTTP() {
	model := scripted.NewMock(scripted.Say("Hello."), scripted.Say("Hello to the fork."))
	a := must(agent.New("greeter").LLM(model).Build())
	server := must(agent.ServeHTTP(context.Background(), agent.HTTP{}, a))
	defer func() { _ = server.Close() }()
	url := server.URL() + "/v1/runs"

	run := post(url, `{"agent":{"name":"greeter","llm":{"provider":"greeter"}},"task":"Say hello."}`)
	fork := post(url+"/"+run["run_id"].(string)+"/fork", `{"at":1}`)
	fmt.Println(fork["state"])
	// Output: planning
}

func post(url, body string) (answer map[string]any) {
	resp := must(http.Post(url, "application/json", strings.NewReader(body)))
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		log.Fatal(err)
	}
	return answer
}

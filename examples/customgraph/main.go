// Command customgraph is an agent with a custom graph: answers are reviewed before the
// run is done. A run whose answers fail the review three times ends in the custom final
// state abandoned.
//
//	go run ./examples/customgraph
//
// It asks OpenAI if OPENAI_API_KEY is set (or the server of OPENAI_BASE_URL), and
// a scripted model otherwise.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// The states and events of the graph.
const (
	reviewing = events.State("reviewing")
	abandoned = events.State("abandoned")

	reviewPassed = events.Type("ReviewPassed")
	reviewFailed = events.Type("ReviewFailed")
	reviewEnded  = events.Type("ReviewEnded")
)

// failedKey is the key under which memory counts failed reviews.
const failedKey = "reviews_failed"

// remark is the data of reviewFailed.
type remark struct {
	Text string `json:"text"`
}

func main() {
	if err := run(context.Background(), os.Stdout, os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// graph puts the review between planning and done.
func graph() *agent.Graph {
	return agent.NewGraph().
		Event(reviewPassed).Event(reviewFailed).Event(reviewEnded).
		State(reviewing, review).
		Terminal(abandoned).
		Row(events.Planning, events.TypeLLMFinalAnswer, reviewing).
		Row(reviewing, reviewPassed, events.Done).
		Row(reviewing, reviewFailed, events.Planning).
		Row(reviewing, reviewEnded, abandoned).
		Fold(reviewFailed, remember)
}

// review requires an answer that names its source.
func review(_ context.Context, w *agent.Work) (events.Payload, error) {
	if strings.Contains(*w.Memory.FinalAnswer, "Source:") {
		return agent.Emit(reviewPassed, nil)
	}
	failed := 0
	if w.Memory.Kept(failedKey, &failed); failed == 2 {
		return agent.Emit(reviewEnded, nil)
	}
	return agent.Emit(reviewFailed, remark{"Name your source, as in: Source: …"})
}

// remember counts the review and tells the model what was wrong.
func remember(mem *agent.Memory, e *events.Event) {
	var r remark
	if err := agent.Data(e, &r); err != nil {
		panic(err) // it was written by review
	}
	failed := 0
	mem.Kept(failedKey, &failed)
	mem.Keep(failedKey, failed+1)
	mem.Note(r.Text)
}

func run(ctx context.Context, w io.Writer, getenv func(string) string) error {
	model, err := caller(w, getenv)
	if err != nil {
		return err
	}
	a, err := agent.New("astronomer").LLM(model).Graph(graph()).Build()
	if err != nil {
		return err
	}
	r, err := a.Start(ctx, agent.Task("How many moons does Mars have?"))
	if err != nil {
		return err
	}
	defer func() { _ = r.Release() }()
	answer, err := r.Wait(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%s: %s\n", r.State(), answer); err != nil {
		return err
	}
	return r.Trace().Print(w)
}

func caller(w io.Writer, getenv func(string) string) (llm.Caller, error) {
	if key, base := getenv("OPENAI_API_KEY"), getenv("OPENAI_BASE_URL"); key != "" || base != "" {
		return openai.New(openai.Options{APIKey: key, BaseURL: base, Model: "gpt-4o-mini"})
	}
	_, err := fmt.Fprintln(w, "(the model is scripted; set OPENAI_API_KEY for a real one)")
	return scripted.NewMock(
		scripted.Say("Mars has two moons."),
		scripted.Say("Mars has two moons. Source: A. Hall, 1877."),
	), err
}

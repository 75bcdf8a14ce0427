// Command multitool is an agent with several tools, a separate model for calculations,
// and custom limits. It may not use one of the tools.
//
//	go run ./examples/multitool
//
// The model is scripted, so the example always prints the same. The calculator is real.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type place struct {
	City string `json:"city"`
}

type query struct {
	Query string `json:"query"`
}

func search(_ context.Context, in query) (string, error) {
	return in.Query + " is the capital of France.", nil
}

func weather(_ context.Context, in place) (string, error) {
	return "In " + in.City + " it is 18.5 degrees.", nil
}

// tools are the tools that the model could call.
func tools() ([]tool.Tool, error) {
	calculator, err := builtin.New(builtin.Calculator, builtin.Options{})
	if err != nil {
		return nil, err
	}
	searchTool, err := typed.New(tool.Definition{Name: "search", Description: "Looks a city up.", Effect: tool.Pure}, search)
	if err != nil {
		return nil, err
	}
	weatherTool, err := typed.New(tool.Definition{Name: "weather", Description: "Says how warm it is.", Effect: tool.Pure}, weather)
	if err != nil {
		return nil, err
	}
	deleteTool, err := typed.New(tool.Definition{Name: "delete_everything", Description: "Deletes everything.", Risk: tool.Critical},
		func(context.Context, struct{}) (string, error) { return "gone", nil })
	return []tool.Tool{calculator, searchTool, weatherTool, deleteTool}, err
}

func run(ctx context.Context, w io.Writer) error {
	model := scripted.NewMock(
		scripted.Ask("delete_everything", `{}`),
		scripted.Ask("search", `{"query":"Paris"}`),
		scripted.Ask("weather", `{"city":"Paris"}`),
		scripted.Ask("calculator", `{"expression":"18.5 * 9 / 5 + 32"}`),
		scripted.Say("In Paris it is 65.3 degrees Fahrenheit, and nothing was deleted."),
	)
	builder := agent.New("traveller").
		Model("large-model").ModelFor("calculation", "small-model").
		LLM(model).Blacklist("delete_everything").
		MaxSteps(6).ReflectEvery(0)
	all, err := tools()
	if err != nil {
		return err
	}
	for _, t := range all {
		builder.Tool(t)
	}
	a, err := builder.Build()
	if err != nil {
		return err
	}
	r, err := a.Start(ctx, agent.Task("How warm is it in the capital of France, in Fahrenheit?"), agent.TaskType("calculation"))
	if err != nil {
		return err
	}
	defer func() { _ = r.Release() }()
	answer, err := r.Wait(ctx)
	if err != nil {
		return err
	}
	return report(w, r, fmt.Sprintf("%s asked %d times: %s", model.ModelForCall(0), model.CallCount(), answer))
}

// report prints the calls, including refused ones, and then the answer.
func report(w io.Writer, r *agent.Run, answer string) error {
	for _, entry := range r.Trace() {
		if entry.Event == string(events.TypeToolBlacklisted) {
			if _, err := fmt.Fprintln(w, "delete_everything({}) = refused: blacklisted"); err != nil {
				return err
			}
		}
	}
	for _, entry := range r.Memory().History {
		if _, err := fmt.Fprintf(w, "%s(%s) = %s\n", entry.Tool.Name, entry.Tool.Arguments, entry.Observation); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, answer)
	return err
}

// Command multitool is an agent with several tools, one of which it may not use,
// a model of its own for calculations, and limits of its own.
//
//	go run ./examples/multitool
//
// The model is scripted, so that the example says the same every time; the
// calculator is real.
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

func weather(_ context.Context, in place) (string, error) {
	return "In " + in.City + " it is 18.5 degrees.", nil
}

func run(ctx context.Context, w io.Writer) error {
	calculator, err := builtin.New(builtin.Calculator, builtin.Options{})
	if err != nil {
		return err
	}
	weatherTool, err := typed.New(tool.Definition{Name: "weather", Description: "Says how warm it is.", Effect: tool.Pure}, weather)
	if err != nil {
		return err
	}
	deleteTool, err := typed.New(tool.Definition{Name: "delete_everything", Description: "Deletes everything.", Risk: tool.Critical},
		func(context.Context, struct{}) (string, error) { return "gone", nil })
	if err != nil {
		return err
	}
	model := scripted.NewMock(
		scripted.Ask("delete_everything", `{}`),
		scripted.Ask("weather", `{"city":"Paris"}`),
		scripted.Ask("calculator", `{"expression":"18.5 * 9 / 5 + 32"}`),
		scripted.Say("In Paris it is 65.3 degrees Fahrenheit, and nothing was deleted."),
	)
	a, err := agent.New("How warm is it in Paris, in Fahrenheit?").
		TaskType("calculation").Model("large-model").ModelFor("calculation", "small-model").
		LLM(model).Tool(calculator).Tool(weatherTool).Tool(deleteTool).Blacklist("delete_everything").
		Configure(func(c *events.Config) { c.MaxSteps, c.ReflectEveryNSteps = 6, 0 }).Build()
	if err != nil {
		return err
	}
	answer, err := a.Run(ctx)
	if err != nil {
		return err
	}
	for _, entry := range a.Memory().History {
		if _, err := fmt.Fprintf(w, "%s(%s) = %s\n", entry.Tool.Name, entry.Tool.Arguments, entry.Observation); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%s asked %d times: %s\n", model.ModelForCall(0), model.CallCount(), answer)
	return err
}

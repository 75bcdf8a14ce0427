package tool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/moorebus/moorebus/pkg/tool"
)

// coin is a tool of one's own. Package typed makes one of a function.
type coin struct{}

// Definition is what the model and the approval policies see.
func (coin) Definition() tool.Definition {
	return tool.Definition{
		Name: "coin", Description: "Tosses a coin.", Effect: tool.Once, Risk: tool.Low,
		Schema: json.RawMessage(`{"type":"object","properties":{"side":{"type":"string"}},"required":["side"]}`),
	}
}

// Run gets the model's arguments. Its error is told to the model.
func (coin) Run(_ context.Context, call tool.Call) (string, error) {
	var in struct{ Side string }
	if err := json.Unmarshal([]byte(call.Arguments), &in); err != nil {
		return "", tool.Failf(tool.CodeInvalidArguments, "%v", err)
	}
	if in.Side != "heads" && in.Side != "tails" {
		return "", tool.Failf("no_such_side", "a coin has heads and tails, and no %s", in.Side)
	}
	return "It is " + in.Side + ".", nil
}

func ExampleTool() {
	registry, err := tool.NewRegistry(coin{})
	if err != nil {
		log.Fatal(err)
	}
	out := registry.Execute(context.Background(), tool.Call{Name: "coin", Arguments: `{"side":"heads"}`})
	fmt.Println(out.Result)
	out = registry.Execute(context.Background(), tool.Call{Name: "coin", Arguments: `{"side":"edge"}`})
	fmt.Println(out.Failure.Code, out.Failure.Message)
	out = registry.Execute(context.Background(), tool.Call{Name: "dice"})
	fmt.Println(out.Failure.Code)
	// Output:
	// It is heads.
	// no_such_side a coin has heads and tails, and no edge
	// not_found
}

package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

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
	for _, arguments := range []string{`{"side":"heads"}`, `{"side":"edge"}`} {
		result, err := coin{}.Run(context.Background(), tool.Call{Name: "coin", Arguments: arguments})
		var failure *tool.Failure
		if errors.As(err, &failure) {
			result = failure.Code + ": " + failure.Message
		}
		fmt.Println(result)
	}
	// Output:
	// It is heads.
	// no_such_side: a coin has heads and tails, and no edge
}

package typed

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/pkg/tool"
)

// Result is [New] for a function whose result is of any type: a string is the text
// that the model sees, any other value is written as JSON. One that cannot be
// written is a failure.
func Result[In, Out any](def tool.Definition, fn func(ctx context.Context, in In) (Out, error)) (tool.Tool, error) {
	if fn == nil {
		return New[In](def, nil)
	}
	return New(def, func(ctx context.Context, in In) (string, error) {
		out, err := fn(ctx, in)
		if err != nil {
			return "", err
		}
		if text, ok := any(out).(string); ok {
			return text, nil
		}
		data, err := json.Marshal(out)
		if err != nil {
			return "", fmt.Errorf("the result cannot be written as JSON: %w", err)
		}
		return string(data), nil
	})
}

package mcpserve

import (
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/internal/codec"
)

// taskSchema returns the input of an agent's tool. An agent with its own task needs none.
func taskSchema(own string) json.RawMessage {
	if own == "" {
		return json.RawMessage(`{"type":"object","properties":{"task":{"type":"string","description":"What the agent is to do, with everything that it has to know."}},"required":["task"],"additionalProperties":false}`)
	}
	return json.RawMessage(`{"type":"object","properties":{"task":{"type":"string","description":"What the agent is to do, with everything that it has to know. Without it the agent does its own task."}},"additionalProperties":false}`)
}

// taskOf returns the task of a call, empty for the agent's own.
func taskOf(arguments json.RawMessage) (string, error) {
	if len(arguments) == 0 {
		return "", nil
	}
	var in struct {
		Task string `json:"task"`
	}
	if err := codec.Strict(arguments, &in); err != nil {
		return "", fmt.Errorf("the arguments do not fit the schema: %w", err)
	}
	return in.Task, nil
}

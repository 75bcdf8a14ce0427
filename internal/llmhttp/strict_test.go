package llmhttp

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStrictSchema(t *testing.T) {
	tests := []struct {
		schema string
		want   bool
	}{
		{`{"type":"object","properties":{},"additionalProperties":false}`, true},
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`, true},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"type":["string","null"]}}},"required":["a"],"additionalProperties":false}`, true},
		{`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`, false},
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, false},
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":["b"],"additionalProperties":false}`, false},
		{`{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false}`, false},
		{`{"type":"object","properties":{"a":{"type":"string","minLength":1}},"required":["a"],"additionalProperties":false}`, false},
		{`{"type":"object","properties":{"a":{"type":"object"}},"required":["a"],"additionalProperties":false}`, false},
		{`{"type":"object","properties":{"a":{"type":"array"}},"required":["a"],"additionalProperties":false}`, false},
		{`{"type":"array","items":{"type":"string"}}`, false},
		{`true`, false},
		{`{"type":"object","required":1}`, false},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, StrictSchema(json.RawMessage(tt.schema)), tt.schema)
	}
}

package reducer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Every event has a line in the trace that says more than its type, and no more than
// fits.
func TestEveryEventIsDescribed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 2*traceTextLimit)
	data := fmt.Sprintf(`{"task":%[1]q,"content":%[1]q,"message":%[1]q,"summary":%[1]q,"observation":%[1]q,"reason":%[1]q,"value":%[1]q,"arguments":%[1]q,
		"run":"r","at":3,"code":"c","kind":"k","call_id":"c1","decision":"modified","by":"Ann","tags":["home"],"agent":{"name":"writer"},"increment":4,
		"calls":[{"id":"c1","name":"search","arguments":%[1]q}],"call_ids":["c1"],"results":[{"id":"c1","code":"c","observation":%[1]q}]}`, long)
	for _, typ := range events.Types() {
		p := events.New(typ)
		require.NoError(t, json.Unmarshal([]byte(data), p), typ)
		text := ruleFor(typ).trace(p)
		require.NotEmpty(t, strings.Trim(text, " :,"), typ)
		require.LessOrEqual(t, utf8.RuneCountInString(text), traceTextLimit+1, typ)
	}
	require.Equal(t, `{"x":1}`, customRule.trace(&events.Custom{Name: "Mine", Data: []byte(`{"x":1}`)}))
}

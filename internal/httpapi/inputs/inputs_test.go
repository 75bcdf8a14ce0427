package inputs_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/inputs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// TestEveryInputByEveryName: the seven inputs, by their own names and the events',
// in every way of writing names and keys.
func TestEveryInputByEveryName(t *testing.T) {
	message, window := control.UserMessage{MessageID: "m", Content: "x"}, control.ExpandContextWindow{Increment: 3}
	added := control.AddToolCallsToContext{CallIDs: []string{"c", "d"}}
	text := "x"
	for _, c := range []struct {
		names  string
		bodies []string
		want   []control.Input // of each body; the last one is also that of further ones
	}{
		{"user-message", []string{`"messageId":"m","content":"x","timestamp":1700000000000`, `"message_id":"m","content":"x","timestamp":"2025-01-02T03:04:05.6Z"`}, []control.Input{message}},
		{"expand-context-window context-window-expanded", []string{`"increment":3`, `"increment":3,"timestamp":1`}, []control.Input{window}},
		{"add-tool-calls-to-context tool-calls-added-to-context", []string{`"toolCallIds":["c","d"]`, `"tool_call_ids":["c","d"]`, `"callIds":["c","d"]`, `"call_ids":["c","d"]`}, []control.Input{added}},
		{"llm-chunk", []string{`"messageId":"m","chunk":"x"`, `"message_id":"m","chunk":"x","offset":7`}, []control.Input{control.LLMChunk{MessageID: "m", Chunk: "x"}}},
		{"llm-message-complete", []string{
			`"messageId":"m"`, `"message_id":"m","content":"x","model":"y","usage":{"input":1},"timestamp":1`,
			`"messageId":"m","key":"k","calls":[{"id":"c","name":"n","arguments":{"a":1}},{"id":"d","name":"n","arguments":"{}"}]`,
		}, []control.Input{
			control.LLMMessageComplete{MessageID: "m"},
			control.LLMMessageComplete{MessageID: "m", Model: "y", Content: &text, Usage: &events.Usage{Input: 1}},
			control.LLMMessageComplete{MessageID: "m", Key: "k", Calls: []events.Call{{ID: "c", Name: "n", Arguments: `{"a":1}`}, {ID: "d", Name: "n", Arguments: "{}"}}},
		}},
		{"tool-call-started", []string{`"toolCallId":"c","name":"x","parameters":"{}","timestamp":1`, `"call_id":"c"`}, []control.Input{
			control.ToolCallStarted{CallID: "c", Name: "x", Arguments: "{}"}, control.ToolCallStarted{CallID: "c"},
		}},
		{"tool-call-result", []string{
			`"toolCallId":"c","result":{"isSuccess":true,"content":""}`, `"tool_call_id":"c","result":{"is_success":false,"error":"x"}`,
			`"callId":"c","success":false,"observation":"x","code":"y","latencyMs":3`,
		}, []control.Input{
			control.ToolCallResult{CallID: "c", Success: true}, control.ToolCallResult{CallID: "c", Text: "x"}, control.ToolCallResult{CallID: "c", Text: "x"},
		}},
	} {
		for kebab := range strings.FieldsSeq(c.names) {
			for _, name := range forms(kebab) {
				for i, body := range c.bodies {
					text := fmt.Sprintf(`[{"type":%q,%s}]`, name, body)
					want := c.want[min(i, len(c.want)-1)]
					got, err := inputs.Parse([]byte(text))
					require.NoError(t, err, text)
					require.Equal(t, []control.Input{want}, got, text)
					for _, bad := range []string{`"timestamp":"soon",`, `"timestamp":null,`, `"surprise":1,`, `"message_ID":"m",`} {
						if strings.Contains(bad, "timestamp") && strings.Contains(body, "timestamp") {
							continue
						}
						_, err := inputs.Parse([]byte(fmt.Sprintf(`[{"type":%q,%s%s}]`, name, bad, body)))
						require.ErrorContains(t, err, "input 0: ", text)
					}
				}
			}
		}
	}
	for _, name := range []string{"UserMESSAGE", "USER-MESSAGE", "user message", "user-Message", "llm_Chunk", ""} {
		_, err := inputs.Parse([]byte(fmt.Sprintf(`[{"type":%q,"content":"x"}]`, name)))
		require.ErrorContains(t, err, "type", name)
	}
}

// forms are the ways of writing a name.
func forms(kebab string) []string {
	pascal := ""
	for word := range strings.SplitSeq(kebab, "-") {
		pascal += strings.ToUpper(word[:1]) + word[1:]
	}
	return []string{kebab, strings.ReplaceAll(kebab, "-", "_"), strings.ToLower(pascal[:1]) + pascal[1:], pascal}
}

func TestBadFormsOfOutsideInputs(t *testing.T) {
	for body, says := range map[string]string{
		`"type":"llm-chunk","messageId":"m","chunk":7`:                                                           "chunk: is a number, want a string",
		`"type":"llm-chunk","messageId":"m","chunk":"x","offset":-1`:                                             "offset: must be an integer",
		`"type":"llm-chunk","messageId":"m","chunk":"x","offset":null`:                                           "offset",
		`"type":"llm-chunk","messageId":7,"chunk":"x"`:                                                           "message_id: is a number",
		`"type":"llm-message-complete","messageId":"m","usage":3`:                                                "usage: is a number, want a mapping",
		`"type":"llm-message-complete","messageId":"m","usage":{"input":3,"output":-1}`:                          "usage: no number may be negative",
		`"type":"llm-message-complete","messageId":"m","usage":{"cost_usd":-0.5}`:                                "usage: no number may be negative",
		`"type":"llm-message-complete","messageId":"m","content":null`:                                           "content: is",
		`"type":"tool-call-started","toolCallId":"c","callId":"c"`:                                               "call_id: excludes tool_call_id",
		`"type":"tool-call-started","toolCallId":"c","parameters":{}`:                                            "parameters: is a mapping, want a string",
		`"type":"tool-call-started","toolCallId":""`:                                                             "tool_call_id",
		`"type":"tool-call-result","toolCallId":"c","success":"yes","observation":"x"`:                           "success: is",
		`"type":"tool-call-result","toolCallId":"c","success":true,"observation":"x","latencyMs":1.5`:            "latency_ms",
		`"type":"tool-call-result","toolCallId":"c","result":{"isSuccess":1,"content":"x"}`:                      "is_success: must be true or false",
		`"type":"tool-call-result","toolCallId":"c","result":{"isSuccess":true,"content":"x","error":"y"}`:       "with is_success true has content, a string, and nothing else",
		`"type":"tool-call-result","toolCallId":"c","result":{"isSuccess":true,"content":"x","is_success":true}`: "is_success: is given twice",
		`"type":"tool-call-result","toolCallId":"c","result":["x"]`:                                              "result: is",
	} {
		_, err := inputs.Parse([]byte("[{" + body + "}]"))
		require.ErrorContains(t, err, says, body)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"type":"user-message","messageId":"a","content":"x","timestamp":1}]`))
	f.Add([]byte(`[{"type":"tool-call-result","toolCallId":"c","result":{"isSuccess":true,"content":"x"}}]`))
	f.Add([]byte(`[{"type":"expand-context-window","increment":1e400}]`))
	f.Add([]byte(`[{"type":"add_tool_calls_to_context","tool_call_ids":["\ud83d\ude00"]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := inputs.Parse(data)
		if err != nil {
			var known *refusal.Error
			require.True(t, errors.As(err, &known))
			require.Equal(t, refusal.Invalid, known.Kind)
			return
		}
		for _, in := range parsed {
			require.NotNil(t, in)
		}
	})
}

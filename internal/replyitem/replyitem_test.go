package replyitem

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShown(t *testing.T) {
	for data, want := range map[string]string{
		`{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"weather in\nBern","queries":["a"]}}`: "web_search_call: weather in Bern (completed)",
		`{"type":"web_search_call","action":{"type":"open_page","url":"https://example.org/a"}}`:                                            "web_search_call: https://example.org/a",
		`{"type":"code_interpreter_call","code":"print(1)","status":"completed","outputs":null}`:                                            "code_interpreter_call: print(1) (completed)",
		`{"type":"mcp_call","server_label":"docs","name":"find","arguments":"{}","error":"no"}`:                                             "mcp_call docs find (failed)",
		`{"type":"mcp_call","server_label":"docs","name":"find","error":null,"status":"completed"}`:                                         "mcp_call docs find (completed)",
		`{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"q"}}`:                                            "server_tool_use web_search: q",
		`{"type":"web_search_tool_result","content":[{"type":"web_search_result"},{"type":"web_search_result"}]}`:                           "web_search_tool_result: 2 results",
		`{"type":"web_search_tool_result","content":{"type":"web_search_tool_result_error","error_code":"too_many_requests"}}`:              "web_search_tool_result: too_many_requests",
		`{"type":"compaction","content":"what was said"}`:                                                                                   "compaction: what was said",
		`{"type":"image_generation_call","result":"` + strings.Repeat("A", 4000) + `","status":"completed"}`:                                "image_generation_call (completed)",
		`{"type":"message","phase":"commentary","content":[{"type":"output_text","text":"I look."}]}`:                                       "commentary: I look.",
		`{"type":"message","phase":"final_answer","content":[{"type":"output_text","text":"42"}]}`:                                          "",
		`{"type":7}`:                            "",
		`{"type":"odd","status":[],"action":1}`: "odd",
		`{"sha256":"none"}`:                     "",
		`{"type":"redacted_thinking"}`:          "",
		`{"type":"reasoning.encrypted"}`:        "",
		`"signature"`:                           "",
		``:                                      "",
		`{`:                                     "",
	} {
		require.Equal(t, want, Shown(json.RawMessage(data)), data)
	}
	require.Len(t, []rune(Shown(json.RawMessage(`{"type":"`+strings.Repeat("ä", 999)+`"}`))), maxShown)
}

func TestWhatStandsForAReplyOfItems(t *testing.T) {
	require.Equal(t, "[image_generation_call (completed)]\n[b]", Stand([]json.RawMessage{
		json.RawMessage(`{"type":"image_generation_call","status":"completed"}`), json.RawMessage(`"opaque"`), json.RawMessage(`{"type":"b"}`),
		json.RawMessage(`{"type":"compaction"}`), json.RawMessage(`{"type":"message","phase":"commentary"}`),
	}))
	require.Empty(t, Stand(nil))
}

package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// TestBlocksOfTheProviderGoBack: what the provider's own tools did goes back where it stood, also to
// a model that does not think, and so do the sources of the text.
func TestBlocksOfTheProviderGoBack(t *testing.T) {
	source := `[{"type":"web_search_result_location","url":"https://example.org/a","title":"A","cited_text":"größer","encrypted_index":"E=="}]`
	text := func(s string) string { return `{"type":"text","text":"` + s + `"}` }
	cites := func(s string) string { return `{"type":"text","text":"` + s + `","citations":` + source + `}` }
	image := `{"type":"code_execution_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"code_execution_result","stdout":"1"}}`
	use := strings.Replace(search, "web_search", "code_execution", 1)
	for name, tt := range map[string]struct {
		reply []string
		text  string
		sent  []string
	}{
		"between texts":       {[]string{text("Ä search. "), search, found, text("It is Moore.")}, "Ä search. It is Moore.", nil},
		"sources":             {[]string{search, found, text("It is "), cites("größer"), text(" "), cites("as it was"), text(".")}, "It is größer as it was.", []string{search, found, text("It is "), cites("größer"), cites(" as it was"), text(".")}},
		"sources alone":       {[]string{cites("größer")}, "größer", nil},
		"a result at the end": {[]string{text("I search."), search, found}, "I search.", nil},
		"nothing but results": {[]string{use, image}, "", nil},
		"a use that was cut":  {[]string{text("I search."), search}, "I search.", []string{text("I search.")}},
		"a compaction":        {[]string{`{"type":"compaction","content":"What was said."}`, text("Hi.")}, "Hi.", nil},
	} {
		reply := `{"type":"message","model":"m","content":[` + strings.Join(tt.reply, ",") + `],"stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":5}}`
		c, _ := inTurn(t, reply)
		res, err := c.Call(t.Context(), ask(), nil)
		require.NoError(t, err, name)
		require.Equal(t, tt.text, res.(llm.Text).Content, name)
		m := llm.Message{Role: llm.RoleAssistant, Content: tt.text, Reasoning: res.About().Reasoning, Asked: events.Asked{Model: "claude-3-5-haiku"}}
		if tt.text == "" {
			m.Content = "[server_tool_use code_execution: moore]\n[code_execution_tool_result]" // as planners log it
		}
		want := tt.sent
		if want == nil {
			want = tt.reply
		}
		body, _ := capture(t, llm.Request{Model: "claude-3-5-haiku", Messages: []llm.Message{user("Who?"), m, user("And?")}})
		var messages []json.RawMessage
		require.NoError(t, json.Unmarshal(body["messages"], &messages), name)
		require.JSONEq(t, `{"role":"assistant","content":[`+strings.Join(want, ",")+`]}`, string(messages[1]), name)

		body, _ = capture(t, llm.Request{Model: "claude-other", Messages: []llm.Message{user("Who?"), m, user("And?")}})
		require.NoError(t, json.Unmarshal(body["messages"], &messages), name)
		for _, own := range []string{"srvtoolu", "citations", `"type":"compaction"`} {
			require.NotContains(t, string(messages[1]), own, name+": of another model")
		}

		m.Content += " Changed."
		body, _ = capture(t, llm.Request{Model: "claude-3-5-haiku", Messages: []llm.Message{user("Who?"), m, user("And?")}})
		require.NotContains(t, string(body["messages"]), "citations", name+": the text was changed")
	}
}

func TestCitations(t *testing.T) {
	reply := `{"type":"message","model":"m","content":[{"type":"text","text":"Größe "},{"type":"text","text":"zählt","citations":[` +
		`{"type":"web_search_result_location","url":"https://example.org/a","title":"A","cited_text":"q"},{"type":"char_location","document_title":"D","cited_text":"` + strings.Repeat("ä", 900) + `"}]}],` +
		`"stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":5}}`
	c, _ := inTurn(t, reply)
	res, err := c.Call(t.Context(), ask(), nil)
	require.NoError(t, err)
	require.Equal(t, []events.Citation{
		{Type: "web_search_result_location", URL: "https://example.org/a", Title: "A", Quote: "q", Start: 6, End: 11},
		{Type: "char_location", Title: "D", Quote: strings.Repeat("ä", 499) + "…", Start: 6, End: 11},
	}, res.About().Citations)
}

// TestUsageOfCompactions: the counts beside the passes leave out the pass that compacts.
func TestUsageOfCompactions(t *testing.T) {
	usage := `{"input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":5,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500,"cache_read_input_tokens":0},{"type":"message","input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":5}]}`
	want := llm.Usage{Input: 203005, Output: 4500, Cached: 5, Total: 207505}
	plain := `{"type":"message","model":"m","content":[{"type":"compaction","content":"So far."},{"type":"text","text":"Hi."}],"stop_reason":"end_turn","usage":` + usage + `}`
	streamed := sse(`{"type":"message_start","message":{"model":"m","usage":{"input_tokens":23000,"output_tokens":1}}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"compaction","content":null}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"compaction_delta","content":"So far."}}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"Hi."}}`,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":`+usage+`}`, `{"type":"message_stop"}`)
	for _, body := range []string{plain, streamed} {
		c, _ := inTurn(t, body)
		res, err := c.Call(t.Context(), ask(), func(llm.Chunk) {})
		require.NoError(t, err)
		require.Equal(t, want, res.About().Usage)
		require.Len(t, res.About().Reasoning, 1)
		require.JSONEq(t, `{"type":"compaction","content":"So far."}`, string(res.About().Reasoning[0].Data))
	}

	// A reply that pauses after the compaction goes on behind it.
	paused := `{"type":"message","model":"m","content":[{"type":"compaction","content":"So far."}],"stop_reason":"compaction","usage":{"input_tokens":0,"output_tokens":0,"iterations":[{"type":"compaction","input_tokens":100,"output_tokens":10}]}}`
	c, asked := inTurn(t, paused, second)
	res, err := c.Call(t.Context(), ask(), nil)
	require.NoError(t, err)
	require.Equal(t, "It is Moore.", res.(llm.Text).Content)
	require.Equal(t, 120, res.About().Usage.Input)
	require.Equal(t, 13, res.About().Usage.Output)
	require.Len(t, asked(), 2)
	require.Contains(t, string(asked()[1]), `{"content":[{"type":"compaction","content":"So far."}],"role":"assistant"}`, "the compaction goes back")
}

func TestProviderTools(t *testing.T) {
	own := []json.RawMessage{json.RawMessage(`{"type":"web_search_20250305","name":"web_search","max_uses":5}`), json.RawMessage(`{"type":"bash_20250124","name":"bash"}`)}
	body, _ := capture(t, llm.Request{ProviderTools: own, Tools: []llm.Tool{{Name: "bash", Description: "runs"}, {Name: "f"}}, Messages: []llm.Message{user("go")}})
	require.JSONEq(t, `[`+string(own[0])+`,`+string(own[1])+`,{"input_schema":{"type":"object","properties":{}},"name":"f",`+mark+`}]`, string(body["tools"]))

	// The answer is not forced where the provider's tools could be used.
	body, _ = capture(t, llm.Request{ProviderTools: own, OutputSchema: json.RawMessage(`{"type":"object"}`), Messages: []llm.Message{user("go")}})
	require.NotContains(t, body, "tool_choice")
	body, _ = capture(t, llm.Request{ProviderTools: own[:1], Messages: []llm.Message{user("go")}})
	require.JSONEq(t, `[`+string(own[0])+`]`, string(body["tools"]))
}

func TestHowLongTheCacheKeeps(t *testing.T) {
	body, _ := capture(t, llm.Request{Messages: []llm.Message{{Role: llm.RoleSystem, Content: "Be good."}, user("go")}}, func(o *Options) { o.Capabilities = json.RawMessage(`{"cache_ttl":"1h"}`) })
	require.Contains(t, string(body["system"]), `"cache_control":{"ttl":"1h","type":"ephemeral"}`)
	_, err := New(Options{APIKey: "k", Capabilities: json.RawMessage(`{"cache_ttl":"2h"}`)})
	require.ErrorContains(t, err, "cache_ttl")
}

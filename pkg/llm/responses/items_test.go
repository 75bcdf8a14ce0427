package responses

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// items are a server that answers with the items, in one piece or as a stream.
func items(t *testing.T, all ...string) string {
	t.Helper()
	whole := `{"status":"completed","model":"o3","output":[` + strings.Join(all, ",") + `],"usage":{"input_tokens":3,"output_tokens":2}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "text/event-stream" {
			_, _ = io.WriteString(w, whole)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i, one := range all {
			_, _ = fmt.Fprintf(w, "data: {\"type\":\"response.output_item.added\",\"output_index\":%d,\"item\":%s}\n\n", i, one)
			_, _ = fmt.Fprintf(w, "data: {\"type\":\"response.output_item.done\",\"output_index\":%d,\"item\":%s}\n\n", i, one)
		}
		_, _ = io.WriteString(w, "data: {\"type\":\"response.completed\",\"response\":"+whole+"}\n\n")
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func said(id, phase, text, annotations string) string {
	return `{"type":"message","id":"` + id + `","role":"assistant","status":"completed",` + phase + `"content":[{"type":"output_text","text":"` + text + `","annotations":[` + annotations + `]}]}`
}

const (
	thoughtItem = `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}`
	searchItem  = `{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"<b> & c"}}`
	codeItem    = `{"type":"code_interpreter_call","id":"ci_1","status":"completed","code":"print(1)","container_id":"c","outputs":null}`
	callItem    = `{"type":"function_call","id":"fc_1","call_id":"a","name":"search","arguments":"{}","status":"completed"}`
	commentary  = `"phase":"commentary",`
	finalAnswer = `"phase":"final_answer",`
	cited       = `{"type":"url_citation","url":"https://example.org/a","title":"A","start_index":2,"end_index":4}`
)

// TestItemsGoBack: whatever a reply holds beside text and calls goes back as it came and where it
// stood, to the model that gave it alone.
func TestItemsGoBack(t *testing.T) {
	call := `{"type":"function_call","call_id":"a","name":"search","arguments":"{}"}`
	text := func(content string) string {
		return `{"type":"message","role":"assistant","content":"` + content + `"}`
	}
	phased := func(phase, content string) string {
		return `{"type":"message","role":"assistant","content":"` + content + `","phase":"` + phase + `"}`
	}
	for name, tt := range map[string]struct {
		reply         []string
		content       string
		own, stranger []string
	}{
		"a search before the answer": {
			[]string{thoughtItem, searchItem, said("msg_1", "", "Größe.", "")}, "Größe.",
			[]string{thoughtItem, searchItem, text("Größe.")}, []string{text("Größe.")},
		},
		"between text and call": {
			[]string{said("msg_1", "", "I look.", ""), searchItem, callItem, codeItem}, "I look.",
			[]string{text("I look."), searchItem, call, codeItem}, []string{text("I look."), call},
		},
		"a compaction": {
			[]string{`{"type":"compaction","id":"cmp_1","encrypted_content":"x"}`, said("msg_1", "", "Hi.", "")}, "Hi.",
			[]string{`{"type":"compaction","id":"cmp_1","encrypted_content":"x"}`, text("Hi.")}, []string{text("Hi.")},
		},
		"an item that is not finished": {
			[]string{`{"type":"web_search_call","id":"ws_2","status":"in_progress"}`, said("msg_1", "", "Hi.", "")}, "Hi.",
			[]string{text("Hi.")}, []string{text("Hi.")},
		},
		"an image alone": {
			[]string{`{"type":"image_generation_call","id":"ig_1","status":"completed","result":"AAAA"}`}, "",
			[]string{`{"type":"image_generation_call","id":"ig_1","status":"completed","result":"AAAA"}`}, []string{text("[image_generation_call (completed)]")},
		},
		"a final answer": {
			[]string{said("msg_1", finalAnswer, "42", "")}, "42", []string{phased("final_answer", "42")}, []string{text("42")},
		},
		"commentary before the answer": {
			[]string{said("msg_1", commentary, "I look.", ""), searchItem, said("msg_2", finalAnswer, "42", "")}, "42",
			[]string{said("msg_1", commentary, "I look.", ""), searchItem, phased("final_answer", "42")}, []string{text("42")},
		},
		"commentary beside a call": {
			[]string{thoughtItem, said("msg_1", commentary, "I look.", ""), callItem}, "I look.",
			[]string{thoughtItem, phased("commentary", "I look."), call}, []string{text("I look."), call},
		},
		"two comments and a call between": {
			[]string{said("msg_1", commentary, "One.", ""), callItem, searchItem, said("msg_2", commentary, "Two.", "")}, `One.\n\nTwo.`,
			[]string{said("msg_1", commentary, "One.", ""), call, searchItem, said("msg_2", commentary, "Two.", "")}, []string{text(`One.\n\nTwo.`), call},
		},
		"sources": {
			[]string{searchItem, said("msg_1", "", "Größe.", cited)}, "Größe.",
			[]string{searchItem, said("msg_1", "", "Größe.", cited)}, []string{text("Größe.")},
		},
	} {
		c := open(t, items(t, tt.reply...))
		for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
			res, err := c.Call(t.Context(), llm.Request{Model: "o3", Tools: []llm.Tool{{Name: "search"}}}, stream)
			require.NoError(t, err, name)
			m := llm.Message{Role: llm.RoleAssistant, Reasoning: res.About().Reasoning}
			switch r := res.(type) {
			case llm.Text:
				m.Content = r.Content
			case llm.ToolCalls:
				m.Content, m.Calls = r.Content, r.Calls
			}
			require.Equal(t, strings.ReplaceAll(tt.content, `\n`, "\n"), m.Content, name)
			if m.Content == "" {
				m.Content = "[image_generation_call (completed)]" // as planners log it
			}
			for model, want := range map[string][]string{"o3": tt.own, "o4": tt.stranger} {
				m.Asked = events.Asked{Model: "o3"}
				body := capture(t, llm.Request{Model: model, Messages: []llm.Message{m, user("more")}})
				var sent struct{ Input json.RawMessage }
				require.NoError(t, json.Unmarshal([]byte(body), &sent))
				require.JSONEq(t, `[`+strings.Join(append(want, `{"type":"message","role":"user","content":"more"}`), ",")+`]`, string(sent.Input), name+" to "+model)
			}
			if m.Content != "[image_generation_call (completed)]" {
				m.Content += " Changed."
				m.Asked = events.Asked{}
				body := capture(t, llm.Request{Model: "o3", Messages: []llm.Message{m}})
				require.Equal(t, 1, strings.Count(body, " Changed."), "a text that was changed goes as it is now: %s", body)
			}
		}
	}
}

func TestCitations(t *testing.T) {
	c := open(t, items(t,
		said("msg_1", commentary, "Größe and more.", cited),
		said("msg_2", finalAnswer, "Größe.", cited+`,{"type":"file_citation","file_id":"f_1","filename":"a.pdf","index":3},7,{"url":"x"}`)))
	res, err := c.Call(t.Context(), llm.Request{}, nil)
	require.NoError(t, err)
	require.Equal(t, "Größe.", res.(llm.Text).Content)
	require.Equal(t, []events.Citation{
		{Type: "url_citation", URL: "https://example.org/a", Title: "A", Start: 2, End: 4},
		{Type: "file_citation", Title: "a.pdf", End: 6},
	}, res.About().Citations)
}

// TestWhatOnlyAClientAnswers: the next request would be refused without the answer, so the run ends
// here and says why.
func TestWhatOnlyAClientAnswers(t *testing.T) {
	for _, item := range []string{
		`{"type":"computer_call","id":"cu_1","call_id":"c"}`, `{"type":"mcp_approval_request","id":"ma_1","name":"f","server_label":"s","arguments":"{}"}`,
		`{"type":"shell_call_output","call_id":"c"}` + "\n" + `{"type":"shell_call","call_id":"d"}`,
	} {
		for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
			_, err := open(t, items(t, strings.Split(item, "\n")...)).Call(t.Context(), llm.Request{}, stream)
			e := wantError(t, err, llm.KindInvalid)
			require.Contains(t, e.Message, "provider_tools")
			require.Equal(t, &llm.Usage{Input: 3, Output: 2, Total: 5}, e.Usage)
		}
	}
	_, err := open(t, items(t, `{"type":"shell_call","call_id":"c","status":"completed"}`, `{"type":"shell_call_output","call_id":"c"}`, said("m", "", "Done.", ""))).Call(t.Context(), llm.Request{}, nil)
	require.NoError(t, err, "the provider answered it itself")
}

func TestProviderTools(t *testing.T) {
	own := []json.RawMessage{json.RawMessage(`{"type":"web_search","filters":{"a":1.0}}`), json.RawMessage(`{"type":"mcp","server_label":"s"}`)}
	body := capture(t, llm.Request{ProviderTools: own, Tools: []llm.Tool{{Name: "f"}}})
	require.Contains(t, body, `"tools":[{"type":"web_search","filters":{"a":1.0}},{"type":"mcp","server_label":"s"},{"type":"function","name":"f",`)
	require.Contains(t, capture(t, llm.Request{ProviderTools: own}), `"tools":[{"type":"web_search"`)
}

// An item that a server knows only by its id, and does not know any more, is left out of a second
// request.
func TestItemsThatAreNotKept(t *testing.T) {
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
		if strings.Contains(string(body), `"ws_1"`) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"message":"Item with id 'ws_1' not found. Items are not persisted when `+"`store`"+` is set to false.","type":"invalid_request_error","param":"input","code":null}}`)
			return
		}
		_, _ = io.WriteString(w, `{"status":"completed","output":[]}`)
	}))
	defer server.Close()
	_, err := open(t, server.URL).Call(t.Context(), llm.Request{Model: "o3", Messages: []llm.Message{
		{Role: llm.RoleAssistant, Content: "two", Reasoning: events.Reasoning{{Kind: events.ReasoningOpaque, Data: json.RawMessage(searchItem), ID: "ws_1"}}},
		user("three"),
	}}, nil)
	require.NoError(t, err)
	require.Len(t, bodies, 2)
	require.Contains(t, bodies[1], `"two"`)
}

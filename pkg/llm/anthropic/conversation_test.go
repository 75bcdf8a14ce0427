package anthropic

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Images and files are sent to models that take them, and named in words to others.
func TestPartsOfMessages(t *testing.T) {
	parts := []events.Part{
		{Type: events.PartText, Text: "See:"},
		{Type: events.PartImage, MediaType: "image/png", Data: []byte("png")},
		{Type: events.PartImage, MediaType: "image/jpeg", URL: "https://example.com/a.jpg"},
		{Type: events.PartImage, URL: "data:image/gif;base64,Z2lm"},
		{Type: events.PartImage, MediaType: "image/tiff", Data: []byte("tiff"), Name: "scan"},
		{Type: events.PartFile, MediaType: "application/pdf", Data: []byte("%PDF"), Name: "report.pdf"},
		{Type: events.PartFile, MediaType: "application/pdf", URL: "https://example.com/r.pdf"},
		{Type: events.PartFile, MediaType: "text/csv", Data: []byte("a,b\n"), Name: "t.csv"},
		{Type: events.PartFile, MediaType: "application/zip", Data: []byte("PK"), Name: "z.zip"},
		{Type: events.PartText, Text: " "},
	}
	const sent = `{"type":"text","text":"See:"},
		{"type":"image","source":{"type":"base64","media_type":"image/png","data":"cG5n"}},
		{"type":"image","source":{"type":"url","url":"https://example.com/a.jpg"}},
		{"type":"image","source":{"type":"base64","media_type":"image/gif","data":"Z2lm"}},
		{"type":"text","text":"[image left out: this model does not take it; scan; image/tiff; 4 bytes]"},
		{"type":"document","title":"report.pdf","source":{"type":"base64","media_type":"application/pdf","data":"JVBERg=="}},
		{"type":"document","source":{"type":"url","url":"https://example.com/r.pdf"}},
		{"type":"document","title":"t.csv","source":{"type":"text","media_type":"text/plain","data":"a,b\n"}},
		{"type":"text","text":"[file left out: this model does not take it; z.zip; application/zip; 2 bytes]"`
	asked, answered := user("See:"), result("a", "f", "See:")
	asked.Parts, answered.Parts = parts, parts
	body, _ := capture(t, llm.Request{Model: "claude-sonnet-5", Messages: []llm.Message{asked, asks("", llm.Call{ID: "a", Name: "f"}), answered}})
	require.JSONEq(t, `[{"role":"user","content":[`+sent+`}]},
		{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[`+sent+`}],`+mark+`}]}]`, string(body["messages"]))

	asked.Parts = parts[:2]
	body, _ = capture(t, llm.Request{Messages: []llm.Message{asked}}, func(o *Options) { o.Capabilities = json.RawMessage(`{"images":"none"}`) })
	require.JSONEq(t, `[{"role":"user","content":[{"type":"text","text":"See:"},
		{"type":"text","text":"[image left out: this model does not take it; image/png; 3 bytes]",`+mark+`}]}]`, string(body["messages"]))
}

// Blocks go back where they stood, or before the reply where that does not fit it.
func TestPlacesOfBlocks(t *testing.T) {
	const one, two, look = `{"type":"thinking","thinking":"One.","signature":"1"}`, `{"type":"thinking","thinking":"Two.","signature":"2"}`, `{"type":"tool_use","id":"a","name":"f","input":{}}`
	both := append(signed("One.", "1"), signed("Two.", "2")...)
	at := func(places string) events.Reasoning {
		return append(events.Reasoning{{Kind: events.ReasoningOpaque, ID: contextID, Data: json.RawMessage(`{"places":` + places + `}`)}}, both...)
	}
	for name, tt := range map[string]struct {
		reasoning events.Reasoning
		want      string
	}{
		"without places":        {both, one + "," + two + `,{"type":"text","text":"I look."},` + look},
		"around the text":       {at(`[[0,0],[7,0]]`), one + `,{"type":"text","text":"I look."},` + two + "," + look},
		"within the text":       {at(`[[0,0],[2,0]]`), one + `,{"type":"text","text":"I "},` + two + `,{"type":"text","text":"look."},` + look},
		"at the end":            {at(`[[0,0],[7,1]]`), one + `,{"type":"text","text":"I look."},` + look},
		"of a longer text":      {at(`[[0,0],[8,0]]`), one + "," + two + `,{"type":"text","text":"I look."},` + look},
		"in another order":      {at(`[[7,0],[0,0]]`), one + "," + two + `,{"type":"text","text":"I look."},` + look},
		"of fewer blocks":       {at(`[[7,0]]`), one + "," + two + `,{"type":"text","text":"I look."},` + look},
		"no places":             {at(`"x"`), one + "," + two + `,{"type":"text","text":"I look."},` + look},
		"of two replies in one": {append(at(`[[0,0],[7,0]]`)[:3:3], at(`[[0,0],[7,0]]`)[:3]...), one + "," + one + `,{"type":"text","text":"I look."},` + look},
		"before a rest that was asked for": {
			append(at(`[[0,0],[7,0]]`), events.ReasoningPart{Kind: events.ReasoningText, Text: "More."}), one + `,{"type":"text","text":"I look."},` + two + "," + look,
		},
		"with a block that is cut": {append(at(`[[0,0],[7,0],[7,0]]`), events.ReasoningPart{Kind: events.ReasoningText, Text: "cut"}), one + `,{"type":"text","text":"I look."},` + two + "," + look},
	} {
		t.Run(name, func(t *testing.T) {
			reply := asks("I look.", llm.Call{ID: "a", Name: "f"})
			reply.Reasoning = tt.reasoning
			body, _ := capture(t, llm.Request{Model: "claude-opus-5", Messages: []llm.Message{user("go"), reply, result("a", "f", "found")}})
			var messages []struct {
				Content json.RawMessage `json:"content"`
			}
			require.NoError(t, json.Unmarshal(body["messages"], &messages))
			require.JSONEq(t, "["+tt.want+"]", string(messages[1].Content))
		})
	}
}

// A structured answer is kept as text, so nothing can stand between it.
func TestThinkingOfAStructuredAnswer(t *testing.T) {
	c := always(t, "application/json", `{"type":"message","model":"m","content":[{"type":"text","text":"So: "},{"type":"thinking","thinking":"Hm.","signature":"s"},
		{"type":"tool_use","id":"a","name":"final_answer","input":{"n":42}}],"stop_reason":"tool_use"}`)
	for model, want := range map[string]events.Reasoning{
		"claude-opus-5":    signed("Hm.", "s"),
		"claude-fable-5-1": append(events.Reasoning{{Kind: events.ReasoningOpaque, ID: contextID, Data: json.RawMessage(`{"sha256":"none"}`)}}, signed("Hm.", "s")...),
	} {
		req := ask()
		req.Model, req.OutputSchema = model, json.RawMessage(`{"type":"object"}`)
		got, err := c.Call(t.Context(), req, nil)
		require.NoError(t, err)
		require.Equal(t, `{"n":42}`, got.(llm.Structured).Content)
		require.Equal(t, llm.FinishStop, got.About().Finish)
		require.Equal(t, want, got.About().Reasoning, model)
	}
}

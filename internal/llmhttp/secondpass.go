package llmhttp

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// secondWords ask for the answer of the first pass in the form of the schema.
const secondWords = "Now give this answer as JSON that satisfies the required schema."

// SecondPass asks for a structured answer together with tools on servers that turn a schema into a
// grammar from the first token, where no tool could be called. The first request has the
// tools and no schema. If it is answered in words, a second one has the schema and no tools.
// An answer that already looks like the schema needs none.
// The reply has the usage of both, and says so in Adjusted. Both are part of one call: a
// failure of the second one holds the usage of the first. The text of the first pass is not
// streamed, except that of a reply with calls.
func SecondPass(ctx context.Context, req llm.Request, stream func(llm.Chunk),
	ask func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error),
) (llm.Response, error) {
	plain := req
	plain.OutputSchema = nil
	quiet := stream
	if stream != nil {
		quiet = func(c llm.Chunk) {
			if c.Kind != llm.ChunkText {
				stream(c)
			}
		}
	}
	first, err := ask(ctx, plain, quiet)
	if err != nil {
		return nil, err
	}
	text, words := first.(llm.Text)
	if !words || text.Cut() || text.Finish == llm.FinishRefusal || strings.TrimSpace(text.Content) == "" {
		if said := content(first); stream != nil && said != "" {
			stream(llm.Chunk{Kind: llm.ChunkText, Text: said})
		}
		return first, nil
	}
	if fits(text.Content, req.OutputSchema) {
		if stream != nil {
			stream(llm.Chunk{Kind: llm.ChunkText, Text: text.Content})
		}
		return llm.Structured(text), nil
	}
	again := req
	again.Tools, again.ProviderTools = nil, nil
	again.Messages = append(slices.Clip(req.Messages),
		llm.Message{
			Role: llm.RoleAssistant, Content: text.Content, Reasoning: text.Reasoning,
			Asked: events.Asked{Provider: req.Provider, Model: req.Model},
		},
		llm.Message{Role: llm.RoleUser, Content: secondWords})
	second, err := ask(ctx, again, stream)
	if err != nil {
		return nil, billed(err, text.Usage)
	}
	return amended(second, func(m *llm.Meta) {
		m.Usage = text.Usage.Plus(m.Usage)
		m.Reasoning = append(slices.Clip(text.Reasoning), m.Reasoning...)
		m.RequestSHA256 = text.RequestSHA256
		m.Adjusted = append(m.Adjusted, events.Adjusted{Key: "output_schema", Sent: json.RawMessage(`"second_pass"`)})
	}), nil
}

// fits reports whether a text is JSON of the schema's type with all keys that it requires at
// the top. The validation of the answer checks the rest.
func fits(text string, schema json.RawMessage) bool {
	var want struct {
		Type     string
		Required []string
	}
	_ = json.Unmarshal(schema, &want) // a schema of another form asks for nothing here
	switch want.Type {
	case "object":
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &object) != nil || object == nil {
			return false
		}
		return !slices.ContainsFunc(want.Required, func(key string) bool { return object[key] == nil })
	case "array":
		return json.Unmarshal([]byte(text), new([]json.RawMessage)) == nil
	}
	return false
}

func content(r llm.Response) string {
	switch r := r.(type) {
	case llm.Text:
		return r.Content
	case llm.ToolCalls:
		return r.Content
	}
	return ""
}

// billed adds the usage of an earlier request to an error.
func billed(err error, earlier llm.Usage) error {
	var e *llm.Error
	if !errors.As(err, &e) {
		return err
	}
	with := *e
	if e.Usage != nil {
		earlier = earlier.Plus(*e.Usage)
	}
	with.Usage = &earlier
	return &with
}

// Package replyfacts carries the metadata of a model's reply between the port to models and the
// log: its ending, its reasoning, and the settings of its request.
package replyfacts

import (
	"encoding/json"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Of returns what the log keeps of a reply. calls says that the reply has tool calls. Opaque
// reasoning that is not valid JSON is omitted, since it cannot be written.
func Of(m llm.Meta, asked llm.Asked, calls bool) events.Facts {
	f := events.Facts{Finish: string(m.Finish), FinishRaw: m.FinishRaw, Dialect: m.Dialect, RequestSHA256: m.RequestSHA256}
	switch {
	case f.Finish == "" && calls:
		f.Finish = string(llm.FinishToolCalls)
	case f.Finish == "":
		f.Finish = string(llm.FinishStop)
	}
	for _, p := range m.Reasoning {
		if p.Kind == llm.ReasoningOpaque && !json.Valid(p.Data) {
			continue
		}
		f.Reasoning = append(f.Reasoning, events.ReasoningPart{Kind: string(p.Kind), Text: p.Text, Data: p.Data, ID: p.ID})
	}
	for _, c := range m.Citations {
		f.Citations = append(f.Citations, events.Citation(c))
	}
	for _, a := range m.Adjusted {
		f.Adjusted = append(f.Adjusted, events.Adjusted(a))
	}
	if asked != (llm.Asked{}) {
		f.Asked = &events.Asked{Provider: asked.Provider, Model: asked.Model}
	}
	return f
}

// Add puts what the log keeps of a reply into its meta data.
func Add(m *llm.Meta, f *events.Facts) {
	m.Finish, m.FinishRaw, m.Dialect, m.RequestSHA256 = llm.Finish(f.Finish), f.FinishRaw, f.Dialect, f.RequestSHA256
	m.Reasoning = Reasoning(f.Reasoning)
	for _, c := range f.Citations {
		m.Citations = append(m.Citations, llm.Citation(c))
	}
	for _, a := range f.Adjusted {
		m.Adjusted = append(m.Adjusted, llm.Adjusted(a))
	}
}

// Reasoning returns reasoning as the port has it.
func Reasoning(parts events.Reasoning) []llm.ReasoningPart {
	if len(parts) == 0 {
		return nil
	}
	all := make([]llm.ReasoningPart, len(parts))
	for i, p := range parts {
		all[i] = llm.ReasoningPart{Kind: llm.ReasoningKind(p.Kind), Text: p.Text, Data: p.Data, ID: p.ID}
	}
	return all
}

// Asked returns who was asked, as the port has it.
func Asked(a *events.Asked) llm.Asked {
	if a == nil {
		return llm.Asked{}
	}
	return llm.Asked(*a)
}

package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// maxReasoning is how much reasoning an event holds, in bytes of JSON. More goes to the
// object store.
const maxReasoning = 64 << 10

// kept is what the log keeps of a reply's reasoning.
type kept struct {
	parts events.Reasoning
	ref   *events.Ref
}

// keepReasoning returns what the log keeps of a reply's reasoning. Unless all of it is
// recorded, that is what has to go back to the provider. If the object store cannot be
// reached, the event holds it.
func (p *Planner) keepReasoning(ctx context.Context, run events.Run, m llm.Meta, all bool) *kept {
	k := &kept{parts: factsOf(m, events.Asked{}, false).Reasoning}
	if !all && !m.ReasoningBack {
		k.parts = slices.DeleteFunc(k.parts, func(p events.ReasoningPart) bool { return p.Kind != events.ReasoningOpaque })
	}
	data, err := json.Marshal(k.parts)
	if err != nil || len(data) <= maxReasoning || p.cfg.Blobs == nil {
		return k
	}
	ref, err := p.cfg.Blobs.PutBlob(ctx, events.DefaultPool, data)
	if err != nil {
		p.cfg.Logger.Warn("the reasoning cannot be stored apart from its event", "run", run.ID, "bytes", len(data), "reason", err)
		return k
	}
	return &kept{ref: &ref}
}

// reasoningRef is the kind of a part that stands for reasoning in the object store. Its data
// is the reference.
const reasoningRef = "ref"

// reasoningOf returns a message's reasoning, or what stands for it.
func reasoningOf(m *reducer.ViewMessage) events.Reasoning {
	if m.ReasoningRef == nil {
		return m.Reasoning
	}
	ref, _ := json.Marshal(m.ReasoningRef) // strings and a number always have JSON
	return events.Reasoning{{Kind: reasoningRef, Data: ref}}
}

// wholeReasoning reads the reasoning that is in the object store, for messages of the model
// that is asked. The others lose it, as they do if it is in the log. What was removed from
// the store is omitted.
func (p *Planner) wholeReasoning(ctx context.Context, req llm.Request) ([]llm.Message, error) {
	messages := req.Messages
	asked := p.asked(req)
	for i, m := range req.Messages {
		if len(m.Reasoning) != 1 || m.Reasoning[0].Kind != reasoningRef {
			continue
		}
		var parts events.Reasoning
		if m.Asked.Matches(asked) {
			var err error
			if parts, err = p.loadReasoning(ctx, m.Reasoning[0].Data); err != nil {
				return nil, &llm.Error{Kind: llm.KindNetwork, Message: fmt.Sprintf("the reasoning that goes back with the request: %s", err), Err: err}
			}
		}
		if &messages[0] == &req.Messages[0] {
			messages = slices.Clone(messages) // they belong to the run's memory
		}
		messages[i].Reasoning = parts
	}
	return messages, nil
}

func (p *Planner) loadReasoning(ctx context.Context, data json.RawMessage) (events.Reasoning, error) {
	var ref events.Ref
	if err := json.Unmarshal(data, &ref); err != nil {
		return nil, err
	}
	if p.cfg.Blobs == nil {
		return nil, errors.New("this planner has no object store")
	}
	text, err := p.cfg.Blobs.Blob(ctx, ref)
	if errors.Is(err, journal.ErrNotFound) {
		p.cfg.Logger.Warn("reasoning is missing in the object store and does not go back to the model", "bucket", ref.Bucket, "key", ref.Key)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var parts events.Reasoning
	if err := json.Unmarshal(text, &parts); err != nil {
		return nil, err
	}
	return parts, nil
}

// factsOf returns what the log keeps of a reply. calls says that the reply has tool calls. Opaque
// reasoning that is not valid JSON is omitted, since it cannot be written.
func factsOf(m llm.Meta, asked events.Asked, calls bool) events.Facts {
	f := events.Facts{Finish: string(m.Finish), FinishRaw: m.FinishRaw, Citations: m.Citations, Adjusted: m.Adjusted, Dialect: m.Dialect, RequestSHA256: m.RequestSHA256}
	switch {
	case f.Finish == "" && calls:
		f.Finish = string(llm.FinishToolCalls)
	case f.Finish == "":
		f.Finish = string(llm.FinishStop)
	}
	for _, p := range m.Reasoning {
		if p.Kind == events.ReasoningOpaque && !json.Valid(p.Data) {
			continue
		}
		f.Reasoning = append(f.Reasoning, p)
	}
	if asked != (events.Asked{}) {
		f.Asked = &asked
	}
	return f
}

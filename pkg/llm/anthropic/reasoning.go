package anthropic

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// The reasoning of a reply is its blocks that are neither text nor calls, in order: a
// thinking block as its text, if it has any, and its signature as a JSON string, and every
// other block as it came. A thinking block that was truncated has no signature, not even an
// empty one, and never goes back.
//
// Where that does not say everything, a part with the id context comes first. It is never
// sent.

const contextID = "context"

// placement is the part with the id context.
type placement struct {
	// SHA256 is the digest of what stood before the reply, where the blocks are bound to
	// that, or ofNoRequest if they cannot go back.
	SHA256 string `json:"sha256,omitempty"`
	// Places say what of the reply stands before each block, where anything does: bytes of
	// text, and calls.
	Places [][2]int `json:"places,omitempty"`
	// Cited are the passages of the text that name sources, and Length is that of the text,
	// in bytes. A text of another length is not the one that they belong to.
	Cited  []cited `json:"cited,omitempty"`
	Length int     `json:"length,omitempty"`
}

// cited is a passage that names sources, as its own block. From and To are bytes of the
// reply's text.
type cited struct {
	From      int             `json:"from"`
	To        int             `json:"to"`
	Citations json.RawMessage `json:"citations"`
}

// ofNoRequest is the digest of no request.
const ofNoRequest = "none"

// reasoning returns the reasoning of a reply. apart says that the reply's text is kept in
// another form, so that nothing can stand between it.
func (x *exchange) reasoning(r reply, apart bool) events.Reasoning {
	var out events.Reasoning
	var at [2]int
	p := placement{SHA256: x.before}
	inside, altered, last := false, false, ""
	for i, b := range r.parts {
		switch b.kind {
		case kindText:
			// The next request has such texts in another form, and what came after them
			// is bound to this one.
			altered = altered || last == kindText || blank(b.text) || len(b.citations) > 0
			if len(b.citations) > 0 && !blank(b.text) {
				p.Cited = append(p.Cited, cited{at[0], at[0] + len(b.text), encode(b.citations)})
			}
			at[0] += len(b.text)
		case kindCall:
			at[1]++
		default:
			parts := b.reasoning(i == len(r.parts)-1 && r.finish() != llm.FinishStop && r.finish() != llm.FinishToolCalls)
			if len(parts) == 0 {
				break
			}
			inside = inside || at != [2]int{}
			if p.SHA256 != "" && (altered || inside && apart) {
				p.SHA256 = ofNoRequest
			}
			p.Places, out = append(p.Places, at), append(out, parts...)
		}
		last = b.kind
	}
	if !inside || apart {
		p.Places = nil
	}
	if p.Length = at[0]; p.Cited == nil || apart {
		p.Cited, p.Length = nil, 0
	}
	if len(out) == 0 {
		p.SHA256 = ""
	}
	if p.SHA256 == "" && p.Places == nil && p.Cited == nil {
		return out
	}
	data, err := json.Marshal(p)
	if err != nil {
		return out // numbers and a string
	}
	return append(events.Reasoning{{Kind: events.ReasoningOpaque, ID: contextID, Data: data}}, out...)
}

// reasoning returns a block as parts, or none. unfinished says that it may lack its end.
func (b *part) reasoning(unfinished bool) (out events.Reasoning) {
	if b.kind != kindThinking {
		return events.Reasoning{{Kind: events.ReasoningOpaque, Data: b.block()}}
	}
	if b.text != "" {
		out = append(out, events.ReasoningPart{Kind: events.ReasoningText, Text: b.text})
	}
	if b.signature != "" || !unfinished {
		out = append(out, events.ReasoningPart{Kind: events.ReasoningOpaque, Data: encode(b.signature)})
	}
	return out
}

// past is a reasoning as it goes back: blocks, and nil for those that do not.
type past struct {
	placement
	blocks []json.RawMessage
}

// readReasoning reads the reasoning of a reply. It is more than one where replies were
// joined. Blocks of other models in logs of older builds are omitted.
func readReasoning(parts events.Reasoning, model string) []past {
	all := []past{{}}
	var text *string
	flush := func() {
		if last := &all[len(all)-1]; text != nil {
			last.blocks, text = append(last.blocks, nil), nil
		}
	}
	for _, p := range parts {
		last := &all[len(all)-1]
		switch {
		case p.Kind != events.ReasoningOpaque:
			flush()
			text = &p.Text
		case p.ID == contextID:
			flush()
			var read past
			_ = json.Unmarshal(p.Data, &read.placement) // what cannot be read places nothing
			all = append(all, read)
		case len(p.Data) > 0 && p.Data[0] == '"':
			var signature, words string
			if text != nil {
				words, text = *text, nil
			}
			_ = json.Unmarshal(p.Data, &signature) // a string
			last.blocks = append(last.blocks, thought(words, signature))
		default:
			flush()
			last.blocks = append(last.blocks, expand(p.Data, model)...)
		}
	}
	flush()
	return all
}

// expand returns a block, or the blocks that older builds kept as one value.
func expand(data json.RawMessage, model string) []json.RawMessage {
	var old struct {
		Provider string            `json:"provider"`
		Model    string            `json:"model"`
		Blocks   []json.RawMessage `json:"blocks"`
	}
	switch {
	case json.Unmarshal(data, &old) != nil:
		return nil
	case old.Provider == "":
		return []json.RawMessage{data}
	case old.Provider != "anthropic" || old.Model != model:
		return nil
	}
	return old.Blocks
}

// thought is a thinking block.
func thought(text, signature string) json.RawMessage {
	return encode(struct {
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}{kindThinking, text, signature})
}

// encode writes strings as JSON with as few escapes as there can be.
func encode(v any) json.RawMessage {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings always encode
	return json.RawMessage(strings.TrimSpace(out.String()))
}

// prefix is a digest of all that stands before a reply: the system prompt, the tools, and
// the messages so far, without marks for the cache. A nil prefix digests nothing.
type prefix struct{ sum hash.Hash }

func newPrefix(system []block, tools []tool) *prefix {
	p := &prefix{sha256.New()}
	p.add(system)
	p.add(tools)
	return p
}

func (p *prefix) add(v any) {
	if p == nil {
		return
	}
	_ = json.NewEncoder(p.sum).Encode(v) // what it cannot write is refused when the request is written
}

func (p *prefix) String() string {
	if p == nil {
		return ""
	}
	return hex.EncodeToString(p.sum.Sum(nil))
}

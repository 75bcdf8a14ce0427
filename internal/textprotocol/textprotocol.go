// Package textprotocol lets a model without tool calls think, call tools and answer
// in plain text. It puts the protocol of SPEC B over any [llm.Caller].
//
// [Wrap] renders a request as plain messages: the prompts, the available actions, the
// conversation, working memory and the thinking log. It reads the one `<agent>`
// element of the reply:
//
//	<agent><next_state>thinking</next_state><thinking_log>…</thinking_log></agent>
//	<agent><action><type>calculator</type><expression>1+1</expression></action></agent>
//	<agent><action><type>answer</type><value>…</value></action></agent>
//
// These are an [llm.Thought], an [llm.ToolCalls] with one call, and an [llm.Text]
// (an [llm.Structured] if the request has an output schema). An unreadable reply is
// an [llm.Invalid] with the place and what was expected there.
// docs/reference/text-protocol.md lists what is tolerated, and testdata/replies.txtar
// has a case for each.
//
// What it promises: the reply depends on the request and the provider's text only.
// Usage, model name, confidence and errors are the provider's. The XML is not
// streamed: there is one empty chunk when the provider begins to answer, and the
// words follow once they are known. A text cannot leave its element, so a tool's
// result cannot pass for anything else. Reading takes time linear in the reply and
// does not recurse: an element has three levels, and markup within a value is text.
//
// The package has its own scanner, since models write XML only approximately:
// encoding/xml stops at `a < b`, and drops unescaped markup in a value.
package textprotocol

import (
	"context"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Wrap puts the protocol over a provider. Reflections pass through unchanged, and so do
// replies that already are calls or thoughts. A caller whose replies are parsed
// already is returned unchanged.
func Wrap(caller llm.Caller) llm.Caller {
	if llm.Describe(caller).Parsed {
		return caller
	}
	return wrapped{caller}
}

type wrapped struct{ llm.Caller }

// Call asks the provider in plain text and reads its reply.
func (w wrapped) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if req.Purpose == llm.PurposeReflect {
		return w.Caller.Call(ctx, req, stream)
	}
	plain := req
	plain.Messages = render(&req)
	plain.Tools, plain.OutputSchema, plain.Memory = nil, nil, nil
	said, err := w.Caller.Call(ctx, plain, begun(stream))
	if err != nil {
		return nil, err
	}
	res := said
	switch r := said.(type) {
	case llm.Text:
		res = parse(r.Content, &req, r.Meta)
	case llm.Structured:
		res = parse(r.Content, &req, r.Meta)
	}
	if stream != nil {
		for chunk := range llm.Chunks(res) {
			stream(chunk)
		}
	}
	return res, nil
}

// begun passes on that a stream has begun, but not its text: that is XML, whose meaning is
// known only at its end.
func begun(stream func(llm.Chunk)) func(llm.Chunk) {
	if stream == nil {
		return nil
	}
	first := true
	return func(llm.Chunk) {
		if first {
			first = false
			stream(llm.Chunk{Kind: llm.ChunkText})
		}
	}
}

package textprotocol

import (
	"context"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Wrap puts the protocol over a provider. Reflections pass through unchanged, and so do
// replies that already are calls or thoughts. A [llm.Parsed] caller is returned itself.
func Wrap(caller llm.Caller) llm.Caller {
	if parsed, ok := caller.(llm.Parsed); ok {
		return parsed
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

package replay

import (
	"context"
	"fmt"

	"github.com/moorebus/moorebus/pkg/llm"
)

// recorded is one outcome of a model call: a response, or the error that came instead of it.
// Err wins where both are set.
type recorded struct {
	Response llm.Response
	Err      *llm.Error
}

// recording gives recorded replies, the run's first one first: the reply numbered
// [llm.Request.Replies], however often, in whatever order and by however many goroutines it is
// requested.
type recording []recorded

var _ llm.Described = recording(nil)

// Call returns the reply numbered req.Replies, counted from 0, and streams it word by
// word if stream is not nil. A request beyond the recording, or for a
// reflection (recordings count only the replies of planning), is an *llm.Error
// of KindInvalid.
func (r recording) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if req.Purpose == llm.PurposeReflect {
		return nil, invalid("the recording holds no reflections")
	}
	if req.Replies < 0 || req.Replies >= len(r) {
		return nil, invalid(fmt.Sprintf("the recording ends after %d replies, and reply %d was asked for",
			len(r), req.Replies+1))
	}
	reply := r[req.Replies]
	if reply.Err != nil {
		return nil, reply.Err
	}
	if reply.Response == nil {
		return nil, invalid(fmt.Sprintf("reply %d of the recording is empty", req.Replies+1))
	}
	if stream != nil {
		for chunk := range llm.Chunks(reply.Response) {
			stream(chunk)
		}
	}
	return reply.Response, nil
}

// Describe says that the replies come from this process and are parsed.
func (recording) Describe() llm.Description { return llm.Description{Local: true, Parsed: true} }

func invalid(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindInvalid, Message: message}
}

// Package recorded answers a run's model calls from recorded replies, for replays and
// tests.
//
// It promises that the reply depends on the request only: it is the reply numbered
// req.Replies, however often, in whatever order and by however many goroutines it is
// requested. Replies come as they were recorded, errors too. The package reaches no
// network and keeps no state.
package recorded

import (
	"context"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Reply is one recorded outcome of a model call: a response, or the error that
// came instead of it. Err wins where both are set.
type Reply struct {
	Response llm.Response
	Err      *llm.Error
}

// Caller gives recorded replies. It is safe for concurrent use.
type Caller struct {
	replies []Reply
}

var _ llm.Described = (*Caller)(nil)

// New returns a Caller that answers from replies, the run's first one first.
// The slice is copied.
func New(replies []Reply) *Caller {
	return &Caller{replies: slices.Clone(replies)}
}

// Call returns the reply numbered req.Replies, counted from 0, and streams it word by
// word if stream is not nil. A request beyond the recording, or for a
// reflection (recordings count only the replies of planning), is an *llm.Error
// of KindInvalid.
func (c *Caller) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if req.Purpose == llm.PurposeReflect {
		return nil, invalid("the recording holds no reflections")
	}
	if req.Replies < 0 || req.Replies >= len(c.replies) {
		return nil, invalid(fmt.Sprintf("the recording ends after %d replies, and reply %d was asked for",
			len(c.replies), req.Replies+1))
	}
	reply := c.replies[req.Replies]
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
func (*Caller) Describe() llm.Description { return llm.Description{Local: true, Parsed: true} }

func invalid(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindInvalid, Message: message}
}

package scripted

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Mock is a model for tests and examples. It gives its replies in the order in
// which it is asked, whatever the request, and remembers the requests; so,
// unlike that of [New], it is only good for one process. It is safe for concurrent
// use.
type Mock struct {
	mu       sync.Mutex
	replies  []any
	requests []llm.Request
}

var _ llm.Described = (*Mock)(nil)

// NewMock returns a Mock that answers with the given replies, each an
// [llm.Response] or an error; it panics on anything else. A response without a
// model's name is given that of the request.
func NewMock(replies ...any) *Mock {
	for i, r := range replies {
		switch r.(type) {
		case llm.Response, error:
		default:
			panic(fmt.Sprintf("scripted.NewMock: reply %d is a %T, neither an llm.Response nor an error", i, r))
		}
	}
	return &Mock{replies: slices.Clone(replies)}
}

// Say returns a reply in words, for [NewMock].
func Say(text string) llm.Response { return llm.Text{Content: text} }

// Ask returns a reply with one tool call without an id, for [NewMock]: the Mock
// gives it "call_<n>_<k>", n being the number of the call to the Mock.
func Ask(tool, arguments string) llm.Response {
	return llm.ToolCalls{Calls: []llm.Call{{Name: tool, Arguments: arguments}}}
}

// Call returns the next reply, and after the last one an *llm.Error of KindInvalid with
// the message "no more programmed responses". A call whose context has ended uses no reply and is not counted.
func (m *Mock) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reply, n := m.next(req)
	if err, ok := reply.(error); ok {
		return nil, err
	}
	res := finish(reply, req, n)
	if stream != nil {
		for chunk := range llm.Chunks(res) {
			stream(chunk)
		}
	}
	return res, nil
}

// Describe says that the replies come from this process.
func (*Mock) Describe() llm.Description { return llm.Description{Local: true} }

func (m *Mock) next(req llm.Request) (reply any, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	req.Messages = slices.Clone(req.Messages)
	m.requests = append(m.requests, req)
	n = len(m.requests)
	if n > len(m.replies) {
		return invalid(fmt.Sprintf("%s: there were %d, and this is call %d", usedUp, len(m.replies), n)), n
	}
	return m.replies[n-1], n
}

// CallCount returns how often the Mock was called, calls without a reply included.
func (m *Mock) CallCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests)
}

// ModelForCall returns the model of the n-th call, counted from 0, or "" if there was no
// such call.
func (m *Mock) ModelForCall(n int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n < 0 || n >= len(m.requests) {
		return ""
	}
	return m.requests[n].Model
}

// Requests returns the requests so far, in order.
func (m *Mock) Requests() []llm.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// finish fills in what a reply leaves out.
func finish(reply any, req llm.Request, n int) llm.Response {
	switch r := reply.(type) {
	case llm.Text:
		r.Meta = complete(r.Meta, req)
		return r
	case llm.Structured:
		r.Meta = complete(r.Meta, req)
		return r
	case llm.Thought:
		r.Meta = complete(r.Meta, req)
		return r
	case llm.Invalid:
		r.Meta = complete(r.Meta, req)
		return r
	case llm.ToolCalls:
		r.Meta = complete(r.Meta, req)
		r.Calls = slices.Clone(r.Calls)
		for i := range r.Calls {
			if r.Calls[i].ID == "" {
				r.Calls[i].ID = fmt.Sprintf("call_%d_%d", n, i+1)
			}
		}
		return r
	}
	return reply.(llm.Response) // NewMock let nothing else in
}

func complete(m llm.Meta, req llm.Request) llm.Meta {
	if m.Model == "" {
		m.Model = modelOf(req)
	}
	return m
}

package mcptool

import (
	"fmt"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// The notifications of a server that matter to us.
const (
	listChanged = "notifications/tools/list_changed"
	cancelled   = "notifications/cancelled"
)

// maxAsked is how many requests of a server may be unanswered at a time.
const maxAsked = 64

// inlet keeps what a server sends from piling up: the SDK queues requests and
// notifications without a bound.
type inlet struct {
	asked   atomic.Int64 // the server's requests that have no answer yet
	changes atomic.Int64 // list changes that are not handled yet
}

// takes reports whether a message is to be passed on. The error says that the
// server floods.
func (i *inlet) takes(msg jsonrpc.Message) (bool, error) {
	req, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		return true, nil
	case req.IsCall():
		if i.asked.Add(1) > maxAsked {
			return false, fmt.Errorf("it sends requests faster than they are answered")
		}
		return true, nil
	case req.Method == listChanged:
		// One that is not handled yet stands for this one too.
		return i.changes.CompareAndSwap(0, 1), nil
	}
	return req.Method == cancelled, nil
}

// answered counts an answer of ours.
func (i *inlet) answered(msg jsonrpc.Message) {
	if _, ok := msg.(*jsonrpc.Response); ok {
		i.asked.Add(-1)
	}
}

// handled says that the list change was seen.
func (i *inlet) handled() { i.changes.Store(0) }

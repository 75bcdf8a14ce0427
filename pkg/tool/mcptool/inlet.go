package mcptool

import (
	"errors"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// listChanged is the one notification of a server that matters to us. Its requests
// are declined at once, so that there is nothing for it to cancel.
const listChanged = "notifications/tools/list_changed"

// maxAsked is how many requests of a server may be unanswered at a time.
const maxAsked = 64

// errAsks says that a server floods.
var errAsks = errors.New("it sends requests faster than they are answered")

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
			return false, errAsks
		}
		return true, nil
	case req.Method == listChanged:
		// One that is not handled yet stands for this one too.
		return i.changes.CompareAndSwap(0, 1), nil
	}
	return false, nil
}

// answered counts an answer of ours.
func (i *inlet) answered(msg jsonrpc.Message) {
	if _, ok := msg.(*jsonrpc.Response); !ok {
		return
	}
	// Not below none: a request that is itself the body of an answer was not counted.
	for n := i.asked.Load(); n > 0 && !i.asked.CompareAndSwap(n, n-1); n = i.asked.Load() {
	}
}

// handled says that the list change was seen.
func (i *inlet) handled() { i.changes.Store(0) }

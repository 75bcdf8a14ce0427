package natsbus

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// feedBacklog is how many live messages wait for one slow watcher before it is
// told that it lost some.
const feedBacklog = 4096

// feedQueue takes messages from a subscription, which must never wait, to a
// goroutine that may. It is bounded: what does not fit is dropped, and said.
type feedQueue struct {
	wake chan struct{}

	mu   sync.Mutex
	msgs []*nats.Msg
	lost bool
}

func newFeedQueue() *feedQueue { return &feedQueue{wake: make(chan struct{}, 1)} }

func (q *feedQueue) push(msg *nats.Msg) {
	q.mu.Lock()
	if len(q.msgs) < feedBacklog {
		q.msgs = append(q.msgs, msg)
	} else {
		q.lost = true
	}
	q.mu.Unlock()
	q.signal()
}

// lose says that messages may have been missed.
func (q *feedQueue) lose() {
	q.mu.Lock()
	q.lost = true
	q.mu.Unlock()
	q.signal()
}

func (q *feedQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take empties the queue.
func (q *feedQueue) take() (msgs []*nats.Msg, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	msgs, lost = q.msgs, q.lost
	q.msgs, q.lost = nil, false
	return msgs, lost
}

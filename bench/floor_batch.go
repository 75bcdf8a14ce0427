package main

import (
	"context"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

// committer is the bare form of group commit: what waits at one moment goes as one
// atomic batch, which the server flushes once, each append under its own
// condition. One batch is in flight at a time. A run has one append at a time
// here, so that a batch never holds two of one.
type committer struct {
	conn    *nats.Conn
	waiting chan waitingAppend
}

type waitingAppend struct {
	msg  *nats.Msg
	done chan<- error
}

// mostInBatch is what the server takes as one batch.
const mostInBatch = 1000

func newCommitter(conn *nats.Conn) *committer {
	return &committer{conn: conn, waiting: make(chan waitingAppend, mostInBatch)}
}

// append hands an append over and waits until it is stored.
func (c *committer) append(ctx context.Context, msg *nats.Msg) error {
	done := make(chan error, 1)
	select {
	case c.waiting <- waitingAppend{msg, done}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run commits until ctx ends.
func (c *committer) run(ctx context.Context) {
	for {
		select {
		case first := <-c.waiting:
			batch := c.gather(first)
			err := c.commit(ctx, batch)
			for _, a := range batch {
				a.done <- err
			}
		case <-ctx.Done():
			return
		}
	}
}

// gather takes what waits, and waits for nothing.
func (c *committer) gather(first waitingAppend) []waitingAppend {
	batch := []waitingAppend{first}
	for len(batch) < mostInBatch {
		select {
		case next := <-c.waiting:
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

func (c *committer) commit(ctx context.Context, batch []waitingAppend) error {
	last := batch[len(batch)-1].msg
	if len(batch) > 1 {
		id := nuid.Next()
		for i, a := range batch {
			a.msg.Header["Nats-Batch-Id"] = []string{id}
			a.msg.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(i + 1)}
		}
		last.Header["Nats-Batch-Commit"] = []string{"1"}
		for _, a := range batch[:len(batch)-1] {
			if err := c.conn.PublishMsg(a.msg); err != nil {
				return err
			}
		}
	}
	return request(ctx, c.conn, last)
}

package main

import (
	"strconv"
	"sync"

	"github.com/nats-io/nuid"
)

// committer is the bare form of group commit: what waits at one moment goes as one
// atomic batch, which the server flushes once, each append under its own
// condition. One batch is in flight at a time. A run has one append at a time
// here, so that a batch never holds two of one.
type committer struct {
	publish func(bareBatch)

	mu       sync.Mutex
	waiting  []bareAppend
	inFlight bool
}

// mostInBatch is what the server takes as one batch.
const mostInBatch = 1000

// append sends an append, now or with those that wait for the batch in flight.
func (c *committer) append(a bareAppend) {
	c.mu.Lock()
	c.waiting = append(c.waiting, a)
	free := !c.inFlight
	c.inFlight = true
	c.mu.Unlock()
	if free {
		c.commit()
	}
}

// commit sends what waits, and waits for nothing.
func (c *committer) commit() {
	c.mu.Lock()
	batch := c.waiting[:min(len(c.waiting), mostInBatch)]
	c.waiting = c.waiting[len(batch):]
	c.inFlight = len(batch) > 0
	c.mu.Unlock()
	if len(batch) > 0 {
		c.publish(bareBatch{appends: batch, then: c.commit})
	}
}

// batchHeaders makes one atomic batch of appends.
func batchHeaders(batch []bareAppend) {
	id := nuid.Next()
	for i, a := range batch {
		a.msg.Header["Nats-Batch-Id"] = []string{id}
		a.msg.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(i + 1)}
	}
	batch[len(batch)-1].msg.Header["Nats-Batch-Commit"] = []string{"1"}
}

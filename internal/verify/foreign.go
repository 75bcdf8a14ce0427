package verify

import (
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// link holds a record of a run whose graph is not known to the one before it: its
// place and the chain of hashes can be read without knowing what it means.
func (c *checker) link(rec journal.Record, head string) {
	if c.broken {
		return
	}
	var envelope struct {
		Type events.Type `json:"type"`
		N    uint64      `json:"n"`
		Prev string      `json:"prev"`
	}
	err := json.Unmarshal(rec.Body, &envelope)
	switch {
	case err != nil:
		c.breaks(rec, "", "cannot be read: "+err.Error())
	case envelope.N != c.n:
		c.breaks(rec, envelope.Type, fmt.Sprintf("n is %d, the run's next is %d", envelope.N, c.n))
	case envelope.Prev != head:
		c.breaks(rec, envelope.Type, fmt.Sprintf("prev does not match the hash of event %d", c.n-1))
	}
}

// breaks notes what is wrong with the chain in the place of what was said of the
// run's graph.
func (c *checker) breaks(rec journal.Record, t events.Type, reason string) {
	c.broken, c.first = true, nil
	c.found(rec, t, reason)
}

package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// state is how far delivery to a webhook is.
type state struct {
	// Made is that of the webhook: what was noted before it was disabled counts no more.
	Made time.Time `json:"made"`
	// Read is up to where each shard was read. All of that is delivered, given up or pending.
	Read    []uint64  `json:"read"`
	Pending []pending `json:"pending,omitempty"`
}

// pending is a notice that is not delivered yet. Of a run, the one that is to come first stands
// first.
type pending struct {
	// Event is the event's id. Run, Shard and Seq say where it is.
	Event string `json:"event"`
	Run   string `json:"run"`
	Shard int    `json:"shard"`
	Seq   uint64 `json:"seq"`
	// Attempts counts those that failed, the last one with Error. Next is when the next one is
	// due.
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"`
	Next     time.Time `json:"next,omitzero"`
}

// state returns how far delivery is, with its revision: at the beginning, if nothing is noted.
func (h *Hooks) state(ctx context.Context, w *hook) (*state, uint64, error) {
	data, revision, err := h.cfg.Store.WebhookValue(ctx, key(kindState, w.Namespace, w.Name))
	if err != nil && !errors.Is(err, journal.ErrNotFound) {
		return nil, 0, err
	}
	var s state
	if err == nil {
		err = json.Unmarshal(data, &s)
	} else {
		err = nil
	}
	if err != nil || !s.Made.Equal(w.Made) || len(s.Read) != len(w.From) {
		s = state{Made: w.Made, Read: append([]uint64(nil), w.From...)}
	}
	return &s, revision, nil
}

package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// state is how far delivery to a webhook is.
type state struct {
	// Made is that of the webhook: what was noted before it was disabled counts no more.
	Made time.Time `json:"made"`
	// Read is up to where each shard was read of the log that was made at Log. All of that is
	// delivered, given up or pending.
	Read    []uint64  `json:"read"`
	Log     time.Time `json:"log,omitzero"`
	Pending []pending `json:"pending,omitempty"`
	// Noted is up to when what happened was read.
	Noted time.Time `json:"noted,omitzero"`
	// Since and Owed are for a log that was restored. What happened before Since is not told,
	// but for the events that were pending.
	Since time.Time `json:"since,omitzero"`
	Owed  []string  `json:"owed,omitempty"`
}

// moved returns how far delivery is in another log, into which that of the state was restored: its
// records have other numbers.
func (s *state) moved(log time.Time, shards int) *state {
	to := &state{Made: s.Made, Log: log, Read: make([]uint64, shards), Since: s.Made, Owed: s.Owed}
	if s.Noted.After(s.Made) {
		to.Since = s.Noted
	}
	for _, p := range s.Pending {
		to.Owed = append(to.Owed, p.Event)
	}
	return to
}

// pending is a notice that is not delivered yet. Of a run, the one that is to come first stands
// first.
type pending struct {
	// Event is the event's id. Run, Shard and Seq say where it is.
	Event string `json:"event"`
	Run   string `json:"run"`
	Shard int    `json:"shard"`
	Seq   uint64 `json:"seq"`
	// Last is true for the last notice of a push.
	Last bool `json:"last,omitempty"`
	// Attempts counts those that failed, the last one with Error. Next is when the next one is
	// due.
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"`
	Next     time.Time `json:"next,omitzero"`
}

// state returns how far delivery is, with its revision: at the beginning, if nothing is noted.
func (h *Hooks) state(ctx context.Context, w *hook) (*state, uint64, error) {
	data, revision, err := h.value(ctx, key(kindState, w.Namespace, w.Name))
	if err != nil && !errors.Is(err, journal.ErrNotFound) {
		return nil, 0, err
	}
	var s state
	if err == nil {
		err = json.Unmarshal(data, &s)
	} else {
		err = nil
	}
	if err != nil || !s.Made.Equal(w.Made) {
		s = state{Made: w.Made, Log: w.Log, Read: slices.Clone(w.From)}
	}
	return &s, revision, nil
}

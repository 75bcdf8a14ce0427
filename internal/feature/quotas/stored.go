package quotas

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/pkg/journal"
)

// kept is the queue as it is stored: what the log up to After comes to. It saves reading the log from its
// beginning, and everything in it can be made anew.
type kept struct {
	After []uint64  `json:"after"`
	Runs  []keptRun `json:"runs"`
}

type keptRun struct {
	NS     string    `json:"ns"`
	ID     string    `json:"id"`
	Agent  string    `json:"agent"`
	Place  time.Time `json:"place"`
	Phase  phase     `json:"phase,omitempty"`
	Paused bool      `json:"paused,omitempty"`
}

const (
	// maxKept bounds the stored queue, in bytes. A longer one is not stored, and the log is read
	// from where the last one ended.
	maxKept = 768 << 10
	// maxUnpacked bounds it unpacked.
	maxUnpacked = 64 << 20
)

// keep stores the queue, if it has changed.
func (a *Admission) keep(ctx context.Context) {
	a.mu.Lock()
	k := kept{After: append([]uint64{}, a.after...), Runs: make([]keptRun, 0, len(a.queue.runs))}
	for _, e := range a.queue.runs {
		p := e.phase
		if p == admitting {
			p = waits // if it is admitted, a record after these says so
		}
		k.Runs = append(k.Runs, keptRun{e.ns, e.id, e.agent, e.place, p, e.paused})
	}
	a.mu.Unlock()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if err := errors.Join(json.NewEncoder(zip).Encode(k), zip.Close()); err != nil || packed.Len() > maxKept {
		return
	}
	_, revision, err := buckets.Position(ctx, a.cfg.KV, lease)
	if err == nil || errors.Is(err, journal.ErrNotFound) {
		_, err = buckets.PutPosition(ctx, a.cfg.KV, lease, packed.Bytes(), revision)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, journal.ErrConflict) {
		a.cfg.Logger.Warn("the queue is not stored: a restart reads more of the log", "reason", err)
	}
}

// load reads the stored queue. One that cannot be read, or that is ahead of the log, is left.
func (a *Admission) load(ctx context.Context) {
	packed, _, err := buckets.Position(ctx, a.cfg.KV, lease)
	if err != nil {
		return
	}
	var k kept
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil || json.NewDecoder(io.LimitReader(zip, maxUnpacked)).Decode(&k) != nil || len(k.After) != len(a.after) {
		return
	}
	for shard, after := range k.After {
		if last, err := a.runs.Log.Last(ctx, shard); err != nil || last < after {
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	a.after = k.After
	for _, r := range k.Runs {
		a.queue.add(&entry{name: name{r.NS, r.ID}, agent: r.Agent, place: r.Place, phase: r.Phase, paused: r.Paused, since: now}, now, a.all)
	}
}

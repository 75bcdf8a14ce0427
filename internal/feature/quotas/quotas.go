// Package quotas bounds how many runs work at once and divides the places fairly, and bounds what
// a namespace may use in a day.
//
// A start to which a bound applies is queued: the run is in the log and wakes nobody. One gateway
// at a time, which has the lease, admits queued runs, each by an Admitted event. The queue is a
// projection of the log, so whoever leads next has the same one. Without quotas nothing of this
// happens.
package quotas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Bus is the scope of the quota that holds for all namespaces together.
const Bus = "_"

// DefaultQueued is how many runs of a namespace may be queued where its quota does not say.
const DefaultQueued = 100_000

const (
	maxWeight = 1000
	maxQuotas = 2000
	// maxDocument bounds all quotas, in bytes.
	maxDocument = 512 << 10
	putTries    = 20
)

// Quota bounds one scope: the bus, a namespace or an agent of a namespace. A zero field bounds
// nothing.
type Quota struct {
	// Weight is the share of a namespace among namespaces, or of an agent among those of its
	// namespace; 0: 1. Active is how many runs work at once. Queued is how many runs of a
	// namespace may wait, by default [DefaultQueued].
	Weight int    `json:"weight,omitempty" jsonschema:"The share of the namespace among namespaces, or of the agent within its namespace, 1 to 1000. Default: 1."`
	Active int    `json:"active,omitempty" jsonschema:"How many runs may work at once. Default: no bound."`
	Queued int    `json:"queued,omitempty" jsonschema:"How many runs of a namespace may be queued. Default: 100000."`
	Daily  *Daily `json:"daily,omitempty" jsonschema:"What the runs of a namespace may use in a day."`
}

// Daily is the budget of a namespace for each day.
type Daily struct {
	Tokens   int64   `json:"tokens,omitempty" jsonschema:"Tokens of models, input and output. Default: no bound."`
	CostUSD  float64 `json:"cost_usd,omitempty" jsonschema:"Default: no bound."`
	TimeZone string  `json:"time_zone,omitempty" jsonschema:"Where a day begins, such as Europe/Berlin. Default: UTC."`
}

// Info is a stored quota with how it is used now, as far as this process knows.
type Info struct {
	Scope string `json:"scope" jsonschema:"_ for the bus, NAMESPACE, or NAMESPACE.AGENT."`
	Quota
	// Now is nil in a process that does not follow the queue.
	Now *Now `json:"now,omitempty" jsonschema:"How it is used now. Left out by a process that does not follow the queue."`
}

// Now is how many runs work and wait that a quota counts.
type Now struct {
	Active int `json:"active" jsonschema:"Runs that were queued and work now."`
	Queued int `json:"queued" jsonschema:"Runs that are queued."`
}

// set has all quotas by scope.
type set map[string]Quota

func (s set) agent(ns, agent string) Quota { return s[ns+"."+agent] }

// bounds reports whether runs of the agent have to be queued.
func (s set) bounds(ns, agent string) bool {
	return s[Bus].Active > 0 || s[ns].Active > 0 || s.agent(ns, agent).Active > 0
}

func (q Quota) weight() float64 { return float64(max(1, q.Weight)) }

// check says what is wrong with a quota of a scope.
func (q Quota) check(scope string) error {
	ns, agent, ofAgent := strings.Cut(scope, ".")
	bad := func(format string, args ...any) error {
		return refusal.New(refusal.Invalid, row.CodeBadQuota, format, args...)
	}
	switch {
	case scope != Bus && !events.ValidToken(ns), ofAgent && !events.ValidToken(agent):
		return bad("%q is not a scope: use %s for the bus, NAMESPACE, or NAMESPACE.AGENT", scope, Bus)
	case q.Weight < 0 || q.Weight > maxWeight:
		return bad("weight: must be 1 to %d", maxWeight)
	case q.Active < 0 || q.Queued < 0:
		return bad("active and queued: must not be negative")
	case scope == Bus && q.Weight > 0:
		return bad("weight: the bus has none; give it to namespaces or agents")
	case (scope == Bus || ofAgent) && (q.Queued > 0 || q.Daily != nil):
		return bad("queued and daily: are for a namespace, not for %s", scope)
	case q == Quota{}:
		return bad("bounds nothing: give weight, active, queued or daily, or remove the quota")
	}
	if q.Daily == nil {
		return nil
	}
	if d := q.Daily; d.Tokens < 0 || !(d.CostUSD >= 0) || d.Tokens == 0 && d.CostUSD == 0 {
		return bad("daily: give tokens or cost_usd, above 0")
	}
	if _, err := time.LoadLocation(q.Daily.TimeZone); err != nil || q.Daily.TimeZone == "Local" {
		return bad("daily.time_zone: %q is not known; use a name such as Europe/Berlin", q.Daily.TimeZone)
	}
	return nil
}

// read returns the stored quotas and their revision. There is none before the first was put.
func (a *Admission) read(ctx context.Context) (set, uint64, error) {
	it, err := a.cfg.KV.Get(ctx, row.Bucket, row.Bucket.Keys)
	if errors.Is(buckets.OrNone(err), journal.ErrNotFound) {
		if it.Revision > 0 { // Moorebus deletes no document, and without it no bound would hold
			return nil, 0, refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "the stored quotas were deleted with another tool, so no runs start; restore key %s of bucket %s, or store {} there to have no quotas",
				row.Bucket.Keys, row.Bucket.Name)
		}
		return set{}, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("quotas: %w", err)
	}
	var all set
	if err := codec.Strict(it.Value, &all); err != nil { // a bound of a later build would not hold
		return nil, 0, refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable, "the stored quotas cannot be read by this build, so it starts no runs: start gateways of the build that stored them, or remove the quotas with it")
	}
	return all, it.Revision, nil
}

// change changes the stored quotas, also while others do.
func (a *Admission) change(ctx context.Context, do func(set) error) error {
	for try := 1; ; try++ {
		all, revision, err := a.read(ctx)
		if err != nil {
			return err
		}
		all = maps.Clone(all)
		if all == nil {
			all = set{}
		}
		if err := do(all); err != nil {
			return err
		}
		data, err := json.Marshal(all)
		if err != nil {
			return err
		}
		if len(all) > maxQuotas || len(data) > maxDocument {
			return refusal.New(refusal.TooLarge, refusal.CodeTooLarge, "there are %d quotas in %d bytes; at most %d in %d bytes may be", len(all), len(data), maxQuotas, maxDocument)
		}
		_, err = a.cfg.KV.Update(ctx, row.Bucket, kv.Item{Key: row.Bucket.Keys, Value: data, Revision: revision})
		if errors.Is(err, journal.ErrConflict) && try < putTries {
			continue
		}
		if err == nil {
			a.use(all)
			return nil
		}
		return fmt.Errorf("quotas: %w", err)
	}
}

// PutQuota stores a quota under a scope and replaces the one that is there: [Bus], NAMESPACE, or
// NAMESPACE.AGENT. Other gateways use it within two seconds. A quota that is wrong is a
// CodeBadQuota.
func (a *Admission) PutQuota(ctx context.Context, scope string, q Quota) (Info, error) {
	if err := q.check(scope); err != nil {
		return Info{}, err
	}
	err := a.change(ctx, func(all set) error {
		all[scope] = q
		return nil
	})
	return a.info(scope, q), err
}

// RemoveQuota removes a quota. Without one it is a CodeNotFound. What was queued because of it
// is admitted.
func (a *Admission) RemoveQuota(ctx context.Context, scope string) error {
	return a.change(ctx, func(all set) error {
		if _, there := all[scope]; !there {
			return noQuota(scope)
		}
		delete(all, scope)
		return nil
	})
}

// Quota returns the quota of a scope. Without one it is a CodeNotFound.
func (a *Admission) Quota(ctx context.Context, scope string) (Info, error) {
	all, _, err := a.read(ctx)
	if err != nil {
		return Info{}, err
	}
	q, there := all[scope]
	if !there {
		return Info{}, noQuota(scope)
	}
	return a.info(scope, q), nil
}

// Quotas returns all quotas, sorted by scope.
func (a *Admission) Quotas(ctx context.Context) ([]Info, error) {
	all, _, err := a.read(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(all))
	for _, scope := range slices.Sorted(maps.Keys(all)) {
		infos = append(infos, a.info(scope, all[scope]))
	}
	return infos, nil
}

func noQuota(scope string) error {
	return refusal.New(refusal.NotFound, refusal.CodeNotFound, "there is no quota of %q; see GET /v1/quotas", scope)
}

// info returns a quota with how it is used.
func (a *Admission) info(scope string, q Quota) Info {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := Info{Scope: scope, Quota: q}
	if a.follows {
		active, waiting := a.queue.counts(scope)
		i.Now = &Now{active, waiting}
	}
	return i
}

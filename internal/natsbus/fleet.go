package natsbus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Backlogs returns how much work waits in these states and in every pool.
func (b *Bus) Backlogs(ctx context.Context, states []events.State) ([]ports.Backlog, error) {
	var all []ports.Backlog
	for _, d := range durablesOf(journal.Inbox{States: slices.DeleteFunc(slices.Clone(states), func(s events.State) bool { return slices.Contains(actingStates, s) })}) {
		found, err := b.backlog(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("backlog: %w", err)
		}
		all = append(all, found...)
	}
	pools, err := b.livePools(ctx)
	if err != nil {
		return nil, fmt.Errorf("backlog: %w", err)
	}
	slices.Sort(pools)
	for _, pool := range pools {
		found, err := b.backlog(ctx, actingDurable(pool))
		if errors.Is(err, journal.ErrDenied) {
			b.warnUnreadable(pool, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("backlog: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// backlog returns one Backlog, or none if no shard has the consumer.
func (b *Bus) backlog(ctx context.Context, d durable) ([]ports.Backlog, error) {
	sum, there := ports.Backlog{State: d.states[0], Pool: d.pool, Delivered: make([]uint64, b.shards)}, false
	for shard := range b.shards {
		consumer, err := b.Consumer(ctx, events.StreamName(shard), d.name)
		if code, ok := api.Code(err); ok && code == api.CodeConsumerNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		info := consumer.CachedInfo()
		sum.Waiting, sum.InFlight, there = sum.Waiting+info.NumPending, sum.InFlight+info.NumAckPending, true
		sum.Delivered[shard] = info.Delivered.Stream
		if info.NumPending > 0 || info.NumAckPending > 0 {
			oldest, err := b.oldest(ctx, d, shard, info.AckFloor.Stream)
			if err != nil {
				return nil, err
			}
			if sum.Oldest.IsZero() || !oldest.IsZero() && oldest.Before(sum.Oldest) {
				sum.Oldest = oldest
			}
		}
	}
	if !there {
		return nil, nil
	}
	return []ports.Backlog{sum}, nil
}

// oldest returns when the consumer's first record after a sequence number was stored.
func (b *Bus) oldest(ctx context.Context, d durable, shard int, after uint64) (oldest time.Time, err error) {
	for _, subject := range d.filters(shard) {
		rec, err := b.NextOn(ctx, events.StreamName(shard), subject, after+1)
		switch {
		case errors.Is(err, journal.ErrNotFound):
		case err != nil:
			return oldest, err
		case oldest.IsZero() || rec.Stored.Before(oldest):
			oldest = rec.Stored
		}
	}
	return oldest, nil
}

// ShardSizes returns the sizes of the log's shards.
func (b *Bus) ShardSizes(ctx context.Context) ([]ports.ShardSize, error) {
	all := make([]ports.ShardSize, b.shards)
	for shard := range all {
		info, err := b.shardInfo(ctx, shard)
		if err != nil {
			return nil, fmt.Errorf("size of shard %d: %w", shard, err)
		}
		all[shard] = ports.ShardSize{Records: info.State.Msgs, Bytes: info.State.Bytes, MaxBytes: info.Config.MaxBytes}
	}
	return all, nil
}

// Workers returns the instances whose announcements live.
func (b *Bus) Workers(ctx context.Context) ([]ports.Worker, error) {
	all, err := b.planners(ctx)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	pools, err := b.livePools(ctx)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	slices.Sort(pools)
	for _, pool := range pools {
		actors, err := b.actors(ctx, pool)
		if errors.Is(err, journal.ErrDenied) {
			b.warnUnreadable(pool, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list workers of pool %s: %w", pool, err)
		}
		all = append(all, actors...)
	}
	return all, nil
}

func (b *Bus) planners(ctx context.Context) ([]ports.Worker, error) {
	found := map[string]ports.Worker{}
	for it, err := range b.Each(ctx, buckets.Providers, ">") {
		if err != nil {
			return nil, err
		}
		w := ports.Worker{Role: "planner", Instance: it.Key}
		var said claims
		if json.Unmarshal([]byte(it.Header[claimsHeader]), &said) == nil && said.Instance != "" {
			w.Instance = said.Instance // the key may have other characters
		}
		if json.Unmarshal(it.Value, &w.Providers) == nil {
			slices.Sort(w.Providers)
			found[it.Key] = w
		}
	}
	return byInstance(found), nil
}

func (b *Bus) actors(ctx context.Context, pool string) ([]ports.Worker, error) {
	found := map[string]ports.Worker{}
	for it, err := range b.Each(ctx, buckets.Tools(pool), ">") {
		if err != nil {
			return nil, err
		}
		var tools []events.ToolSpec
		if json.Unmarshal(it.Value, &tools) != nil {
			continue // Tools tells of it
		}
		w := ports.Worker{Role: "actor", Instance: it.Key, Pool: pool}
		for _, t := range tools {
			if t.Pool == pool {
				w.Tools = append(w.Tools, t.Name)
			}
		}
		slices.Sort(w.Tools)
		found[it.Key] = w
	}
	return byInstance(found), nil
}

func byInstance(found map[string]ports.Worker) []ports.Worker {
	var all []ports.Worker
	for _, w := range found {
		all = append(all, w)
	}
	slices.SortFunc(all, func(x, y ports.Worker) int { return cmp.Compare(x.Instance, y.Instance) })
	return all
}

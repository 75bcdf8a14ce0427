package natsbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	pools, err := b.pools(ctx)
	if err != nil {
		return nil, fmt.Errorf("backlog: %w", err)
	}
	for _, pool := range pools {
		found, err := b.backlog(ctx, actingDurable(pool))
		if errors.Is(err, journal.ErrDenied) {
			continue // the pool came after this user's permissions were given, which reading its tools says
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

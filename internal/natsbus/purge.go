package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// trimTimeout is how long a server may take to remove the front of a stream.
const trimTimeout = 5 * time.Minute

// Purge removes the run's records up to the sequence number.
func (b *Bus) Purge(ctx context.Context, run events.Run, upTo uint64) (uint64, error) {
	if err := journalcheck.Run(b.shards, run); err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	if upTo == 0 {
		return 0, fmt.Errorf("purge run %s: no sequence number given", run.ID)
	}
	proof := b.prove(run.Shard)
	n, err := b.PurgeOn(ctx, 0, events.StreamName(run.Shard), run.Filter(), upTo)
	if err == nil {
		err = proof.wait(ctx, 0)
	}
	if err != nil {
		return 0, fmt.Errorf("purge run %s: %w", run.ID, err)
	}
	return n, nil
}

// Trim removes the records of a shard before the sequence number.
func (b *Bus) Trim(ctx context.Context, shard int, before uint64) (uint64, error) {
	if err := journalcheck.Shard(b.shards, shard); err != nil {
		return 0, fmt.Errorf("trim: %w", err)
	}
	if before <= 1 {
		return 0, nil // without a number the server would remove everything
	}
	proof := b.prove(shard)
	n, err := b.PurgeOn(ctx, max(b.Timeout, trimTimeout), events.StreamName(shard), "", before-1)
	if err == nil {
		err = proof.wait(ctx, 0)
	}
	if err != nil {
		return 0, fmt.Errorf("trim shard %d: %w", shard, err)
	}
	return n, nil
}

// Records returns how many records a shard has, and the number of its last one.
func (b *Bus) Records(ctx context.Context, shard int) (n, last uint64, err error) {
	if err := journalcheck.Shard(b.shards, shard); err != nil {
		return 0, 0, err
	}
	proof := b.prove(shard)
	info, err := b.shardInfo(ctx, shard)
	if err == nil && info.State.LastSeq > 0 {
		err = proof.wait(ctx, info.State.LastSeq)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("records of shard %d: %w", shard, err)
	}
	return info.State.Msgs, info.State.LastSeq, nil
}

// DeleteBlob removes what a reference points to, unless it is younger than
// before.
func (b *Bus) DeleteBlob(ctx context.Context, ref events.Ref, before time.Time) (bool, error) {
	pool, ok := strings.CutPrefix(ref.Bucket, resultsPrefix)
	if !ok || !events.ValidToken(pool) {
		return false, fmt.Errorf("delete a result: bucket %q is not one of results", ref.Bucket)
	}
	info, err := b.objectInfo(ctx, ref)
	switch {
	case errors.Is(err, journal.ErrNotFound), errors.Is(err, journal.ErrNotReady):
		return false, nil
	case err == nil && !info.Time.Before(before):
		return false, nil
	case err == nil:
		err = b.deleteObject(ctx, ref, info)
	}
	if errors.Is(err, errTouched) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete result %s: %w", ref.Key, err)
	}
	return true, nil
}

// errTouched says that an object got another description meanwhile.
var errTouched = errors.New("somebody stored it again")

// deleteObject removes an object as it was described. The description goes
// first, and its chunks only where it has no other one by then: who wants to
// keep the object renews the description on condition that it is still there.
func (b *Bus) deleteObject(ctx context.Context, ref events.Ref, info *objectInfo) error {
	stream, subject := objectStreamPrefix+ref.Bucket, infoSubject(ref.Bucket, ref.Key)
	if _, err := b.PurgeOn(ctx, 0, stream, subject, info.seq); err != nil {
		return err
	}
	switch now, err := b.HeadOn(ctx, stream, subject); {
	case err == nil && now.Seq > info.seq:
		return errTouched
	case err != nil && !errors.Is(err, journal.ErrNotFound):
		return err
	}
	_, err := b.PurgeOn(ctx, 0, stream, chunkSubject(ref.Bucket, info.NUID), 0)
	return err
}

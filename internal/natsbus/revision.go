package natsbus

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
)

// Revision implements [ports.Revised].
func (b *Bus) Revision() int { return b.revision }

// Agree says in the log that all builds on the bus know a revision, unless the log has records or says
// something already: builds that wrote these may be at work.
func (b *Bus) Agree(ctx context.Context, revision int) error {
	if b.revision > 0 {
		return nil
	}
	var info *jetstream.StreamInfo
	for shard := b.shards - 1; shard >= 0; shard-- { // the first one last: it has the metadata
		var err error
		if info, err = b.shardInfo(ctx, shard); err != nil || info.State.LastSeq > 0 {
			return err
		}
	}
	js, err := jetstream.New(b.NC)
	if err != nil {
		return err
	}
	config := info.Config
	config.Metadata = maps.Clone(config.Metadata)
	config.Metadata[metaRevision] = strconv.Itoa(revision)
	if _, err := js.UpdateStream(ctx, config); err != nil {
		return fmt.Errorf("stream %s: %w", config.Name, err)
	}
	b.revision = revision
	return nil
}

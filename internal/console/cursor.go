package console

import (
	"context"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Cursor is a place in the log: by shard, the sequence number of the last record
// that was read.
type Cursor []uint64

// String writes the cursor as `<shard>:<seq>[,<shard>:<seq>…]`, the form that
// the gateway's event stream has too.
func (c Cursor) String() string {
	parts := make([]string, len(c))
	for shard, seq := range c {
		parts[shard] = strconv.Itoa(shard) + ":" + strconv.FormatUint(seq, 10)
	}
	return strings.Join(parts, ",")
}

// ParseCursor reads what String writes, or returns a usage error. A shard that
// is not named is read from its beginning, so that nothing is missed.
func ParseCursor(text string, shards int) (Cursor, error) {
	c := make(Cursor, shards)
	seen := make([]bool, shards)
	for part := range strings.SplitSeq(text, ",") {
		left, right, _ := strings.Cut(strings.TrimSpace(part), ":")
		shard, err := strconv.Atoi(left)
		seq, seqErr := strconv.ParseUint(right, 10, 63)
		if err != nil || seqErr != nil || shard < 0 || shard >= shards || seen[shard] {
			return nil, cli.Usage("--from: %.200q is not a position; write <shard>:<seq>[,<shard>:<seq>…] with shards from 0 to %d, as a tap shows it when it ends", text, shards-1)
		}
		seen[shard], c[shard] = true, seq
	}
	return c, nil
}

// Now returns the end of the log: what is behind it is yet to come.
func Now(ctx context.Context, log journal.Log) (Cursor, error) {
	c := make(Cursor, log.Shards())
	for shard := range c {
		last, err := log.Last(ctx, shard)
		if err != nil {
			return nil, err
		}
		c[shard] = last
	}
	return c, nil
}

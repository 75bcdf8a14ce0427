package logwalk

import (
	"context"
	"fmt"
	"github.com/moorebus/moorebus/pkg/journal"
	"slices"
	"strconv"
	"strings"
)

// Position is a place in the log: by shard, the sequence number of the
// last record that was read.
type Position []uint64

// End returns the position behind everything that the log holds now.
func End(ctx context.Context, log journal.Log) (Position, error) {
	p := make(Position, log.Shards())
	for shard := range p {
		last, err := log.Last(ctx, shard)
		if err != nil {
			return nil, err
		}
		p[shard] = last
	}
	return p, nil
}

// String writes the position as `<shard>:<seq>[,<shard>:<seq>…]`.
func (p Position) String() string {
	parts := make([]string, len(p))
	for shard, seq := range p {
		parts[shard] = strconv.Itoa(shard) + ":" + strconv.FormatUint(seq, 10)
	}
	return strings.Join(parts, ",")
}

// Parse reads what String writes. A shard that is omitted is where it is in p,
// which stays as it is.
func (p Position) Parse(text string) (Position, error) {
	read := slices.Clone(p)
	seen := make([]bool, len(p))
	for part := range strings.SplitSeq(text, ",") {
		left, right, _ := strings.Cut(strings.TrimSpace(part), ":")
		shard, err := strconv.Atoi(left)
		seq, seqErr := strconv.ParseUint(right, 10, 63)
		if err != nil || seqErr != nil || shard < 0 || shard >= len(p) || seen[shard] {
			return nil, fmt.Errorf("%.200q is not a position: write <shard>:<seq>[,<shard>:<seq>…] with shards from 0 to %d", text, len(p)-1)
		}
		seen[shard], read[shard] = true, seq
	}
	return read, nil
}

package console

import (
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/journal"
)

// ParseCursor reads the position that a tap shows when it ends, or returns a
// usage error. A shard that is not named is read from its beginning, so that
// nothing is missed.
func ParseCursor(text string, shards int) (journal.Position, error) {
	at, err := make(journal.Position, shards).Parse(text)
	if err != nil {
		return nil, cli.Usage("--from: %w", err)
	}
	return at, nil
}

// Package buckets is the table of the buckets of an installation: their names and settings. The
// package that uses a bucket defines its values.
package buckets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

// How long an announcement is live, and how often it is repeated.
const (
	AnnouncementTTL     = 30 * time.Second
	AnnouncementRefresh = 10 * time.Second
)

// The buckets of an installation. Who may write one key of a bucket can empty it, so what different
// users write has its own buckets.
var (
	// Agents has the definitions of agents, and a few older ones of each.
	Agents = kv.Bucket{Name: "agents", About: "agent definitions", Keys: "*.*", History: 5, AnyReplica: true}
	// Providers has what planners announce.
	Providers = kv.Bucket{Name: "providers", About: "model providers that live", Keys: "*", Lifetime: AnnouncementTTL, AnyReplica: true}
	// Offers has what gateways remember of announcements.
	Offers  = kv.Bucket{Name: "offers", About: "who announced each tool first", Keys: "known", AnyReplica: true}
	Purged  = kv.Bucket{Name: "purged", About: "runs that were purged", Keys: "*.*"}
	Dropped = kv.Bucket{Name: "dropped", About: "dead runs and messages that are hidden", Keys: "*", AnyReplica: true}
	Threads = kv.Bucket{Name: "threads", About: "the runs of clients' threads", Keys: "*.*.*", Marks: true}
	Notes   = kv.Bucket{Name: "notes", About: "what people note of runs, such as labels", Keys: ">"}
)

// ToolsPrefix begins the name of a bucket with what the actors of a pool announce; the pool follows.
const ToolsPrefix = "tools_"

// Tools is the bucket of a pool's announcements.
func Tools(pool string) kv.Bucket {
	return kv.Bucket{Name: ToolsPrefix + pool, About: "tools that live, of pool " + pool, Keys: "*", Lifetime: AnnouncementTTL, AnyReplica: true}
}

// Positions is the bucket in which the processes of a role keep where they are in the log, and other
// small things that they must not forget.
func Positions(role string) kv.Bucket {
	return kv.Bucket{Name: PositionsPrefix + role, About: "where readers of the log are, of role " + role, Keys: "*"}
}

// PositionsPrefix begins the names of such buckets.
const PositionsPrefix = "positions_"

// All returns the buckets of the core and of features that an installation with these pools has from its
// beginning, in the order in which they are made.
func All(pools []string, features []kv.Bucket) []kv.Bucket {
	all := append([]kv.Bucket{Providers, Agents, Purged, Dropped, Offers, Threads, Notes}, features...)
	for _, role := range KeepingRoles {
		all = append(all, Positions(role))
	}
	for _, pool := range pools {
		all = append(all, Tools(pool))
	}
	return all
}

// KeepingRoles are the roles that have leases and positions.
var KeepingRoles = []string{"gateway", "telemetry"}

// ErrMissing says that nobody has made a bucket: a [journal.ErrNotReady].
var ErrMissing = fmt.Errorf("%w: a bucket is missing: run `moorebus init`", journal.ErrNotReady)

// Missing is ErrMissing with the name of the bucket.
func Missing(name string) error { return fmt.Errorf("bucket %s: %w", name, ErrMissing) }

// OrNone makes [journal.ErrNotFound] of ErrMissing, for a bucket that its first writer makes.
func OrNone(err error) error {
	if errors.Is(err, ErrMissing) {
		return fmt.Errorf("%w: %w", journal.ErrNotFound, err)
	}
	return err
}

// Position returns what the processes of a role keep under a name, or [journal.ErrNotFound].
func Position(ctx context.Context, store kv.Store, of ports.RoleKey) (value []byte, revision uint64, err error) {
	it, err := store.Get(ctx, Positions(of.Role), of.Name)
	if err != nil {
		return nil, 0, fmt.Errorf("position %s of %s: %w", of.Name, of.Role, OrNone(err))
	}
	return it.Value, it.Revision, nil
}

// PutPosition replaces what has the revision, 0: nothing, and returns the new revision. If there is
// another one meanwhile, the error is [journal.ErrConflict].
func PutPosition(ctx context.Context, store kv.Store, of ports.RoleKey, value []byte, revision uint64) (uint64, error) {
	revision, err := store.Update(ctx, Positions(of.Role), kv.Item{Key: of.Name, Value: value, Revision: revision})
	if err != nil {
		return 0, fmt.Errorf("position %s of %s: %w", of.Name, of.Role, err)
	}
	return revision, nil
}

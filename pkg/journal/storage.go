package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// StorageOf says whose storage it is: an agent's in a namespace, shared by all of
// its runs.
type StorageOf struct {
	Namespace string
	Agent     string
}

// String returns NAMESPACE/AGENT.
func (o StorageOf) String() string { return o.Namespace + "/" + o.Agent }

// Check reports whether the names can be names.
func (o StorageOf) Check() error {
	if !events.ValidToken(o.Namespace) || !events.ValidToken(o.Agent) {
		return fmt.Errorf("storage %q is not NAMESPACE/AGENT, each of [a-z0-9][a-z0-9_-]{0,62}", o.String())
	}
	return nil
}

// Writer says who writes to storage. Each has a separate place: on a bus, a user who
// may write one key of a bucket can empty all of it.
type Writer string

// The writers: actors store what models save, observers what is paged out of
// working memory.
const (
	WrittenByActor    Writer = "actor"
	WrittenByObserver Writer = "observer"
)

// Storage keeps entries beyond their runs, by agent. An entry is known by its set
// of tags: storing under the same set again replaces the value of any writer,
// and reading gives the value that was stored last. All methods are safe for
// concurrent use.
//
// Tags come and go as a set: sorted, each once, without spaces, at most 16 of at most 128
// bytes. A value has at most 64 KiB as JSON text.
//
// Errors: ErrDenied or ErrNotReady where the storage is not there and the caller
// may not make it, with the command that does in words; ErrTooLarge; the bus's.
type Storage interface {
	// SaveEntry stores an entry.
	SaveEntry(ctx context.Context, of StorageOf, by Writer, e events.Entry) error
	// StoredEntry returns the entry with exactly these tags, or ErrNotFound.
	StoredEntry(ctx context.Context, of StorageOf, tags []string) (events.Entry, error)
	// FindEntries returns entries that match, those with the fewest tags first,
	// then by their tags. So an entry with exactly the query's tags is the first.
	// Of what is being stored meanwhile it may see some.
	FindEntries(ctx context.Context, of StorageOf, q StorageQuery) (Found, error)
	// DeleteEntry removes the entry with exactly these tags, of any writer, or returns
	// ErrNotFound. An entry that is being stored meanwhile is kept.
	DeleteEntry(ctx context.Context, of StorageOf, tags []string) error
	// StorageOf returns the agents that have storage, sorted by their names.
	StorageOf(ctx context.Context) ([]StorageOf, error)
}

// StorageQuery chooses entries.
type StorageQuery struct {
	// Tags are those that an entry has to have all of; none: any entry.
	Tags []string
	// Value is what its value has to hold, in whatever case; empty: anything.
	Value string
	// Limit and MaxBytes bound what is returned: entries, and bytes of their JSON
	// text. At least one entry is returned if there is any. 0: 20
	// entries and 32 KiB.
	Limit    int
	MaxBytes int
}

// Match reports whether an entry is asked for.
func (q StorageQuery) Match(e events.Entry) bool {
	return hasTags(e.Tags, q.Tags) && (q.Value == "" || strings.Contains(strings.ToLower(e.Value), strings.ToLower(q.Value)))
}

// Found is what a query found.
type Found struct {
	Entries []events.Entry
	// Total is how many match, returned or not.
	Total int
}

// hasTags reports whether a set of tags contains all of the others.
func hasTags(set, wanted []string) bool {
	for _, tag := range wanted {
		if _, has := slices.BinarySearch(set, tag); !has {
			return false
		}
	}
	return true
}

package journalcheck

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// WithDefaults returns the query with its bounds.
func WithDefaults(q journal.StorageQuery) journal.StorageQuery {
	if q.Limit <= 0 {
		q.Limit = journal.DefaultLimit
	}
	if q.MaxBytes <= 0 {
		q.MaxBytes = journal.DefaultMaxBytes
	}
	return q
}

// CompareTags orders sets of tags: fewer tags first, then by the tags.
func CompareTags(a, b []string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), slices.Compare(a, b))
}

// TagsKey names a set of tags: the SHA-256 of its JSON text, in hexadecimal.
func TagsKey(tags []string) string {
	text, err := json.Marshal(tags)
	if err != nil {
		panic("a list of strings does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// TakeEntries returns the first of the entries that fit into a query's bounds.
func TakeEntries(entries []events.Entry, q journal.StorageQuery) []events.Entry {
	q = WithDefaults(q)
	size := 0
	for i, e := range entries {
		if size += journal.EntryBytes(e); i > 0 && (i >= q.Limit || size > q.MaxBytes) {
			return entries[:i]
		}
	}
	return entries
}

package entrystore

import (
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/refusal"
)

// The error codes of requests about storage.
const (
	CodeBadEntry      = "bad_entry"
	CodeEntryNotFound = "entry_not_found"
)

// Row returns the row of storage. Its buckets are made for each agent.
func Row() row.Row {
	return row.Row{Name: "storage", Codes: map[string]refusal.Meaning{
		CodeBadEntry:      {Kinds: []refusal.Kind{refusal.Invalid}, Text: "The tags or the value of the entry are malformed, or the value is too large."},
		CodeEntryNotFound: {Kinds: []refusal.Kind{refusal.NotFound}, Text: "The storage has no entry with exactly these tags."},
	}}
}

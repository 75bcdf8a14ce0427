// Package row is the row of the history of runs.
package row

import (
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/refusal"
)

// CodeBadQuery is the error code.
const CodeBadQuery = "bad_query"

// Row returns the row.
func Row() row.Row {
	return row.Row{Name: "history", Codes: map[string]refusal.Meaning{
		CodeBadQuery: {Kinds: []refusal.Kind{refusal.Invalid}, Text: "The query cannot be read: `position` is the first character of the wrong term, from 0, and `fields` are the fields that there are."},
	}}
}

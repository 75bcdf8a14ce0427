// Package row is the row of client tools.
package row

import (
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/refusal"
)

// The error codes.
const (
	CodeAlreadyAnswered = "already_answered"
	CodeCallDiffers     = "call_differs"
	CodeNotDelivered    = "not_delivered"
)

// Row returns the row.
func Row() row.Row {
	return row.Row{Name: "clienttools", Codes: map[string]refusal.Meaning{
		CodeAlreadyAnswered: {Kinds: []refusal.Kind{refusal.Conflict}, Text: "The call has another result already, in `result`; the first one counts."},
		CodeCallDiffers:     {Kinds: []refusal.Kind{refusal.Unprocessable}, Text: "The name or the parameters are not those of the call."},
		CodeNotDelivered:    {Kinds: []refusal.Kind{refusal.Conflict}, Text: "The call has not gone out: it waits for an approval, or for other calls of its reply."},
	}}
}

package launch

import (
	"fmt"
	"time"
)

// The codes of a [Refusal]. They are stable.
const (
	CodeAgentNotFound   = "agent_not_found"
	CodeBadAgent        = "bad_agent"
	CodeBadApproval     = "bad_approval"
	CodeBadOutputSchema = "bad_output_schema"
	CodeBadToolSchema   = "bad_tool_schema"
	CodeBadEstimator    = "bad_token_estimator"
	CodeUnknownProvider = "unknown_provider"
	CodeUnknownTool     = "unknown_tool"
	CodeAmbiguousTool   = "ambiguous_tool"
	CodeTooLarge        = "too_large"
	CodeUnsettled       = "announcements_pending"
)

// Kind says whose fault a [Refusal] is.
type Kind int

// The kinds: a definition that is not one, one that is none of what is stored, one
// that cannot be used here and now, one that does not fit into an event, and one that
// needs what is about to be announced again.
const (
	Malformed Kind = iota + 1
	NotFound
	Unusable
	TooLarge
	Unsettled
)

// Refusal is a run that cannot be opened as it was asked for, whatever the bus
// does; one that is [Unsettled] can a little later.
type Refusal struct {
	Kind Kind
	// Code is stable snake_case, Message says what to do about it.
	Code, Message string
	// Fields name what it is about, such as tool; may be nil.
	Fields map[string]any
	// RetryAfter is when to ask again, where that is of use.
	RetryAfter time.Duration

	// missing is what nobody announces, as a key of the catalog; may be empty.
	missing string
	cause   error
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Unwrap returns what it came from, if anything.
func (r *Refusal) Unwrap() error { return r.cause }

func refuse(kind Kind, code, format string, args ...any) *Refusal {
	return &Refusal{Kind: kind, Code: code, Message: fmt.Sprintf(format, args...)}
}

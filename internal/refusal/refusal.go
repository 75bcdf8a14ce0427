// Package refusal is the error for a request that cannot be carried out: a kind, a stable
// code, and a message that says what to do.
//
// The HTTP server maps kinds to statuses in one place. Everything else uses the code.
package refusal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Kind is the class of an [Error].
type Kind int

// The kinds. Invalid is for a malformed request, Unprocessable for a well-formed one that
// cannot be carried out now, Conflict for one that the state of the run does not allow.
// Unavailable and Internal are not the caller's fault.
const (
	Invalid Kind = iota + 1
	Unauthorized
	Forbidden
	NotFound
	WrongMethod
	Conflict
	TooLarge
	WrongMedia
	Unprocessable
	TooMany
	Internal
	Unavailable
)

// The codes of an [Error]. They are stable.
const (
	CodeAgentNotFound    = "agent_not_found"
	CodeAlreadyDecided   = "already_decided"
	CodeAmbiguousTool    = "ambiguous_tool"
	CodeAnswerNeeded     = "answer_needed"
	CodeApprovalExpired  = "approval_expired"
	CodeBadAgent         = "bad_agent"
	CodeBadApproval      = "bad_approval"
	CodeBadDecision      = "bad_decision"
	CodeBadEstimator     = "bad_token_estimator"
	CodeBadInput         = "bad_input"
	CodeBadKey           = "bad_idempotency_key"
	CodeBadNamespace     = "bad_namespace"
	CodeBadOutputSchema  = "bad_output_schema"
	CodeBadParameter     = "bad_parameter"
	CodeBadPatch         = "bad_patch"
	CodeBadRequest       = "bad_request"
	CodeBadRunID         = "bad_run_id"
	CodeBadToolSchema    = "bad_tool_schema"
	CodeBlacklisted      = "blacklisted"
	CodeBudgetExhausted  = "budget_exhausted"
	CodeNoPrice          = "no_price"
	CodeConflict         = "conflict"
	CodeDiskFull         = "disk_full"
	CodeEmptyTask        = "empty_task"
	CodeForbidden        = "forbidden"
	CodeInternal         = "internal"
	CodeInterrupted      = "interrupted"
	CodeInvalidArguments = "invalid_arguments"
	CodeKeyReused        = "idempotency_key_reused"
	CodeMethodNotAllowed = "method_not_allowed"
	CodeNoContent        = "no_content"
	CodeNoPlanner        = "no_planner"
	CodeNoRequest        = "no_request"
	CodeNotFound         = "not_found"
	CodeNotPaused        = "not_paused"
	CodeNotWaiting       = "not_waiting"
	CodeNotYours         = "not_yours"
	CodeNothingPending   = "nothing_pending"
	CodeObsolete         = "obsolete"
	CodeApprovalOpen     = "approval_open"
	CodeParentGone       = "parent_gone"
	CodePaused           = "paused"
	CodeRunEnded         = "run_ended"
	CodeRunExists        = "run_exists"
	CodeRunNotFound      = "run_not_found"
	CodeRunPoisoned      = "run_poisoned"
	CodeRunPurged        = "run_purged"
	CodeStoreFull        = "store_full"
	CodeThreadNotFound   = "thread_not_found"
	CodeTooLarge         = "too_large"
	CodeTooManyQueued    = "too_many_queued"
	CodeTooManyForks     = "too_many_forks"
	CodeTooManyLabels    = "too_many_labels"
	CodeTooManyStreams   = "too_many_streams"
	CodeToolsChanged     = "tools_changed"
	CodeTurnOpen         = "turn_open"
	CodeUnauthorized     = "unauthorized"
	CodeUnavailable      = "unavailable"
	CodeUnknownCall      = "unknown_call"
	CodeUnknownProvider  = "unknown_provider"
	CodeUnknownRef       = "unknown_ref"
	CodeUnknownTool      = "unknown_tool"
	CodeUnsupportedMedia = "unsupported_media_type"

	// Those of A2A alone. In upper case they are the reasons that the protocol names.
	CodeContentType        = "content_type_not_supported"
	CodeNotCancelable      = "task_not_cancelable"
	CodeNotDead            = "not_dead"
	CodeTaskNotFound       = "task_not_found"
	CodeUnsupported        = "unsupported_operation"
	CodeVersionUnsupported = "version_not_supported"

	// CodePending is for a tool or provider whose announcement is being renewed, or on which
	// the actors of a pool do not agree: the same request may succeed a little later.
	CodePending = "announcements_pending"
	// CodeUnknownTable is for a run with a transition table that this program does not
	// have. The fields run and table_hash name both.
	CodeUnknownTable = "unknown_table"
)

// Error is a refused request. Its JSON is {code, message} and the fields.
type Error struct {
	Kind Kind
	// Code is stable snake_case. Message says what to do.
	Code, Message string
	// Fields are further keys of the JSON, such as run. May be nil.
	Fields map[string]any
	// RetryAfter is when the same request may succeed; 0: unknown.
	RetryAfter time.Duration
	// Cause is the wrapped error; may be nil.
	Cause error
}

// New returns a refusal without fields.
func New(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap is [New] with a cause.
func Wrap(cause error, kind Kind, code, format string, args ...any) *Error {
	e := New(kind, code, format, args...)
	e.Cause = cause
	return e
}

// Fault returns an Internal error. The formatted reason is its cause, which the server logs.
func Fault(format string, args ...any) *Error {
	return Wrap(fmt.Errorf(format, args...), Internal, CodeInternal, "the gateway failed; its log has the reason")
}

// With sets the fields and returns e.
func (e *Error) With(fields map[string]any) *Error {
	e.Fields = fields
	return e
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// MarshalJSON writes code, message and the fields.
func (e *Error) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	maps.Copy(all, e.Fields)
	all["code"], all["message"] = e.Code, e.Message
	return json.Marshal(all)
}

// Is reports whether err is a refusal with one of the codes.
func Is(err error, codes ...string) bool {
	var e *Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}

package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The codes of an [Error]. They are stable.
const (
	CodeBadRequest       = "bad_request"
	CodeBadParameter     = "bad_parameter"
	CodeBadNamespace     = "bad_namespace"
	CodeBadRunID         = "bad_run_id"
	CodeBadAgent         = launch.CodeBadAgent
	CodeBadInput         = "bad_input"
	CodeEmptyTask        = "empty_task"
	CodeUnauthorized     = "unauthorized"
	CodeForbidden        = "forbidden"
	CodeNotFound         = "not_found"
	CodeRunNotFound      = "run_not_found"
	CodeAgentNotFound    = launch.CodeAgentNotFound
	CodeMethodNotAllowed = "method_not_allowed"
	CodeRunExists        = "run_exists"
	CodeRunEnded         = "run_ended"
	CodeRunPurged        = "run_purged"
	CodeNotWaiting       = "not_waiting"
	CodeNotPaused        = "not_paused"
	CodeNotYours         = "not_yours"
	CodeConflict         = "conflict"
	CodeTooLarge         = launch.CodeTooLarge
	CodeUnsupportedMedia = "unsupported_media_type"
	CodeUnknownTool      = launch.CodeUnknownTool
	CodeAmbiguousTool    = launch.CodeAmbiguousTool
	CodeUnknownProvider  = launch.CodeUnknownProvider
	CodeUnknownCall      = "unknown_call"
	CodeBadOutputSchema  = launch.CodeBadOutputSchema
	CodeBadToolSchema    = launch.CodeBadToolSchema
	CodeBadApproval      = launch.CodeBadApproval
	CodeBadEstimator     = launch.CodeBadEstimator
	CodeUnavailable      = "unavailable"
	CodeUnsettled        = launch.CodeUnsettled
	CodeDiskFull         = "disk_full"
	CodeStoreFull        = "store_full"
	CodeInternal         = "internal"
)

// Error is a request that failed. Over HTTP it is {code, message} and its
// fields beside them.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code is stable snake_case, Message says what to do about it.
	Code, Message string
	// Fields are further keys of the answer, such as run; may be nil.
	Fields map[string]any
	// RetryAfter is when the same request may do better, for the header Retry-After; 0:
	// a second where the status is 503, else it is not said.
	RetryAfter time.Duration

	cause error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns what it came from, if anything.
func (e *Error) Unwrap() error { return e.cause }

// MarshalJSON writes code, message and the fields.
func (e *Error) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	maps.Copy(all, e.Fields)
	all["code"], all["message"] = e.Code, e.Message
	return json.Marshal(all)
}

func fault(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

func badRequest(code, format string, args ...any) *Error {
	return fault(http.StatusBadRequest, code, format, args...)
}

func unprocessable(code, format string, args ...any) *Error {
	return fault(http.StatusUnprocessableEntity, code, format, args...)
}

func conflict(code, format string, args ...any) *Error {
	return fault(http.StatusConflict, code, format, args...)
}

func notFound(code, format string, args ...any) *Error {
	return fault(http.StatusNotFound, code, format, args...)
}

func noRun(id string) *Error {
	return notFound(CodeRunNotFound, "there is no run %q in this namespace", id)
}

// ended is the conflict with a run that takes nothing more.
func ended(mem *reducer.Memory) *Error {
	e := conflict(CodeRunEnded, "the run has ended in state %s and takes nothing more", mem.State)
	e.Fields = map[string]any{"run": mem.RunID, "state": mem.State, "n": mem.N}
	return e
}

// asError is the one place where other packages' errors become the caller's or
// the gateway's own.
func asError(err error) *Error {
	var known *Error
	var draft *runlog.DraftError
	var document *strict.Error
	var orphan *runlog.ParentGoneError
	var foreign *reducer.TableError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &orphan):
		return wrap(err, http.StatusConflict, CodeParentGone, "%s; without it the run cannot be read", err.Error())
	case errors.As(err, &foreign):
		e := wrap(err, http.StatusConflict, CodeUnknownTable, "%s", err.Error())
		e.Fields = map[string]any{"run": foreign.Run, "table_hash": foreign.Table}
		return e
	case errors.As(err, &document):
		return badRequest(CodeBadRequest, "%s", err.Error())
	case errors.Is(err, agentfile.ErrTooLarge):
		return wrap(err, http.StatusRequestEntityTooLarge, CodeTooLarge, "the definition is %s", err.Error())
	case errors.Is(err, journal.ErrTooLarge):
		return wrap(err, http.StatusRequestEntityTooLarge, CodeTooLarge, "the event would be larger than %d KiB, the most that the log takes", journal.MaxBody>>10)
	case errors.Is(err, journal.ErrInDoubt):
		code := CodeUnavailable
		if errors.Is(err, journal.ErrFull) {
			code = fullCode(err)
		}
		return wrap(err, http.StatusServiceUnavailable, code, "it may or may not be stored, so look before you send it again: %s", err.Error())
	case errors.Is(err, journal.ErrFull):
		return wrap(err, http.StatusServiceUnavailable, fullCode(err), "nothing was stored: %s", err.Error())
	case errors.As(err, &draft):
		return wrap(err, http.StatusConflict, CodeConflict, "the run's state does not allow it: %s", err.Error())
	case errors.Is(err, errInternal):
		return wrap(err, http.StatusInternalServerError, CodeInternal, "the gateway failed; its log has the reason")
	}
	// All else comes from the bus, whose failures have many types and pass.
	return wrap(err, http.StatusServiceUnavailable, CodeUnavailable, "the bus did not answer as it should; try again, and look at /readyz: %s", err.Error())
}

// fullCode is the code of a journal.ErrFull.
func fullCode(err error) string {
	if errors.Is(err, journal.ErrDiskFull) {
		return CodeDiskFull
	}
	return CodeStoreFull
}

// errInternal marks what is the gateway's own fault.
var errInternal = errors.New("internal")

func wrap(cause error, status int, code, format string, args ...any) *Error {
	e := fault(status, code, format, args...)
	e.cause = cause
	return e
}

// checkNamespace returns the namespace to use for the one given.
func (g *Gateway) checkNamespace(ns string) (string, error) {
	if ns == "" {
		return g.cfg.DefaultNamespace, nil
	}
	if !events.ValidToken(ns) {
		return "", badRequest(CodeBadNamespace, "namespace %q is not [a-z0-9][a-z0-9_-]{0,62}", ns)
	}
	return ns, nil
}

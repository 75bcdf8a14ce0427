package a2a

import (
	"net/http"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/refusal"
)

// ownCodes are the protocol's own.
var ownCodes = []string{refusal.CodeTaskNotFound, refusal.CodeNotCancelable, refusal.CodeUnsupported, refusal.CodeContentType, refusal.CodeVersionUnsupported}

// names are the canonical names of statuses, as google.rpc.Code has them.
var names = map[refusal.Kind]string{
	refusal.Invalid: "INVALID_ARGUMENT", refusal.Unauthorized: "UNAUTHENTICATED", refusal.Forbidden: "PERMISSION_DENIED",
	refusal.NotFound: "NOT_FOUND", refusal.WrongMethod: "UNIMPLEMENTED", refusal.Conflict: "FAILED_PRECONDITION",
	refusal.TooLarge: "INVALID_ARGUMENT", refusal.WrongMedia: "INVALID_ARGUMENT", refusal.Unprocessable: "FAILED_PRECONDITION",
	refusal.TooMany: "RESOURCE_EXHAUSTED", refusal.Internal: "INTERNAL", refusal.Unavailable: "UNAVAILABLE",
}

// failure is google.rpc.Status.
type failure struct {
	Error failureBody `json:"error"`
}

type failureBody struct {
	Code    int         `json:"code"`
	Status  string      `json:"status"`
	Message string      `json:"message"`
	Details []errorInfo `json:"details"`
}

// errorInfo is google.rpc.ErrorInfo.
type errorInfo struct {
	Type     string            `json:"@type"`
	Reason   string            `json:"reason"`
	Domain   string            `json:"domain"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// errorMedia is the media type of errors. The protocol prefers its own type, but a2a-go reads an
// error only if it comes as plain JSON, and every other client reads both.
const errorMedia = "application/json"

// reasons are the names that clients know for refusals which are not the protocol's own.
var reasons = map[refusal.Kind]string{refusal.Unauthorized: "UNAUTHENTICATED", refusal.Forbidden: "UNAUTHORIZED", refusal.Invalid: "INVALID_PARAMS"}

// writeError answers a failed request as the protocol does. Refusals that are not the protocol's
// keep their code, in the metadata.
func writeError(w http.ResponseWriter, e *refusal.Error, status int) {
	body := failureBody{Code: status, Status: names[e.Kind], Message: e.Message, Details: []errorInfo{infoOf(e)}}
	if slices.Contains(ownCodes, e.Code) && e.Code != refusal.CodeTaskNotFound && e.Code != refusal.CodeContentType {
		body.Status = names[refusal.Conflict]
	}
	_ = write(w, status, errorMedia, failure{body}) // it holds nothing that JSON cannot
}

// infoOf says which refusal it is.
func infoOf(e *refusal.Error) errorInfo {
	info := errorInfo{Type: "type.googleapis.com/google.rpc.ErrorInfo", Domain: "a2a-protocol.org", Reason: strings.ToUpper(e.Code)}
	switch {
	case e.Code == refusal.CodeRunNotFound, e.Code == refusal.CodeRunPurged:
		info.Reason = strings.ToUpper(refusal.CodeTaskNotFound)
	case slices.Contains(ownCodes, e.Code):
	case reasons[e.Kind] != "":
		info.Reason, info.Metadata = reasons[e.Kind], map[string]string{"code": e.Code}
	default:
		info.Domain = "moorebus"
	}
	if run, ok := e.Fields["run"].(string); ok {
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata["taskId"] = run
	}
	return info
}

func badRequest(format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Invalid, refusal.CodeBadRequest, format, args...)
}

func taskNotFound(id string) error {
	return refusal.New(refusal.NotFound, refusal.CodeTaskNotFound, "the agent has no task %.100q", id)
}

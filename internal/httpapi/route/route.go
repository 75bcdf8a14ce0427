// Package route describes the requests of the HTTP API, one [Route] for each, and reads them.
package route

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	clienttools "github.com/moorebus/moorebus/internal/feature/clienttools/row"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/refusal"
)

// Route is one request that the HTTP API answers. From the routes the server registers the
// handlers and writes their description.
type Route struct {
	// Pattern is method and path, as [http.ServeMux] takes them: "GET /v1/runs/{id}".
	Pattern string
	Handle  Endpoint
	// Summary says in one sentence what the request does.
	Summary string
	// Query are the parameters of the query, Headers those in headers.
	Query, Headers []Parameter
	// Body and Answer are values of the Go types of the request's body and of the answer, or
	// JSON Schemas (*jsonschema.Schema of google/jsonschema-go, whose Title names it); nil:
	// none, or as Streams says.
	Body, Answer any
	// Example is a body that the documents show; empty: none.
	Example string
	// Bodies are further media types of the body, besides JSON. OptionalBody is true where
	// the body may be omitted, OpenBody where unknown keys of it are ignored.
	Bodies                 []string
	OptionalBody, OpenBody bool
	// Status is that of a successful answer; 0 is 200.
	Status int
	// Streams are the media types of an answer that is a stream. Events are the kinds of
	// server-sent events in it, with what they hold.
	Streams []string
	Events  []Parameter
	// Codes are the error codes that this request can have, besides those that follow from
	// the rest of the row: see package openapi.
	Codes []string
	// Open requests need no token.
	Open bool
	// Failure says how a request that failed is answered. Nil: with {code, message}.
	Failure *Failure
	// Media is the media type of Answer; empty: application/json.
	Media string
	// Refuses says that every request is refused, for the reason that Codes has.
	Refuses bool
}

// Failure is the form that errors have in a protocol. Write answers with the status of the
// refusal, in the media type Media. Body is a value of the body's Go type.
type Failure struct {
	Write func(w http.ResponseWriter, e *refusal.Error, status int)
	Body  any
	Media string
}

// Parameter is a parameter of a request, or a kind of server-sent event.
type Parameter struct{ Name, Description string }

// Values of bodies that have several forms.
type (
	// AgentOrName is the name of a stored agent, or a definition.
	AgentOrName any
	// Content is a text, or a list of parts.
	Content any
)

// Error codes of several requests: RunCodes of those about a run, ChangeCodes of those that append
// to its log, AgentCodes of those that define an agent, PinCodes of those that pin its tools,
// InputCodes and DecisionCodes of those that post inputs and decisions.
var (
	RunCodes    = []string{refusal.CodeBadNamespace, refusal.CodeRunNotFound, refusal.CodeRunPurged, refusal.CodeParentGone, refusal.CodeUnknownTable}
	ChangeCodes = slices.Concat(RunCodes, []string{refusal.CodeRunEnded, refusal.CodeConflict, refusal.CodeTooLarge})
	AgentCodes  = []string{refusal.CodeBadNamespace, refusal.CodeBadAgent, refusal.CodeBadApproval, refusal.CodeBadEstimator, refusal.CodeBadOutputSchema, refusal.CodeBadToolSchema}
	PinCodes    = slices.Concat(AgentCodes, []string{
		refusal.CodeAmbiguousTool, refusal.CodePending, refusal.CodeUnknownProvider,
		refusal.CodeUnknownTool, refusal.CodeUnknownRef, refusal.CodeEmptyTask, refusal.CodeBadRunID, refusal.CodeRunExists, refusal.CodeRunPurged, refusal.CodeConflict,
		refusal.CodeTooManyQueued, refusal.CodeBudgetExhausted, refusal.CodeNoPrice, refusal.CodeTooManyLabels,
	})
	InputCodes = slices.Concat(ChangeCodes, []string{
		refusal.CodeBadInput, refusal.CodeNotYours, refusal.CodeUnknownCall, refusal.CodeUnknownRef,
		clienttools.CodeAlreadyAnswered, clienttools.CodeCallDiffers, clienttools.CodeNotDelivered,
		refusal.CodeNoContent, refusal.CodeNoPlanner, refusal.CodeNothingPending, refusal.CodeObsolete, refusal.CodePaused,
	})
	DecisionCodes = slices.Concat(ChangeCodes, []string{
		refusal.CodeBadDecision, refusal.CodeUnknownCall, refusal.CodeNotWaiting, refusal.CodeAlreadyDecided, refusal.CodeApprovalExpired,
		refusal.CodeAnswerNeeded, refusal.CodeUnknownTool, refusal.CodeBlacklisted, refusal.CodeInvalidArguments, refusal.CodeBadToolSchema,
	})
)

// statuses are the HTTP statuses of refusals.
var statuses = map[refusal.Kind]int{
	refusal.Invalid:       http.StatusBadRequest,
	refusal.Unauthorized:  http.StatusUnauthorized,
	refusal.Forbidden:     http.StatusForbidden,
	refusal.NotFound:      http.StatusNotFound,
	refusal.WrongMethod:   http.StatusMethodNotAllowed,
	refusal.Conflict:      http.StatusConflict,
	refusal.TooLarge:      http.StatusRequestEntityTooLarge,
	refusal.WrongMedia:    http.StatusUnsupportedMediaType,
	refusal.Unprocessable: http.StatusUnprocessableEntity,
	refusal.TooMany:       http.StatusTooManyRequests,
	refusal.Internal:      http.StatusInternalServerError,
	refusal.Unavailable:   http.StatusServiceUnavailable,
}

// StatusOf returns the HTTP status of a refusal.
func StatusOf(kind refusal.Kind) int { return statuses[kind] }

// Face is a part of the HTTP API. Its event streams are of those that it is given.
type Face interface {
	Routes(streams *sse.Streams) []Route
}

// Endpoint answers a request. An error becomes the answer.
type Endpoint func(w http.ResponseWriter, r *http.Request) error

const (
	// maxBody is the size limit of a request's body, in bytes.
	maxBody         = 1 << 20
	bodyTimeout     = 30 * time.Second
	namespaceHeader = "Moorebus-Namespace"
)

// Request is a request whose answer is JSON.
type Request struct {
	*http.Request
	W http.ResponseWriter
}

// Namespace returns the namespace that a request names; empty: the default one.
func Namespace(r *http.Request) string { return r.Header.Get(namespaceHeader) }

// Body reads the body, with limits for size and time.
func (r *Request) Body() ([]byte, error) {
	control := http.NewResponseController(r.W)
	// A server without deadlines has its own limits.
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body := r.Request.Body
	if _, own := r.W.(*ownAnswer); !own {
		body = http.MaxBytesReader(r.W, body, maxBody)
	}
	data, err := io.ReadAll(body)
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, refusal.New(refusal.TooLarge, refusal.CodeTooLarge, "the body is larger than %d bytes", large.Limit)
	}
	if err != nil {
		return nil, refusal.Wrap(err, refusal.Invalid, refusal.CodeBadRequest, "the body could not be read completely: %s", err.Error())
	}
	_ = control.SetReadDeadline(time.Time{})
	return data, nil
}

// Node reads the body as one JSON value. The error is a refusal.
func (r *Request) Node() (*strict.Node, error) {
	data, err := r.Body()
	if err != nil {
		return nil, err
	}
	return strict.ParseJSON(data)
}

// DecodeObject decodes a JSON object into into. Unknown keys are errors.
func DecodeObject(node *strict.Node, into any) error {
	if node.Kind != strict.Object {
		return BadRequest("the body is %s, want a JSON object", node.Kind)
	}
	return strict.Decode(node, into)
}

// Parameters returns the query's values. It refuses unknown keys and keys that are given twice.
func Parameters(r *http.Request, known ...string) (map[string]string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, BadParameter("the query cannot be read: %s", err.Error())
	}
	for key, values := range query {
		if slices.ContainsFunc(append(values, key), func(text string) bool { return !utf8.ValidString(text) }) {
			return nil, BadParameter("the query is not valid UTF-8")
		}
	}
	values := map[string]string{}
	for key, all := range query {
		switch {
		case !slices.Contains(known, key) && len(known) == 0:
			return nil, BadParameter("%.100q: unknown parameter; there are: none", key)
		case !slices.Contains(known, key):
			return nil, BadParameter("%.100q: unknown parameter; there are: %s", key, strings.Join(known, ", "))
		case len(all) > 1:
			return nil, BadParameter("%s: is given twice", key)
		}
		values[key] = all[0]
	}
	return values, nil
}

// Number parses a parameter that is a number from 1. missing is the default.
func Number(values map[string]string, key string, missing uint64) (uint64, error) {
	text, given := values[key]
	if !given {
		return missing, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, BadParameter("%s: %.100q is not a number from 1", key, text)
	}
	return n, nil
}

// BadRequest is the refusal of a body.
func BadRequest(format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Invalid, refusal.CodeBadRequest, format, args...)
}

// BadParameter is the refusal of a parameter of the query.
func BadParameter(format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Invalid, refusal.CodeBadParameter, format, args...)
}

// WriteJSON writes an answer. The error is that of a value that JSON cannot hold.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return refusal.Fault("answer: %w", err)
	}
	return writeText(w, status, data)
}

// writeText writes JSON.
func writeText(w http.ResponseWriter, status int, data []byte) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // a client that is gone needs no error
	return nil
}

// KindOf returns the kind of refusal that a status stands for: [refusal.Internal] where none has it.
func KindOf(status int) refusal.Kind {
	for kind, s := range statuses {
		if s == status {
			return kind
		}
	}
	if status >= http.StatusBadGateway {
		return refusal.Unavailable
	}
	return refusal.Internal
}

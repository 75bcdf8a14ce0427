package httpapi

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// maxBody is the size limit of a request's body, in bytes.
	maxBody         = 1 << 20
	bodyTimeout     = 30 * time.Second
	namespaceHeader = "Moorebus-Namespace"
)

type request struct {
	*http.Request
	w http.ResponseWriter
}

func namespace(r *http.Request) string { return r.Header.Get(namespaceHeader) }

func (r *request) namespace() string { return namespace(r.Request) }
func (r *request) id() string        { return r.PathValue("id") }

// body reads the body, with limits for size and time.
func (r *request) body() ([]byte, error) {
	control := http.NewResponseController(r.w)
	// A server without deadlines has its own limits.
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	data, err := io.ReadAll(http.MaxBytesReader(r.w, r.Body, maxBody))
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

func (r *request) node() (*strict.Node, error) {
	data, err := r.body()
	if err != nil {
		return nil, err
	}
	return strict.ParseJSON(data)
}

// object reads the body as one JSON object into into.
func (r *request) object(into any) error {
	node, err := r.node()
	if err != nil {
		return err
	}
	return decodeObject(node, into)
}

// optionalObject is object for a body that may be empty.
func (r *request) optionalObject(into any) error {
	data, err := r.body()
	if err != nil || len(strings.TrimSpace(string(data))) == 0 {
		return err
	}
	node, err := strict.ParseJSON(data)
	if err != nil {
		return err
	}
	return decodeObject(node, into)
}

func decodeObject(node *strict.Node, into any) error {
	if node.Kind != strict.Object {
		return badRequest("the body is %s, want a JSON object", node.Kind)
	}
	return strict.Decode(node, into)
}

// parameters returns the query's values. It refuses unknown keys and keys that are given twice.
func parameters(r *http.Request, known ...string) (map[string]string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badParameter("the query cannot be read: %s", err.Error())
	}
	for key, values := range query {
		if slices.ContainsFunc(append(values, key), func(text string) bool { return !utf8.ValidString(text) }) {
			return nil, badParameter("the query is not valid UTF-8")
		}
	}
	values := map[string]string{}
	for key, all := range query {
		switch {
		case !slices.Contains(known, key) && len(known) == 0:
			return nil, badParameter("%.100q: unknown parameter; there are: none", key)
		case !slices.Contains(known, key):
			return nil, badParameter("%.100q: unknown parameter; there are: %s", key, strings.Join(known, ", "))
		case len(all) > 1:
			return nil, badParameter("%s: is given twice", key)
		}
		values[key] = all[0]
	}
	return values, nil
}

// number parses a parameter that is a number from 1. missing is the default.
func number(values map[string]string, key string, missing uint64) (uint64, error) {
	text, given := values[key]
	if !given {
		return missing, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, badParameter("%s: %.100q is not a number from 1", key, text)
	}
	return n, nil
}

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

// refusalOf turns errors of the log, the bus and the document readers into refusals. It is the
// only place that does.
func refusalOf(err error) *refusal.Error {
	var known *refusal.Error
	var draft *runlog.DraftError
	var document *strict.Error
	var parentGone *runlog.ParentGoneError
	var unknownTable *reducer.TableError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &parentGone):
		return refusal.Wrap(err, refusal.Conflict, refusal.CodeParentGone, "%s; without it the run cannot be read", err.Error())
	case errors.As(err, &unknownTable):
		return refusal.Wrap(err, refusal.Conflict, refusal.CodeUnknownTable, "%s", err.Error()).
			With(map[string]any{"run": unknownTable.Run, "table_hash": unknownTable.Table})
	case errors.As(err, &document):
		return badRequest("%s", err.Error())
	case errors.Is(err, agentfile.ErrTooLarge):
		return refusal.Wrap(err, refusal.TooLarge, refusal.CodeTooLarge, "the definition is %s", err.Error())
	case errors.Is(err, journal.ErrTooLarge):
		return refusal.Wrap(err, refusal.TooLarge, refusal.CodeTooLarge, "the event would be larger than %d KiB, the limit of the log", journal.MaxBody>>10)
	case errors.Is(err, journal.ErrUnknownOutcome):
		return refusal.Wrap(err, refusal.Unavailable, unavailableCode(err), "it may or may not be stored; check before you send it again: %s", err.Error())
	case errors.Is(err, journal.ErrFull):
		return refusal.Wrap(err, refusal.Unavailable, unavailableCode(err), "nothing was stored: %s", err.Error())
	case errors.As(err, &draft):
		return refusal.Wrap(err, refusal.Conflict, refusal.CodeConflict, "the run's state does not allow it: %s", err.Error())
	}
	// Everything else is a failure of the bus, which can pass.
	return refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable, "the bus failed; try again, and see /readyz: %s", err.Error())
}

func unavailableCode(err error) string {
	switch {
	case errors.Is(err, journal.ErrDiskFull):
		return refusal.CodeDiskFull
	case errors.Is(err, journal.ErrFull):
		return refusal.CodeStoreFull
	}
	return refusal.CodeUnavailable
}

func badRequest(format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Invalid, refusal.CodeBadRequest, format, args...)
}

func badParameter(format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Invalid, refusal.CodeBadParameter, format, args...)
}

func writeError(w http.ResponseWriter, e *refusal.Error) {
	after := e.RetryAfter
	if after <= 0 && e.Kind == refusal.Unavailable {
		after = time.Second
	}
	if after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	_ = writeJSON(w, statuses[e.Kind], e) // a client that is gone needs no error
}

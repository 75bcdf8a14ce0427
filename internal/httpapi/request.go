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

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/refusal"
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

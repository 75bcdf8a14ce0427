// Package openapitest checks the answers of a server in a test against the server's OpenAPI
// description.
package openapitest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Transport is an [http.RoundTripper] whose requests are for servers of Moorebus. It checks
// each answer: its status, its media type, its error code, and its keys if it is JSON; and of a
// request that succeeds the body. A stream is not read. It is safe for concurrent use.
type Transport struct {
	// Base makes the requests. Required.
	Base http.RoundTripper
	// Fail is told what an answer has that the description has not. Required. It may be
	// called by several goroutines.
	Fail func(format string, args ...any)

	mu    sync.Mutex
	known map[string]*description
}

// RoundTrip makes a request and checks its answer.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.Base.RoundTrip(r)
	if err != nil {
		return res, err
	}
	d, err := t.describe(r)
	if err == nil && d != nil {
		err = d.check(r, res)
	}
	if err != nil {
		t.Fail("%s %s: the answer %s is not as /openapi.json describes it: %s", r.Method, r.URL.Path, res.Status, err)
	}
	return res, nil
}

// describe returns the description of the server, or nil while the server has none since it
// waits for its bus or ends.
func (t *Transport) describe(r *http.Request) (*description, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.known[r.URL.Host]; d != nil {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Minute)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.URL.Host+"/openapi.json", nil)
	if err != nil {
		return nil, err
	}
	res, err := t.Base.RoundTrip(ask)
	if err != nil {
		return nil, nil // it is ending
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode == http.StatusServiceUnavailable {
		return nil, nil
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /openapi.json: %s %s", res.Status, text)
	}
	d, err := readOnce(text)
	if err == nil {
		if t.known == nil {
			t.known = map[string]*description{}
		}
		t.known[r.URL.Host] = d
	}
	return d, err
}

// description is an OpenAPI document, and the patterns of its operations.
type description struct {
	mux *http.ServeMux
	ops map[string]operation

	mu sync.Mutex
	// schemas has the document, and each schema that it compiled.
	schemas *jsonschema.Compiler
}

// operation is one of a document. at is the place in the document, as a JSON pointer.
type operation struct {
	*openapi3.Operation
	at string
}

// location is where the compiler is told that the document is. Nothing is fetched.
const location = "https://moorebus.invalid/openapi.json"

// read documents by their text: most tests of a process have the same.
var (
	reading sync.Mutex
	done    = map[string]*description{}
)

func readOnce(text []byte) (*description, error) {
	reading.Lock()
	defer reading.Unlock()
	if d := done[string(text)]; d != nil {
		return d, nil
	}
	d, err := read(text)
	if err == nil {
		done[string(text)] = d
	}
	return d, err
}

func read(text []byte) (*description, error) {
	var raw map[string]any
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, err
	}
	closeObjects(raw, "")
	schemas := jsonschema.NewCompiler()
	schemas.DefaultDraft(jsonschema.Draft2020)
	schemas.AssertFormat()
	if err := schemas.AddResource(location, raw); err != nil {
		return nil, err
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	d := &description{mux: http.NewServeMux(), ops: map[string]operation{}, schemas: schemas}
	for at, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			pattern := method + " " + strings.TrimSuffix(at, "/")
			if at == "/" {
				pattern = method + " /{$}"
			}
			d.mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
			d.ops[pattern] = operation{op, pointer("paths", at, strings.ToLower(method))}
		}
	}
	return d, nil
}

// pointer is a JSON pointer as the fragment of a URL.
func pointer(keys ...string) string {
	var b strings.Builder
	for _, key := range keys {
		b.WriteString("/" + url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(key)))
	}
	return b.String()
}

// validate checks a body against the schema of what the document has at a pointer. A schema is
// compiled once for all bodies, which takes much longer than to check one.
func (d *description) validate(at string, body []byte) error {
	d.mu.Lock()
	schema, err := d.schemas.Compile(location + "#" + at + pointer("content", "application/json", "schema"))
	d.mu.Unlock()
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// closeObjects refuses keys that an object's schema does not name. Later versions may add some,
// so the document allows them, but this one must name what it answers. Errors have further
// keys.
func closeObjects(v any, name string) {
	switch v := v.(type) {
	case []any:
		for _, inner := range v {
			closeObjects(inner, "")
		}
	case map[string]any:
		for key, inner := range v {
			closeObjects(inner, key)
		}
		kind, _ := json.Marshal(v["type"])
		if v["properties"] != nil && bytes.Contains(kind, []byte(`"object"`)) && v["additionalProperties"] == nil && name != "Error" {
			v["additionalProperties"] = false
		}
	}
}

// check returns what an answer has that is not described. The body can still be read.
func (d *description) check(r *http.Request, res *http.Response) error {
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	var body []byte
	if media == "application/json" && r.Method != http.MethodHead {
		var err error
		body, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
		res.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
		if err != nil {
			return nil // the reader sees it
		}
	}
	_, pattern := d.mux.Handler(r)
	if path.Clean(r.URL.Path) != r.URL.Path {
		pattern = "" // the server has nothing there, and does not redirect
	}
	op, there := d.ops[pattern]
	switch {
	case !there || r.Method == http.MethodHead:
		// The router's own answers.
		if allowed := []int{400, 403, 404, 405, 503}; !there && !slices.Contains(allowed, res.StatusCode) {
			return fmt.Errorf("no operation has this path and method")
		}
		return nil
	case op.Responses.Status(res.StatusCode) == nil:
		return fmt.Errorf("the operation lacks this status: %.300s", body)
	}
	described := op.Responses.Status(res.StatusCode).Value
	if len(described.Content) > 0 && described.Content[media] == nil {
		return fmt.Errorf("the operation lacks the media type %q", media)
	}
	if body == nil || len(described.Content) == 0 {
		return nil
	}
	if err := d.validate(op.at+pointer("responses", strconv.Itoa(res.StatusCode)), body); err != nil {
		return fmt.Errorf("%w\n%.2000s", err, body)
	}
	return d.checkRequest(r, res, op)
}

// failing is the end of a body that was read.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// checkRequest returns why the body of a request that succeeded is not described.
func (d *description) checkRequest(r *http.Request, res *http.Response, op operation) error {
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if res.StatusCode >= 300 || r.GetBody == nil || media != "" && media != "application/json" {
		return nil
	}
	reader, err := r.GetBody()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(reader)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return err
	}
	switch {
	case !json.Valid(text):
		return nil // YAML
	case op.RequestBody == nil:
		return fmt.Errorf("the operation has no body; %.300s was accepted", text)
	}
	if err := d.validate(op.at+pointer("requestBody"), text); err != nil {
		return fmt.Errorf("the body was accepted: %w\n%.2000s", err, text)
	}
	return nil
}

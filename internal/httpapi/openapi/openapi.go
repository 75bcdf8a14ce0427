// Package openapi writes the description of the HTTP API, as an OpenAPI 3.1 document and as
// Markdown, of the rows that also register the handlers.
//
// Error codes that follow from a row need not be in it: those of every request (forbidden,
// internal, unavailable), of requests that need a token (unauthorized), of those with a query
// (bad_parameter) or a body (bad_request, too_large), and of all that store something
// (disk_full, store_full).
package openapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/docschema"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// The parts of an OpenAPI document.
type (
	document struct {
		OpenAPI    string                           `json:"openapi"`
		Info       map[string]string                `json:"info"`
		Servers    []map[string]string              `json:"servers"`
		Security   []map[string][]string            `json:"security"`
		Paths      map[string]map[string]*operation `json:"paths"`
		Components components                       `json:"components"`
	}
	components struct {
		Schemas         map[string]*jsonschema.Schema `json:"schemas"`
		SecuritySchemes map[string]map[string]string  `json:"securitySchemes"`
	}
	operation struct {
		ID         string                 `json:"operationId"`
		Summary    string                 `json:"summary"`
		Security   *[]map[string][]string `json:"security,omitempty"`
		Parameters []parameter            `json:"parameters,omitempty"`
		Body       *body                  `json:"requestBody,omitempty"`
		Responses  map[string]*response   `json:"responses"`
	}
	parameter struct {
		Name        string             `json:"name"`
		In          string             `json:"in"`
		Required    bool               `json:"required,omitempty"`
		Description string             `json:"description,omitempty"`
		Schema      *jsonschema.Schema `json:"schema"`
	}
	body struct {
		Required bool             `json:"required,omitempty"`
		Content  map[string]media `json:"content"`
	}
	response struct {
		Description string           `json:"description"`
		Content     map[string]media `json:"content,omitempty"`
		// Events are the server-sent events of a stream.
		Events []event `json:"x-events,omitempty"`
		// Codes are the error codes of an error that has no key for them.
		Codes []string `json:"x-codes,omitempty"`
	}
	event struct {
		Event       string `json:"event"`
		Description string `json:"description"`
	}
	media struct {
		Schema  *jsonschema.Schema `json:"schema"`
		Example json.RawMessage    `json:"example,omitempty"`
	}
)

// numbers are the parameters of queries that are numbers from 1.
var numbers = []string{"at", "from", "limit", "to"}

// documents are those that the process made, by the patterns of their rows: gateways with the
// same faces have the same rows.
var documents sync.Map

// Document returns the OpenAPI document of the rows, which the caller must not change. The error
// names a row that lacks what the document needs.
func Document(rows []route.Route) ([]byte, error) {
	var key strings.Builder
	for _, row := range rows {
		key.WriteString(row.Pattern + "\n")
	}
	if made, ok := documents.Load(key.String()); ok {
		return made.([]byte), nil
	}
	made, err := write(rows)
	if err == nil {
		documents.Store(key.String(), made)
	}
	return made, err
}

func write(rows []route.Route) ([]byte, error) {
	agent, err := docschema.Agent()
	if err != nil {
		return nil, err
	}
	w := &writer{types: map[string]reflect.Type{}, doc: document{
		OpenAPI:  "3.1.0",
		Info:     map[string]string{"title": "Moorebus", "version": buildinfo.Read().Version, "description": "Runs of LLM agents as event logs. An error is {code, message} with a stable code."},
		Servers:  []map[string]string{{"url": "/", "description": "The gateway that served this document."}},
		Security: []map[string][]string{{"token": {}}, {}},
		Paths:    map[string]map[string]*operation{},
		Components: components{
			Schemas:         map[string]*jsonschema.Schema{"Agent": agent, "Error": errorSchema()},
			SecuritySchemes: map[string]map[string]string{"token": {"type": "http", "scheme": "bearer"}},
		},
	}}
	for _, row := range rows {
		if err := w.add(row); err != nil {
			return nil, fmt.Errorf("route %q: %w", row.Pattern, err)
		}
	}
	return json.MarshalIndent(w.doc, "", " ")
}

func errorSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "object", Required: []string{"code", "message"}, PropertyOrder: []string{"code", "message"},
		Description: "A refused request. Some codes have further keys, such as the run and its state.",
		Properties: map[string]*jsonschema.Schema{
			"code":    {Type: "string", Pattern: "^[a-z]+(_[a-z0-9]+)*$", Description: "Stable."},
			"message": {Type: "string", Description: "Says what to do."},
		},
	}
}

// writer collects the parts of a document. types are the Go types of its schemas by name.
type writer struct {
	doc   document
	types map[string]reflect.Type
}

func (w *writer) add(row route.Route) error {
	method, path, found := strings.Cut(row.Pattern, " ")
	if row.Summary == "" || !found {
		return fmt.Errorf("the row has no Summary or no method; say in one sentence what the request does")
	}
	path = strings.TrimSuffix(strings.ReplaceAll(path, "...}", "}"), "{$}")
	op := &operation{ID: operationID(method, path), Summary: row.Summary, Responses: map[string]*response{}}
	if row.Open {
		op.Security = &[]map[string][]string{}
	}
	codes, err := Codes(row)
	if err != nil {
		return err
	}
	op.Parameters = parameters(row, path, slices.Contains(codes, refusal.CodeBadNamespace))
	if row.Body != nil {
		if op.Body, err = w.body(row); err != nil {
			return err
		}
	}
	if err := w.answer(op, row); err != nil {
		return err
	}
	for _, code := range codes {
		for _, kind := range rows.Meanings()[code].Kinds {
			if err := w.refuse(op, row, route.StatusOf(kind), code); err != nil {
				return err
			}
		}
	}
	if w.doc.Paths[path] == nil {
		w.doc.Paths[path] = map[string]*operation{}
	}
	w.doc.Paths[path][strings.ToLower(method)] = op
	return nil
}

// Codes returns every error code that a row's request can have, sorted.
func Codes(row route.Route) ([]string, error) {
	codes := append([]string{refusal.CodeForbidden, refusal.CodeInternal, refusal.CodeUnavailable}, row.Codes...)
	if !row.Open {
		codes = append(codes, refusal.CodeUnauthorized)
	}
	if row.Query != nil {
		codes = append(codes, refusal.CodeBadParameter)
	}
	if row.Body != nil {
		codes = append(codes, refusal.CodeBadRequest, refusal.CodeTooLarge)
	}
	if !strings.HasPrefix(row.Pattern, http.MethodGet+" ") {
		codes = append(codes, refusal.CodeDiskFull, refusal.CodeStoreFull)
	}
	slices.Sort(codes)
	codes = slices.Compact(codes)
	known := rows.Meanings()
	for _, code := range codes {
		if _, is := known[code]; !is {
			return nil, fmt.Errorf("the code %q is unknown; add it to internal/refusal/codes.go", code)
		}
	}
	return codes, nil
}

func parameters(row route.Route, path string, namespace bool) []parameter {
	text := func() *jsonschema.Schema { return &jsonschema.Schema{Type: "string"} }
	var all []parameter
	for _, part := range strings.Split(path, "/") {
		if inner, is := strings.CutPrefix(part, "{"); is {
			name, _, _ := strings.Cut(inner, "}")
			all = append(all, parameter{Name: name, In: "path", Required: true, Schema: text()})
		}
	}
	for _, p := range row.Query {
		schema := text()
		if slices.Contains(numbers, p.Name) {
			schema = &jsonschema.Schema{Type: "integer", Minimum: jsonschema.Ptr(1.0)}
		}
		all = append(all, parameter{Name: p.Name, In: "query", Description: p.Description, Schema: schema})
	}
	for _, p := range row.Headers {
		all = append(all, parameter{Name: p.Name, In: "header", Description: p.Description, Schema: text()})
	}
	if namespace {
		all = append(all, parameter{Name: "Moorebus-Namespace", In: "header", Description: "The namespace. Default: the gateway's.", Schema: text()})
	}
	return all
}

func (w *writer) body(row route.Route) (*body, error) {
	var further *jsonschema.Schema
	if row.OpenBody {
		further = &jsonschema.Schema{}
	}
	schema, err := w.schema(row.Body, row.OpenBody, further)
	if err != nil {
		return nil, err
	}
	m := media{Schema: schema, Example: json.RawMessage(row.Example)}
	b := &body{Required: !row.OptionalBody, Content: map[string]media{}}
	for _, kind := range append([]string{jsonMedia}, row.Bodies...) {
		b.Content[kind] = m
	}
	return b, nil
}

// answer adds the successful answers.
func (w *writer) answer(op *operation, row route.Route) error {
	if row.Refuses { // generators of clients want a success of every operation
		op.Responses["200"] = &response{Description: "Never: every request is refused."}
		return nil
	}
	ok := &response{Description: "Success.", Content: map[string]media{}}
	if row.Answer != nil {
		schema, err := w.schema(row.Answer, true, nil)
		if err != nil {
			return err
		}
		ok.Content[cmp.Or(row.Media, jsonMedia)] = media{Schema: schema}
	}
	for _, kind := range row.Streams {
		ok.Content[kind] = media{Schema: &jsonschema.Schema{Type: "string"}}
	}
	for _, e := range row.Events {
		ok.Events = append(ok.Events, event{e.Name, e.Description})
	}
	if len(ok.Content) == 0 {
		return fmt.Errorf("the row has neither an Answer nor Streams")
	}
	op.Responses[strconv.Itoa(max(row.Status, http.StatusOK))] = ok
	// The stream of one run, or of a thread, has an end.
	if slices.Contains(row.Streams, "text/event-stream") && strings.HasPrefix(row.Pattern, http.MethodGet) && strings.Contains(row.Pattern, "{") {
		op.Responses["204"] = &response{Description: "The stream has ended, and the client has all of it."}
	}
	return nil
}

// refuse adds an error code to the answers of a row's operation.
func (w *writer) refuse(op *operation, row route.Route, status int, code string) error {
	key := strconv.Itoa(status)
	r := op.Responses[key]
	// The gateway forbids a request before it looks for its row.
	own := row.Failure != nil && code != refusal.CodeForbidden
	if r == nil {
		r = &response{Content: map[string]media{}}
		op.Responses[key] = r
		if own {
			schema, err := w.schema(row.Failure.Body, true, nil)
			if err != nil {
				return err
			}
			r.Content[row.Failure.Media] = media{Schema: schema}
		} else {
			r.Content[jsonMedia] = media{Schema: &jsonschema.Schema{AllOf: []*jsonschema.Schema{
				{Ref: componentRef + "Error"}, {Properties: map[string]*jsonschema.Schema{"code": {}}},
			}}}
		}
	}
	r.Description = strings.TrimPrefix(r.Description+", `"+code+"`", ", ")
	if own {
		r.Codes = append(r.Codes, code)
		return nil
	}
	enum := r.Content[jsonMedia].Schema.AllOf[1].Properties["code"]
	enum.Enum = append(enum.Enum, code)
	return nil
}

const jsonMedia = "application/json"

const componentRef = "#/components/schemas/"

// schema returns the schema of a Go value: a reference where its type has a name. Answers may
// get further keys in later versions; bodies have no others, unless they are open:
// then further is the schema of those.
func (w *writer) schema(v any, open bool, further *jsonschema.Schema) (*jsonschema.Schema, error) {
	part, err := docschema.Of(events.Part{}, nil)
	if err != nil {
		return nil, err
	}
	agent, text := &jsonschema.Schema{Ref: componentRef + "Agent"}, &jsonschema.Schema{Type: "string"}
	s, err := docschema.Of(v, map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[events.Agent]():      agent,
		reflect.TypeFor[route.AgentOrName](): {AnyOf: []*jsonschema.Schema{text, agent}},
		reflect.TypeFor[route.Base64]():      {Type: "string", ContentEncoding: "base64"},
		reflect.TypeFor[route.Content]():     {AnyOf: []*jsonschema.Schema{text, {Type: "array", Items: part}}},
	})
	if err != nil {
		return nil, err
	}
	if open {
		docschema.Open(s, further)
		s.Types = slices.DeleteFunc(s.Types, func(t string) bool { return t == "null" }) // no answer or body is null
	}
	t := reflect.TypeOf(v)
	name := s.Title
	if t.Kind() == reflect.Struct && t.Name() != "" && s.Ref == "" {
		name = strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
	}
	if name == "" {
		return s, nil
	}
	if of, taken := w.types[name]; taken && of != t || name == "Error" || name == "Agent" {
		parts := strings.Split(t.PkgPath(), "/")
		last := parts[len(parts)-1]
		name = strings.ToUpper(last[:1]) + last[1:] + name
	}
	w.types[name] = t
	w.doc.Components.Schemas[name] = s
	return &jsonschema.Schema{Ref: componentRef + name}, nil
}

// operationID names an operation after its method and path: getRunsIdEvents.
func operationID(method, path string) string {
	words := strings.FieldsFunc(strings.TrimPrefix(path, "/v1"), func(r rune) bool { return strings.ContainsRune("/{}.:-_", r) })
	id := strings.ToLower(method)
	for _, word := range words {
		id += strings.ToUpper(word[:1]) + word[1:]
	}
	return id
}

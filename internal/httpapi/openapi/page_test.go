package openapi_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

var update = flag.Bool("update", false, "write docs/http-api.md anew")

// The parts of the document that the page shows.
type (
	document struct {
		Info       map[string]string
		Servers    []map[string]string
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]*object }
	}
	operation struct {
		Summary    string
		Security   *[]any
		Parameters []struct{ Name, In, Description string }
		Body       *struct {
			Required bool
			Content  map[string]content
		} `json:"requestBody"`
		Responses map[string]struct {
			Content map[string]content
			Events  []struct{ Event, Description string } `json:"x-events"`
			Codes   []any                                 `json:"x-codes"`
		}
	}
	content struct {
		Schema  *object
		Example json.RawMessage
	}
	object struct {
		Ref         string `json:"$ref"`
		Type        any
		Description string
		Properties  ordered
		Required    []string
		Items       *object
		AnyOf       []*object
		AllOf       []*object
		Enum        []any
		Additional  any `json:"additionalProperties"`
	}
)

// UnmarshalJSON also reads the schemas true and false.
func (s *object) UnmarshalJSON(data []byte) error {
	type plain object
	if string(data) == "true" || string(data) == "false" {
		return nil
	}
	return json.Unmarshal(data, (*plain)(s))
}

// ordered are properties in the order of the document.
type ordered []struct {
	name   string
	schema *object
}

func (o *ordered) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(strings.NewReader(string(data)))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		s := new(object)
		if err := d.Decode(s); err != nil {
			return err
		}
		*o = append(*o, struct {
			name   string
			schema *object
		}{key.(string), s})
	}
	return nil
}

// served returns the description that a host with all faces serves.
func served(t *testing.T) document {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tools, err := toolset.New()
	require.NoError(t, err)
	h, err := host.New(host.Options{Bus: simtest.New(simtest.Options{}), Tools: tools, Providers: map[string]llm.Caller{"mock": scripted.NewMock()}, Listener: listener})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	res, err := http.Get("http://" + listener.Addr().String() + "/openapi.json")
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s: TestDocument says why", text)
	var d document
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// The document says where its server is, which build wrote it, and what each request answers.
func TestDocumentIsComplete(t *testing.T) {
	d := served(t)
	require.Equal(t, "/", d.Servers[0]["url"])
	require.Equal(t, buildinfo.Read().Version, d.Info["version"])
	for path, operations := range d.Paths {
		for method, op := range operations {
			succeeds := false
			for status := range op.Responses {
				succeeds = succeeds || status[0] == '2'
			}
			require.True(t, succeeds, "%s %s", method, path)
		}
	}
}

// TestPage compares docs/http-api.md with what is served.
func TestPage(t *testing.T) {
	d := served(t)
	var b strings.Builder
	b.WriteString("# HTTP API\n\n<!-- written by go test ./internal/httpapi/openapi -update -->\n\n" +
		"Every request of the API, with its error codes. A gateway serves the same as an OpenAPI 3.1 document at `/openapi.json`. " +
		"[HTTP](reference/http.md) explains what the requests have in common: tokens, namespaces, errors, streams, inputs, images.\n\n" +
		"`?` marks keys and bodies that are optional. Answers may get further keys in later versions. Besides its own errors, any request can have 401 `unauthorized`, unless it needs no token, 403 `forbidden`, 500 `internal` and 503 `unavailable`.\n")
	codes := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			writeOperation(&b, strings.ToUpper(method)+" "+path, d.Paths[path][method], codes)
		}
	}
	b.WriteString("\n## Bodies and answers\n")
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		s := d.Components.Schemas[name]
		fmt.Fprintf(&b, "\n### %s\n\n", name)
		if name == "Agent" {
			b.WriteString("An agent definition: [all keys](files.md#agent-definitions).\n")
			continue
		}
		if s.Description != "" {
			b.WriteString(s.Description + "\n\n")
		}
		if s.Items != nil {
			b.WriteString("A list. Each entry is one of:\n\n")
			for _, option := range s.Items.AnyOf {
				// Of the spellings, the one in kebab case.
				types := option.Properties[0].schema.Enum
				kebab := slices.IndexFunc(types, func(v any) bool { return strings.Contains(v.(string), "-") })
				fmt.Fprintf(&b, "- `%v`: %s\n", types[kebab], option.kind())
			}
			continue
		}
		b.WriteString("| key | type | meaning |\n|---|---|---|\n")
		for _, p := range s.Properties {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.name+optional(slices.Contains(s.Required, p.name)), p.schema.kind(), p.schema.Description)
		}
	}
	b.WriteString("\n## Error codes\n\nAny other path is 404 `not_found`, and any other method 405 `method_not_allowed`.\n\n| code | meaning |\n|---|---|\n")
	codes[refusal.CodeNotFound], codes[refusal.CodeMethodNotAllowed] = true, true
	for code, meaning := range rows.Meanings() {
		require.True(t, codes[code], "no request lists the code %s (%s): add it to the rows that answer it", code, meaning.Text)
	}
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", code, rows.Meanings()[code].Text)
	}
	const file = "../../../docs/http-api.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
		return
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(text), "run go test ./internal/httpapi/openapi -update")
}

// everywhere are the codes that any request can have.
var everywhere = []string{refusal.CodeUnauthorized, refusal.CodeForbidden, refusal.CodeInternal, refusal.CodeUnavailable}

func optional(required bool) string {
	if required {
		return ""
	}
	return "?"
}

func writeOperation(b *strings.Builder, name string, op operation, codes map[string]bool) {
	fmt.Fprintf(b, "\n## `%s`\n\n%s", name, op.Summary)
	if op.Security != nil {
		b.WriteString(" It needs no token.")
	}
	b.WriteString("\n\n")
	for _, p := range op.Parameters {
		if p.Description != "" {
			fmt.Fprintf(b, "- %s `%s`: %s\n", map[string]string{"query": "Parameter", "header": "Header", "path": "Path"}[p.In], p.Name, p.Description)
		}
	}
	if op.Body != nil {
		for _, kind := range slices.Sorted(maps.Keys(op.Body.Content)) {
			fmt.Fprintf(b, "- Body%s: %s, `%s`\n", optional(op.Body.Required), op.Body.Content[kind].Schema.kind(), kind)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		if status >= "300" {
			continue
		}
		for _, kind := range slices.Sorted(maps.Keys(op.Responses[status].Content)) {
			fmt.Fprintf(b, "- Answer %s: %s`%s`\n", status, answerKind(op.Responses[status].Content[kind].Schema, kind), kind)
		}
		if status == "204" {
			b.WriteString("- Answer 204: the stream has ended, and the client has all of it\n")
		}
		for _, e := range op.Responses[status].Events {
			fmt.Fprintf(b, "  - `event: %s`: %s\n", e.Event, e.Description)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		if status < "300" {
			continue
		}
		var all []string
		listed := op.Responses[status].Codes
		if listed == nil {
			listed = op.Responses[status].Content["application/json"].Schema.AllOf[1].Properties[0].schema.Enum
		}
		for _, code := range listed {
			codes[code.(string)] = true
			if slices.Contains(everywhere, code.(string)) {
				continue
			}
			all = append(all, "`"+code.(string)+"`")
		}
		if all != nil {
			fmt.Fprintf(b, "- Error %s: %s\n", status, strings.Join(all, ", "))
		}
	}
	if op.Body != nil {
		if example := op.Body.Content["application/json"].Example; example != nil {
			var v any
			_ = json.Unmarshal(example, &v) // it is a part of a JSON document
			text, _ := json.Marshal(v)
			fmt.Fprintf(b, "\n```json\n%s\n```\n", text)
		}
	}
}

func answerKind(s *object, media string) string {
	if !strings.HasSuffix(media, "json") || strings.HasSuffix(media, "x-ndjson") {
		return ""
	}
	return s.kind() + ", "
}

// kind names a type, with a link to its table.
func (s *object) kind() string {
	var names []string
	types, _ := s.Type.([]any)
	for _, t := range append(types, s.Type) {
		name, is := t.(string)
		switch {
		case !is:
			continue
		case name == "array" && s.Items != nil:
			name = "list of " + s.Items.kind()
		case name == "object" && len(s.Properties) > 0:
			var keys []string
			for _, p := range s.Properties {
				keys = append(keys, p.name)
			}
			name = "{" + strings.Join(keys, ", ") + "}"
		}
		names = append(names, name)
	}
	for _, option := range s.AnyOf {
		names = append(names, option.kind())
	}
	if ref := strings.TrimPrefix(s.Ref, "#/components/schemas/"); ref != "" {
		names = append(names, "["+ref+"](#"+strings.ToLower(ref)+")")
	}
	if len(names) == 0 {
		return "any"
	}
	return strings.Join(names, " or ")
}

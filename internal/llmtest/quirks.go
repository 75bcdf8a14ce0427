package llmtest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

var update = flag.Bool("update-quirks", false, "write what comes out of the quirks into their files")

// RunQuirks plays recorded oddities of servers, one txtar file each, from the directory.
// Open makes a Caller of the server at the address; options is the file's section of that
// name, or nil. A file has these sections:
//
//	request   optional: JSON with the keys tools (names), output_schema, messages
//	options   optional: JSON for open
//	headers   optional: HTTP headers of the reply, and Status, Prefix (a quoted string that
//	          goes before the body) and Abort (the connection breaks after the body)
//	stream    the body for a request that asks for a stream
//	plain     the body for one that does not
//	want      what has to come out, see [outcome]; want-stream and want-plain where both differ
//
// Without stream or plain, that way is not asked. A reply that is refused or used without the
// chunks that belong to it fails. The flag -update-quirks writes want.
func RunQuirks(t *testing.T, dir string, open func(t *testing.T, url string, options json.RawMessage) llm.Caller) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			q := readQuirk(t, file)
			for _, way := range []string{"stream", "plain"} {
				if body, ok := q.sections[way]; ok {
					q.play(t, way, body, open)
				}
			}
			if *update {
				q.write(t)
			}
		})
	}
}

// quirk is one file.
type quirk struct {
	file     string
	archive  *txtar.Archive
	sections map[string][]byte
	got      map[string]string
}

func readQuirk(t *testing.T, file string) *quirk {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	require.NoError(t, err)
	q := &quirk{file: file, archive: archive, sections: map[string][]byte{}, got: map[string]string{}}
	for _, f := range archive.Files {
		switch f.Name {
		case "request", "options", "headers", "stream", "plain", "want", "want-stream", "want-plain":
		default:
			t.Fatalf("%s: there is no section %q", file, f.Name)
		}
		q.sections[f.Name] = f.Data
	}
	require.NotEmpty(t, bytes.TrimSpace(archive.Comment), "say what the quirk is")
	return q
}

func (q *quirk) play(t *testing.T, way string, body []byte, open func(*testing.T, string, json.RawMessage) llm.Caller) {
	t.Helper()
	server := &quirkServer{header: q.header(t), body: body}
	listening := httptest.NewServer(server)
	defer listening.Close()
	caller := open(t, listening.URL, q.sections["options"])
	var o outcome
	var stream func(llm.Chunk)
	if way == "stream" {
		stream = o.heard.add
	}
	o.res, o.err = caller.Call(t.Context(), q.request(t), stream)
	require.NotEmpty(t, server.bodies)
	o.requests = len(server.bodies)
	o.check(t, server.bodies[0], stream != nil)
	q.got[way] = o.String()
	want, ok := q.sections["want-"+way]
	if !ok {
		want = q.sections["want"]
	}
	if !*update {
		require.Equal(t, string(want), q.got[way], way)
	}
}

// write puts what came out into the file.
func (q *quirk) write(t *testing.T) {
	t.Helper()
	kept := q.archive.Files[:0]
	for _, f := range q.archive.Files {
		if !strings.HasPrefix(f.Name, "want") {
			kept = append(kept, f)
		}
	}
	stream, streamed := q.got["stream"]
	plain, asked := q.got["plain"]
	switch {
	case streamed && asked && stream != plain:
		kept = append(kept, txtar.File{Name: "want-stream", Data: []byte(stream)}, txtar.File{Name: "want-plain", Data: []byte(plain)})
	default:
		kept = append(kept, txtar.File{Name: "want", Data: []byte(max(stream, plain))})
	}
	q.archive.Files = kept
	require.NoError(t, os.WriteFile(q.file, txtar.Format(q.archive), 0o600))
}

func (q *quirk) header(t *testing.T) textproto.MIMEHeader {
	t.Helper()
	lines := append(bytes.TrimSpace(q.sections["headers"]), "\n\n"...)
	header, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(lines))).ReadMIMEHeader()
	require.NoError(t, err)
	return header
}

func (q *quirk) request(t *testing.T) llm.Request {
	t.Helper()
	req := Request(0)
	raw, ok := q.sections["request"]
	if !ok {
		return req
	}
	var change struct {
		Tools        *[]string       `json:"tools"`
		OutputSchema json.RawMessage `json:"output_schema"`
		Messages     []llm.Message   `json:"messages"`
	}
	require.NoError(t, codec.Strict(raw, &change))
	if change.Tools != nil {
		req.Tools = nil
		for _, name := range *change.Tools {
			req.Tools = append(req.Tools, llm.Tool{Name: name, Schema: []byte(`{"type":"object"}`)})
		}
	}
	req.OutputSchema = change.OutputSchema
	req.Messages = append(req.Messages, change.Messages...)
	return req
}

// quirkServer answers every request in the same way.
type quirkServer struct {
	header textproto.MIMEHeader
	body   []byte
	mu     sync.Mutex
	bodies [][]byte
}

func (s *quirkServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, err := io.ReadAll(r.Body)
	if err != nil {
		return // nobody is there any more
	}
	s.mu.Lock()
	s.bodies = append(s.bodies, asked)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if bytes.Contains(asked, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	status, prefix := http.StatusOK, ""
	for name, values := range s.header {
		switch name {
		case "Status":
			status, err = strconv.Atoi(values[0])
		case "Prefix":
			prefix, err = strconv.Unquote(values[0])
		case "Abort":
		default:
			w.Header()[name] = values
		}
		if err != nil {
			panic(fmt.Sprintf("the header %s of the file: %v", name, err))
		}
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, prefix)
	_, _ = w.Write(s.body)
	if s.header.Get("Abort") != "" {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// outcome is what came out of a call.
type outcome struct {
	res      llm.Response
	err      error
	heard    heard
	requests int
}

// check requires what holds for every quirk.
func (o *outcome) check(t *testing.T, sent []byte, streamed bool) {
	t.Helper()
	sum := sha256.Sum256(sent)
	digest := hex.EncodeToString(sum[:])
	if o.err != nil {
		var e *llm.Error
		require.ErrorAs(t, o.err, &e)
		if e.Reply != nil {
			require.Equal(t, digest, e.Reply.RequestSHA256)
		}
		return
	}
	require.Equal(t, digest, o.res.About().RequestSHA256)
	if !streamed {
		return
	}
	text, calls := content(o.res)
	require.Equal(t, text, o.heard.text.String())
	var reasoning strings.Builder
	for _, p := range o.res.About().Reasoning {
		reasoning.WriteString(p.Text)
	}
	require.Equal(t, reasoning.String(), o.heard.reasoning.String())
	for i, c := range calls {
		told := o.heard.calls[i]
		require.Equal(t, c.Name, told.Name)
		if told.Arguments != "" || c.Arguments != "{}" {
			require.Equal(t, c.Arguments, told.Arguments)
		}
	}
	require.LessOrEqual(t, len(o.heard.calls), len(calls))
}

// String writes the outcome: a line for each fact, in this order, those that say nothing
// omitted. Texts are Go strings.
//
//	text "Hello."                       or structured, tool_calls; a failure: error KIND "MESSAGE"
//	call ID NAME "ARGUMENTS"            each call
//	reasoning text|summary "…"          each part
//	reasoning opaque [ID] JSON
//	model NAME
//	finish FINISH "RAW"
//	usage input 1 output 2 cached 3 cost 0.5
//	billed input 1 output 2 cached 3    a failure's usage
//	retry after 7.5s
//	requests 2                          if it is not one
func (o *outcome) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	var meta *llm.Meta
	var e *llm.Error
	switch r := o.res.(type) {
	case llm.Text:
		line("text %q", r.Content)
	case llm.Structured:
		line("structured %q", r.Content)
	case llm.ToolCalls:
		line("tool_calls %q", r.Content)
		for _, c := range r.Calls {
			line("call %s %s %q", c.ID, c.Name, c.Arguments)
		}
	}
	if o.err == nil {
		about := o.res.About()
		meta = &about
	} else if errors.As(o.err, &e) {
		line("error %s %q", e.Kind, e.Message)
		meta = e.Reply
	}
	if meta != nil {
		describe(line, *meta)
	}
	if e != nil && e.Usage != nil {
		line("billed %s", describeUsage(*e.Usage))
	}
	if e != nil && e.RetryAfter != 0 {
		line("retry after %v", e.RetryAfter)
	}
	if o.requests != 1 {
		line("requests %d", o.requests)
	}
	return b.String()
}

func describe(line func(string, ...any), m llm.Meta) {
	for _, p := range m.Reasoning {
		switch {
		case p.Kind != events.ReasoningOpaque:
			line("reasoning %s %q", p.Kind, p.Text)
		case p.ID != "":
			line("reasoning %s %s %s", p.Kind, p.ID, p.Data)
		default:
			line("reasoning %s %s", p.Kind, p.Data)
		}
	}
	if m.Model != "" {
		line("model %s", m.Model)
	}
	if m.Finish != "" || m.FinishRaw != "" {
		line("finish %s %q", m.Finish, m.FinishRaw)
	}
	if m.Usage != (llm.Usage{}) {
		line("usage %s", describeUsage(m.Usage))
	}
}

func describeUsage(u llm.Usage) string {
	text := fmt.Sprintf("input %d output %d cached %d", u.Input, u.Output, u.Cached)
	if u.CostUSD != nil {
		text += fmt.Sprintf(" cost %v", *u.CostUSD)
	}
	return text
}

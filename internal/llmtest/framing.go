package llmtest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// MaxWireBytes is the bound of a reply that the Callers of [RunWire] have to have.
const MaxWireBytes = 256 << 10

// wireSuite is one run of [RunWire].
type wireSuite struct {
	wire Wire
	open func(t *testing.T, url string) llm.Caller
}

// RunWire tests a Caller with everything that can happen to a reply on its way. The
// Callers that open makes ask the server at the address, and read at most
// [MaxWireBytes] of a reply. A reply is split at each byte.
func RunWire(t *testing.T, wire Wire, open func(t *testing.T, url string) llm.Caller) {
	t.Helper()
	s := wireSuite{wire, open}
	t.Run("ends of a reply", s.ends)
	t.Run("reasoning", s.reasoning)
	t.Run("split at each byte", s.split)
	t.Run("byte by byte", s.bytes)
	t.Run("framing", s.framing)
	t.Run("truncated", s.truncated)
	t.Run("error in the stream", s.errorInStream)
	t.Run("cancelled in the stream", s.cancelled)
	t.Run("endless", s.endless)
	t.Run("tool names", s.toolNames)
	t.Run("structured answers", s.structured)
}

// bothWays are a plain call and a streamed one.
func bothWays() map[string]func(llm.Chunk) {
	return map[string]func(llm.Chunk){"plain": nil, "streamed": func(llm.Chunk) {}}
}

func (s wireSuite) ends(t *testing.T) {
	half := llm.ToolCalls{Meta: meta(9, 4, 0), Content: "I look.", Calls: []llm.Call{{ID: "call_a", Name: "search", Arguments: `{"q":"x"}`}}}
	cutText := llm.Text{Meta: meta(9, 4, 0), Content: "as far as"}
	bare := llm.ToolCalls{Meta: meta(9, 4, 0), Calls: []llm.Call{{ID: "call_a", Name: "search"}}}
	wantHalf, wantText, wantBare := half, cutText, bare
	wantHalf.Finish, wantText.Finish = llm.FinishLength, llm.FinishLength
	wantRefusal := llm.Text{Meta: meta(9, 4, 0), Content: "I will not."}
	wantRefusal.Finish = llm.FinishRefusal
	wantBare.Calls = []llm.Call{{ID: "call_a", Name: "search", Arguments: "{}"}}
	refusal := llm.Text{Meta: meta(9, 4, 0), Content: "I will not."}
	for name, c := range map[string]struct {
		turn Turn
		want llm.Response
	}{
		"text that is cut":     {Turn{Reply: cutText, Finish: Cut}, wantText},
		"a call that is cut":   {Turn{Reply: half, Finish: Cut}, wantHalf},
		"a refusal":            {Turn{Reply: refusal, Finish: Refused}, wantRefusal},
		"a refusal with calls": {Turn{Reply: llm.ToolCalls{Meta: refusal.Meta, Content: refusal.Content, Calls: half.Calls}, Finish: Refused}, wantRefusal},
		"no arguments":         {Turn{Reply: bare}, wantBare},
	} {
		t.Run(name, func(t *testing.T) {
			for way, stream := range bothWays() {
				model := NewModel(s.wire, c.turn)
				got, err := s.open(t, model.Serve(t)).Call(t.Context(), Request(0), stream)
				require.NoError(t, err, way)
				Same(t, c.want, got, way)
				require.NotEmpty(t, got.About().FinishRaw, way)
				require.Len(t, model.Requests(), 1, way)
			}
		})
	}
	t.Run("half a call", s.halfACall)
	t.Run("a content filter", s.filtered)
}

// halfACall is shown by a stream alone.
func (s wireSuite) halfACall(t *testing.T) {
	model := NewModel(s.wire, Turn{Reply: llm.ToolCalls{Meta: meta(9, 4, 0), Calls: []llm.Call{{ID: "a", Name: "search", Arguments: `{"q":"x`}}}, Finish: Cut})
	got, err := s.open(t, model.Serve(t)).Call(t.Context(), Request(0), func(llm.Chunk) {})
	require.NoError(t, err)
	require.True(t, got.About().Cut())
	require.Equal(t, `{"q":"x`, got.(llm.ToolCalls).Calls[0].Arguments)
}

// filtered is a reply that a content filter cut off. It is billed all the same.
func (s wireSuite) filtered(t *testing.T) {
	for way, stream := range bothWays() {
		reply := llm.Text{Meta: meta(9, 4, 0), Content: "half"}
		turn := Turn{Reply: reply, Finish: Filtered}
		if s.wire.Name() == (Anthropic{}).Name() { // which refuses the request
			turn = Turn{Err: &llm.Error{Kind: llm.KindInvalid, Message: "Output blocked by content filtering policy"}}
		}
		got, err := s.open(t, NewModel(s.wire, turn).Serve(t)).Call(t.Context(), Request(0), stream)
		if turn.Err != nil {
			require.Equal(t, llm.KindInvalid, kindOf(t, err), way)
			continue
		}
		require.NoError(t, err, way)
		reply.Finish = llm.FinishContentFilter
		Same(t, reply, got, way)
	}
}

// reasoning before an answer and before calls is kept, and shown as it comes.
func (s wireSuite) reasoning(t *testing.T) {
	const thinking = "Größe first. 🙂\n"
	for name, reply := range map[string]llm.Response{"text": llm.Text{Meta: meta(9, 4, 0), Content: "yes"}, "calls": canonical().Reply} {
		for way, stream := range bothWays() {
			var h heard
			if stream != nil {
				stream = h.add
			}
			caller := s.open(t, NewModel(s.wire, Turn{Reply: reply, Thinking: thinking}).Serve(t))
			got, err := caller.Call(t.Context(), Request(0), stream)
			require.NoError(t, err, way)
			var kept strings.Builder
			for _, part := range got.About().Reasoning {
				kept.WriteString(part.Text)
			}
			require.Equal(t, thinking, kept.String(), "%s, %s", name, way)
			if stream != nil {
				require.Equal(t, thinking, h.reasoning.String(), name)
			}
		}
	}
}

func kindOf(t *testing.T, err error) llm.ErrorKind {
	t.Helper()
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	return e.Kind
}

// canonical is a reply with all that a stream can hold.
func canonical() Turn {
	return Turn{Reply: llm.ToolCalls{
		Meta: meta(30, 7, 16), Content: "Größe 🙂",
		Calls: []llm.Call{{ID: "call_a", Name: "search", Arguments: `{"q":"ü"}`}, {ID: "call_b", Name: "search", Arguments: `{"q":"🙂"}`}},
	}}
}

// script is a server that answers streamed requests with what serve writes and
// plain ones with the turn; it counts both.
type script struct {
	wire           Wire
	turn           Turn
	serve          func(w http.ResponseWriter, r *http.Request, events []string)
	streams, plain atomic.Int32
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	req, _ := s.wire.Read(body) // the suite's own requests can be read
	if !req.Stream {
		s.plain.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, s.wire.Plain(s.turn, req))
		return
	}
	s.streams.Add(1)
	w.Header().Set("Content-Type", "text/event-stream")
	s.serve(w, r, s.wire.Events(s.turn, req))
}

func (s wireSuite) script(t *testing.T, turn Turn, serve func(http.ResponseWriter, *http.Request, []string)) (*script, llm.Caller) {
	t.Helper()
	server := &script{wire: s.wire, turn: turn, serve: serve}
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	return server, s.open(t, listening.URL)
}

// heard collects what a stream tells.
type heard struct {
	text, reasoning strings.Builder
	calls           map[int]llm.Call
}

func (h *heard) add(c llm.Chunk) {
	switch c.Kind {
	case llm.ChunkText:
		h.text.WriteString(c.Text)
		return
	case llm.ChunkReasoning:
		h.reasoning.WriteString(c.Text)
		return
	}
	if h.calls == nil {
		h.calls = map[int]llm.Call{}
	}
	call := h.calls[c.Index]
	call.Name, call.Arguments = call.Name+c.Name, call.Arguments+c.Text
	h.calls[c.Index] = call
}

// whole asks for the canonical reply and requires it, out of one stream.
func (s wireSuite) whole(t *testing.T, server *script, caller llm.Caller) {
	t.Helper()
	streams := server.streams.Load()
	var h heard
	got, err := caller.Call(t.Context(), Request(0), h.add)
	require.NoError(t, err)
	want := canonical().Reply.(llm.ToolCalls)
	Same(t, want, got)
	require.Equal(t, want.Content, h.text.String())
	for i, c := range want.Calls {
		require.Equal(t, llm.Call{Name: c.Name, Arguments: c.Arguments}, h.calls[i])
	}
	require.Equal(t, streams+1, server.streams.Load())
	require.Zero(t, server.plain.Load(), "nothing is asked for twice")
}

func (s wireSuite) split(t *testing.T) {
	var at, length atomic.Int64
	server, caller := s.script(t, canonical(), func(w http.ResponseWriter, _ *http.Request, events []string) {
		text := strings.Join(events, "")
		length.Store(int64(len(text)))
		i := min(int(at.Load()), len(text))
		_, _ = io.WriteString(w, text[:i])
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, text[i:])
	})
	step := int64(1)
	if raced {
		step = 7 // no power of two, and no length of a field: most kinds of places are among them
	}
	for i := int64(0); i == 0 || i < length.Load(); i += step {
		at.Store(i)
		s.whole(t, server, caller)
	}
}

func (s wireSuite) bytes(t *testing.T) {
	server, caller := s.script(t, canonical(), func(w http.ResponseWriter, _ *http.Request, events []string) {
		for _, b := range []byte(strings.Join(events, "")) {
			_, _ = w.Write([]byte{b})
			_ = http.NewResponseController(w).Flush()
		}
	})
	s.whole(t, server, caller)
}

func (s wireSuite) framing(t *testing.T) {
	quiet := strings.Join(s.wire.Quiet(), "")
	for name, change := range map[string]func(string) string{
		"as it is":            func(text string) string { return text },
		"CRLF":                func(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") },
		"CR":                  func(text string) string { return strings.ReplaceAll(text, "\n", "\r") },
		"no space":            func(text string) string { return strings.ReplaceAll(text, "data: ", "data:") },
		"keep-alive":          func(text string) string { return strings.ReplaceAll(text, "\n\n", "\n\n"+quiet) },
		"keep-alive at first": func(text string) string { return strings.Repeat(quiet, 100) + text },
		"other fields":        func(text string) string { return strings.ReplaceAll(text, "data: ", "id: 7\nretry: 10\ndata: ") },
	} {
		t.Run(name, func(t *testing.T) {
			server, caller := s.script(t, canonical(), func(w http.ResponseWriter, _ *http.Request, events []string) {
				_, _ = io.WriteString(w, change(strings.Join(events, "")))
			})
			s.whole(t, server, caller)
		})
	}
	t.Run("without the event at its end", func(t *testing.T) {
		server, caller := s.script(t, canonical(), func(w http.ResponseWriter, _ *http.Request, events []string) {
			_, _ = io.WriteString(w, strings.Join(events[:len(events)-min(1, s.wire.After())], ""))
		})
		s.whole(t, server, caller)
	})
}

// truncated ends streams after each event, in order and with a broken connection. Such a
// reply is broken and nothing is asked again.
func (s wireSuite) truncated(t *testing.T) {
	var keep, total atomic.Int64
	var abort atomic.Bool
	server, caller := s.script(t, canonical(), func(w http.ResponseWriter, _ *http.Request, events []string) {
		total.Store(int64(len(events)))
		_, _ = io.WriteString(w, strings.Join(events[:min(int(keep.Load()), len(events))], ""))
		if abort.Load() {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	for n := int64(0); n == 0 || n < total.Load()-int64(s.wire.After()); n++ {
		for _, broken := range []bool{false, true} {
			keep.Store(n)
			abort.Store(broken)
			before := server.streams.Load()
			_, err := caller.Call(t.Context(), Request(0), func(llm.Chunk) {})
			require.Equal(t, llm.KindBroken, kindOf(t, err), "after %d events", n)
			require.Equal(t, before+1, server.streams.Load())
			require.Zero(t, server.plain.Load())
			var e *llm.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, n > 0, e.Reply != nil, "what came is told")
		}
	}
}

func (s wireSuite) errorInStream(t *testing.T) {
	for _, kind := range []llm.ErrorKind{llm.KindOverloaded, llm.KindRateLimited, llm.KindAuth, llm.KindInvalid} {
		for _, after := range []int{0, 1, 4} {
			server, caller := s.script(t, canonical(), func(w http.ResponseWriter, _ *http.Request, events []string) {
				_, _, stated := s.wire.Error(&llm.Error{Kind: kind, Message: "the provider's words"})
				_, _ = io.WriteString(w, strings.Join(events[:after], "")+stated)
			})
			_, err := caller.Call(t.Context(), Request(0), func(llm.Chunk) {})
			require.Equal(t, kind, kindOf(t, err))
			require.ErrorContains(t, err, "the provider's words")
			var e *llm.Error
			require.ErrorAs(t, err, &e)
			require.NotNil(t, e.Reply, "the status was one of success")
			require.NotEmpty(t, e.Reply.RequestSHA256)
			require.Zero(t, server.plain.Load(), "what the provider states is its answer")
		}
	}
}

// cancelled ends a call in the middle of its stream; the connection goes with it.
func (s wireSuite) cancelled(t *testing.T) {
	reached, gone := make(chan struct{}), make(chan struct{})
	server, caller := s.script(t, canonical(), func(w http.ResponseWriter, r *http.Request, events []string) {
		_, _ = io.WriteString(w, strings.Join(events[:5], ""))
		_ = http.NewResponseController(w).Flush()
		close(reached)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() {
		_, err := caller.Call(ctx, Request(0), func(llm.Chunk) {})
		result <- err
	}()
	<-reached
	cancel()
	late := time.After(patience)
	select {
	case err := <-result:
		require.Equal(t, context.Canceled, err)
	case <-late:
		t.Fatal("the call goes on after its context ended")
	}
	select {
	case <-gone:
	case <-late:
		t.Fatal("the request goes on after its context ended")
	}
	require.Zero(t, server.plain.Load())
}

// endless streams never end: with parts of a reply, and with signs of life.
func (s wireSuite) endless(t *testing.T) {
	for name, pick := range map[string]func(events []string) string{
		"parts": func(events []string) string { return events[6] },
		"quiet": func([]string) string { return strings.Join(s.wire.Quiet(), "") },
	} {
		t.Run(name, func(t *testing.T) {
			_, caller := s.script(t, canonical(), func(w http.ResponseWriter, r *http.Request, events []string) {
				_, _ = io.WriteString(w, strings.Join(events[:6], ""))
				flood := strings.Repeat(pick(events), 64)
				for r.Context().Err() == nil {
					if _, err := io.WriteString(w, flood); err != nil {
						return
					}
				}
			})
			_, err := caller.Call(t.Context(), Request(0), func(llm.Chunk) {})
			require.Equal(t, llm.KindOther, kindOf(t, err))
			require.ErrorContains(t, err, "larger than")
		})
	}
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// toolNames that no API accepts are mapped on the wire, in the offered tools, in the
// history and in the reply.
func (s wireSuite) toolNames(t *testing.T) {
	req := Request(0)
	req.Tools = append(req.Tools, llm.Tool{Name: "files.read"}, llm.Tool{Name: strings.Repeat("long.", 20)})
	req.Messages = append(req.Messages,
		llm.Message{Role: llm.RoleAssistant, Calls: []llm.Call{{ID: "a", Name: "files.read", Arguments: "{}"}, {ID: "b", Name: "gone.tool", Arguments: "{}"}}},
		llm.Message{Role: llm.RoleTool, CallID: "a", Name: "files.read", Content: "x"},
		llm.Message{Role: llm.RoleTool, CallID: "b", Name: "gone.tool", Content: "y"})
	names := llmhttp.NamesOf(req)
	want, onWire := someCalls(), someCalls()
	for i, name := range []string{"files.read", strings.Repeat("long.", 20), "unheard_of"} {
		want.Calls[i].Name, want.Calls[i].Arguments = name, "{}"
		onWire.Calls[i].Name, onWire.Calls[i].Arguments = names.Wire(name), "{}"
	}
	for way, stream := range bothWays() {
		var h heard
		if stream != nil {
			stream = h.add
		}
		model := NewModel(s.wire, Turn{}, Turn{Reply: onWire})
		got, err := s.open(t, model.Serve(t)).Call(t.Context(), req, stream)
		require.NoError(t, err, way)
		Same(t, want, got, way)
		if stream != nil {
			require.Equal(t, "files.read", h.calls[0].Name)
		}
		sent, err := s.wire.Read(model.Requests()[0])
		require.NoError(t, err)
		require.Contains(t, sent.Names, "files_read")
		require.Contains(t, sent.Names, "gone_tool")
		for _, name := range sent.Names {
			require.Regexp(t, goodName, name)
		}
	}
}

// structured answers come with tools beside and without, of schemas that are an
// object's and others.
func (s wireSuite) structured(t *testing.T) {
	for schema, answer := range map[string]string{
		`{"type":"object","properties":{"final_answer":{"type":"integer"}}}`: `{"final_answer": 42}`,
		`{"type":"array","items":{"type":"integer"}}`:                        `[1, 2]`,
	} {
		for _, tools := range []bool{true, false} {
			for way, stream := range bothWays() {
				req := Request(0)
				req.OutputSchema = []byte(schema)
				req.Tools[0].Name = "final_answer" // a name that a Caller may want to have
				if !tools {
					req.Tools = nil
				}
				want := llm.Structured{Meta: meta(12, 3, 0), Content: answer}
				sent := want
				if strings.HasPrefix(answer, "[") && s.wire.Name() == (Anthropic{}).Name() {
					sent.Content = `{"answer": ` + answer + `}` // a tool's input is an object
				}
				got, err := s.open(t, NewModel(s.wire, Turn{Reply: sent}).Serve(t)).Call(t.Context(), req, stream)
				require.NoError(t, err, way)
				Same(t, want, got, way)
			}
		}
	}
}

package llmhttp

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

// TestEvents reads streams as servers write them, whole and byte by byte.
func TestEvents(t *testing.T) {
	for name, c := range map[string]struct{ stream, want, outside string }{
		"as usual":              {"data: 1\n\ndata: 2\n\n", "1 2", ""},
		"CRLF":                  {"data: 1\r\n\r\ndata: 2\r\n\r\n", "1 2", ""},
		"no space":              {"data:1\n\ndata:2\n\n", "1 2", ""},
		"no empty lines":        {"data: 1\ndata: 2\n", "1 2", ""},
		"no end of the line":    {"data: 1\n\ndata: 2", "1 2", ""},
		"names":                 {"event: a\ndata: 1\n\ndata: 2\n\nevent: b\ndata: 3\n\n", "a=1 2 b=3", ""},
		"comments, other field": {": hi\n\nid: 7\nretry: 10\ndata: 1\n\n: ping\n\n", "1", ""},
		"JSON in two lines":     {"data: {\"a\":\ndata: 1}\n\ndata: 2\n\n", "{\"a\":\n1} 2", ""},
		"no JSON":               {"data: oops\n\ndata: 2\n\n", "oops 2", ""},
		"cut":                   {"data: 1\n\ndata: {\"a", "1 {\"a", ""},
		"the end":               {"data: [DONE]\n", "[DONE]", ""},
		"no event":              {"{\"error\":\n\"x\"}\n", "", `{"error":"x"}`},
		"nothing":               {"", "", ""},
	} {
		for _, body := range []io.Reader{strings.NewReader(c.stream), iotest.OneByteReader(strings.NewReader(c.stream))} {
			in := newEvents(body, 1000, func() {})
			var got []string
			e, err := in.next()
			for ; err == nil; e, err = in.next() {
				if e.Name != "" {
					e.Name += "="
				}
				got = append(got, e.Name+string(e.Data))
			}
			require.Equal(t, io.EOF, err, name)
			require.Equal(t, c.want, strings.Join(got, " "), name)
			require.Equal(t, c.outside, string(in.outside), name)
		}
	}
}

// A broken stream is an error that says what came of the reply. Nothing is asked again.
func TestBrokenStreams(t *testing.T) {
	half := "data: \"half\"\n\n"
	for name, serveStream := range map[string]http.HandlerFunc{
		"ends early":      script(half),
		"no valid event":  script(half + "data: 7\n\n"),
		"an error's name": script(half + "data: {\"error\":\"oops\"}\n\n"),
		"empty":           script(""),
		"reset": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, half)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		var asked atomic.Int32
		_, err := call(t.Context(), serve(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			serveStream(w, r)
		}, Options{}), true)
		e := wantError(t, err, llm.KindBroken)
		require.EqualValues(t, 1, asked.Load(), name)
		if name == "empty" {
			require.Nil(t, e.Reply, name)
			continue
		}
		require.Equal(t, &llm.Usage{Output: 4}, e.Usage, name)
		require.Equal(t, "m", e.Reply.Model, name)
		require.Equal(t, digestOf("stream"), e.Reply.RequestSHA256, name)
	}
}

func digestOf(body string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(body))) }

// What is neither a stream nor JSON is no server's of the API.
func TestPageInPlaceOfAStream(t *testing.T) {
	_, err := call(t.Context(), serve(t, script("Welcome"), Options{}), true)
	require.Contains(t, wantError(t, err, llm.KindOther).Message, `is the base URL right?): it holds no events and begins with "Welcome"`)
}

// A server that refuses to stream bills nothing, and is asked once more.
func TestServerThatRefusesToStream(t *testing.T) {
	var asked atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if !isStream(r) {
			_, _ = io.WriteString(w, "plain")
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"no streams","param":"stream_options","type":"invalid_request_error"}}`)
	}, Options{})
	res, err := c.Ask(t.Context(), exchange{}, func(llm.Chunk) {})
	require.NoError(t, err)
	require.EqualValues(t, 2, asked.Load())
	require.Equal(t, llm.Text{Meta: llm.Meta{Dialect: "openai", RequestSHA256: digestOf("stream")}, Content: "plain"}, res)
}

// What a server states in a stream, or answers to one in one piece, is its answer.
func TestServersThatAreNotAskedTwice(t *testing.T) {
	var asked atomic.Int32
	answer := func(contentType, body string) (string, error) {
		asked.Store(0)
		return call(t.Context(), serve(t, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, body)
		}, Options{}), true)
	}
	// The body says what it is, whatever its content type is.
	for _, contentType := range []string{"application/json; charset=utf-8", "text/event-stream", "text/plain"} {
		text, err := answer(contentType, "\ufeff\n {\"whole\":1}")
		require.NoError(t, err)
		require.Contains(t, text, "{\"whole\":1}")
		require.EqualValues(t, 1, asked.Load())
		text, err = answer(contentType, "\ufeff: hi\n\ndata: \"hello\"\n\ndata: \"END\"\n\n")
		require.NoError(t, err)
		require.Equal(t, "hello", text)
	}
	for _, body := range []string{
		"data: \"half\"\n\ndata: {\"error\":{\"message\":\"its words " + testKey + "\",\"code\":429}}\n\n",
		"data: \"half\"\n\n{\"error\":{\"message\":\"its words\",\"type\":\"rate_limit_error\"}}",
	} {
		_, err := answer("text/event-stream", body)
		require.Contains(t, wantError(t, err, llm.KindRateLimited).Message, "its words")
		require.EqualValues(t, 1, asked.Load())
	}
}

// What comes after a complete reply cannot break it.
func TestFaultsAfterTheReply(t *testing.T) {
	const reply = "data: \"hello\"\n\ndata: \"END\"\n\n"
	for _, after := range []string{"data: {\n\n", "data: 7\n\n", "data: [DONE]\n\ndata: \"more\"\n\n"} {
		text, err := call(t.Context(), serve(t, script(reply+after), Options{}), true)
		require.NoError(t, err, after)
		require.Equal(t, "hello", text, after)
	}
	// OpenRouter states errors after a finish_reason.
	_, err := call(t.Context(), serve(t, script(reply+"data: {\"error\":{\"message\":\"late\",\"code\":502}}\n\n"), Options{}), true)
	e := wantError(t, err, llm.KindOverloaded)
	require.Equal(t, "late", e.Message)
	require.Equal(t, &llm.Usage{Output: 5}, e.Usage)
}

// repeat is a body that never ends.
type repeat struct {
	piece string
	at    int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.piece[r.at:])
	r.at = (r.at + n) % len(r.piece)
	return n, nil
}

func (r *repeat) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(r), Request: req}, nil
}

func TestFloodIsCut(t *testing.T) {
	for name, piece := range map[string]string{"one line": "x", "comments": ": ping\n", "events": "data: \"more\"\n\n"} {
		c := open(t, "openai", Options{BaseURL: "http://flood.invalid", MaxBytes: 1 << 16, HTTPClient: &http.Client{Transport: &repeat{piece: piece}}})
		for _, streamed := range []bool{false, true} {
			_, err := call(t.Context(), c, streamed)
			e := wantError(t, err, llm.KindOther)
			require.Contains(t, e.Message, "larger than 65536 bytes", name)
			require.True(t, errors.Is(err, errTooLarge))
		}
	}
}

// reducible can do without one parameter.
type reducible struct {
	exchange
	param string
}

func (r *reducible) Without(param string) bool {
	ok := param == r.param
	r.param = ""
	return ok
}

func TestServerThatRefusesAParameter(t *testing.T) {
	for param, want := range map[string]int32{"extra": 2, "other": 1} {
		var asked atomic.Int32
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, `{"error":{"message":"no extras","param":"`+param+`"}}`)
				return
			}
			_, _ = io.WriteString(w, "plain")
		}, Options{})
		_, err := c.Ask(t.Context(), &reducible{param: "extra"}, nil)
		require.Equal(t, want, asked.Load())
		if param == "extra" {
			require.NoError(t, err)
			continue
		}
		require.Contains(t, wantError(t, err, llm.KindInvalid).Message, "no extras")
	}
}

// A stream that goes silent, or that takes too long, broke: what came of it was billed.
func TestStreamsThatStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, opts := range map[string]Options{
			"the stream broke: nothing came for 2m0s":       {},
			"the model gave no complete reply within 1m30s": {Timeout: 90 * time.Second},
		} {
			opts.BaseURL, opts.HTTPClient = "http://stall.invalid", &http.Client{Transport: stall{}}
			_, err := call(t.Context(), open(t, "openai", opts), true)
			e := wantError(t, err, llm.KindBroken)
			require.Equal(t, want, e.Message)
			require.Equal(t, &llm.Usage{Output: 4}, e.Usage)
			require.Equal(t, digestOf("stream"), e.Reply.RequestSHA256)
		}
	})
}

// stall begins a reply and then says nothing until the request ends.
type stall struct{}

func (stall) RoundTrip(req *http.Request) (*http.Response, error) {
	body, end := io.Pipe()
	go func() {
		_, _ = io.WriteString(end, "data: \"half\"\n\n")
		<-req.Context().Done()
		_ = end.CloseWithError(req.Context().Err())
	}()
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: body, Request: req}, nil
}

package llmhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-secret-0123456789"

// row returns the row of the provider with the name.
// serve starts a server and a Client of it.
func serve(t *testing.T, handler http.HandlerFunc, opts Options) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	opts.APIKey, opts.BaseURL = testKey, server.URL
	return open(t, providers.OpenAI, opts)
}

func open(t testing.TB, name string, opts Options) *Client {
	t.Helper()
	c, err := New(name, opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// call makes a call. The reply is its text. In a stream the text comes in events; END
// completes it.
func call(ctx context.Context, c *Client, streamed bool) (string, error) {
	var emit func(llm.Chunk)
	if streamed {
		emit = func(llm.Chunk) {}
	}
	res, err := c.Ask(ctx, exchange{}, emit)
	text, _ := res.(llm.Text)
	return text.Content, err
}

type exchange struct{}

func (exchange) Body(stream bool) ([]byte, error) {
	if stream {
		return []byte("stream"), nil
	}
	return []byte("plain"), nil
}

func (exchange) Read(r *Reply) (llm.Response, error) { return llm.Text{Content: string(r.Body)}, nil }

func (exchange) Assemble(func(llm.Chunk)) Assembly { return &assembly{} }

type assembly struct{ text strings.Builder }

func (a *assembly) Add(e Event) (Progress, error) {
	switch {
	case string(e.Data) == "[DONE]":
		return Ended, nil
	case string(e.Data) == `"END"`:
		return Complete, nil
	case e.Data[0] != '"' && StatesError(e.Data): // strings are the replies of these tests
		return Begun, Stated(e.Data)
	case !strings.HasPrefix(string(e.Data), `"`):
		return Begun, errors.New("no string")
	}
	a.text.WriteString(strings.Trim(string(e.Data), `"`))
	return Begun, nil
}

func (a *assembly) Reply() (llm.Response, error) { return llm.Text{Content: a.text.String()}, nil }

func (a *assembly) Meta() llm.Meta {
	return llm.Meta{Model: "m", Usage: llm.Usage{Output: a.text.Len()}}
}

// wantError asserts the kind of err and that it does not hold the key.
func wantError(t *testing.T, err error, kind llm.ErrorKind) *llm.Error {
	t.Helper()
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, kind, e.Kind, e.Message)
	require.NotContains(t, fmt.Sprintf("%v %+v %v", err, e, e.Err), testKey)
	return e
}

// isStream reports what the request asks for.
func isStream(r *http.Request) bool {
	data, _ := io.ReadAll(r.Body)
	return string(data) == "stream"
}

// script answers streamed requests with the events and plain ones with "plain".
func script(events string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !isStream(r) {
			_, _ = io.WriteString(w, "plain")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, events)
		_ = http.NewResponseController(w).Flush()
	}
}

func TestOptions(t *testing.T) {
	for want, opts := range map[string]Options{
		"OPENAI_API_KEY":                    {},
		"API key holds":                     {APIKey: "sk-a\nb"},
		"http or https address such as":     {BaseURL: "localhost:11434"},
		"has to be an http or https":        {BaseURL: "http:///v1"},
		"openai: the base URL has to be an": {BaseURL: "http://user:" + testKey + "@[/v1"},
		"query":                             {BaseURL: "http://localhost/v1?key=" + testKey},
	} {
		_, err := New(providers.OpenAI, opts)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), testKey)
	}
	for _, c := range []struct{ name, given, want string }{
		{providers.OpenAI, "", providers.OpenAIURL},
		{providers.OpenAI, "http://h/v1/", "http://h/v1"},
		{providers.OpenAI, "http://h", "http://h"},
		{providers.OpenAI, "https://h/v1/chat/completions", "https://h/v1"},
		{providers.Anthropic, "", providers.AnthropicURL},
		{providers.Anthropic, "http://h/p/", "http://h/p"},
		{providers.Anthropic, " http://h/p/v1/ ", "http://h/p"},
		{providers.Anthropic, "http://h/p/v1/messages", "http://h/p"},
	} {
		require.Equal(t, c.want, open(t, c.name, Options{APIKey: " " + testKey + "\n", BaseURL: c.given}).BaseURL())
	}
}

// Keys and headers come from the options alone, not from the environment.
func TestHeaders(t *testing.T) {
	for _, p := range providers.All() {
		t.Setenv(p.KeyVar, "sk-of-the-environment")
		t.Setenv(p.URLVar, "http://127.0.0.1:1")
	}
	headers := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { headers <- r.Header }))
	defer server.Close()
	sent := func(name string, opts Options) http.Header {
		opts.BaseURL = server.URL
		_, err := call(tracecontext.With(t.Context(), "00-trace"), open(t, name, opts), false)
		require.NoError(t, err)
		h := <-headers
		require.Equal(t, "00-trace", h.Get("Traceparent"))
		return h
	}
	h := sent(providers.OpenAI, Options{APIKey: testKey, Header: http.Header{"x-extra": {"1", "2"}}})
	require.Equal(t, "Bearer "+testKey, h.Get("Authorization"))
	require.Equal(t, "moorebus", h.Get("User-Agent"))
	require.Equal(t, []string{"1", "2"}, h.Values("X-Extra"))
	require.Empty(t, sent(providers.OpenAI, Options{}).Values("Authorization"))
	h = sent(providers.Anthropic, Options{APIKey: testKey})
	require.Equal(t, testKey, h.Get("X-Api-Key"))
	require.Equal(t, "2023-06-01", h.Get("Anthropic-Version"))
	require.Empty(t, sent(providers.Anthropic, Options{}).Values("X-Api-Key"))
}

func TestNetworkErrors(t *testing.T) {
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "half")
	}
	for name, handler := range map[string]http.HandlerFunc{"reset": reset, "cut body": cut} {
		c := serve(t, handler, Options{})
		for _, streamed := range []bool{false, true} {
			want := llm.KindNetwork
			if streamed && name == "cut body" {
				want = llm.KindBroken
			}
			_, err := call(t.Context(), c, streamed)
			require.NotEmpty(t, wantError(t, err, want).Message, name)
		}
	}
	_, err := call(t.Context(), open(t, providers.OpenAI, Options{APIKey: testKey, BaseURL: "http://user:" + testKey + "@127.0.0.1:1"}), false)
	wantError(t, err, llm.KindNetwork)
}

// reset ends the connection hard.
func reset(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
}

// A server that sends elsewhere does not get the key shown there. Within a host
// it may.
func TestRedirections(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked elsewhere") }))
	defer elsewhere.Close()
	c := serve(t, http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect).ServeHTTP, Options{})
	for _, streamed := range []bool{false, true} {
		_, err := call(t.Context(), c, streamed)
		require.Equal(t, http.StatusTemporaryRedirect, wantError(t, err, llm.KindOther).Status)
	}
	c = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/new" {
			http.Redirect(w, r, "/new", http.StatusPermanentRedirect)
			return
		}
		script("")(w, r)
	}, Options{})
	text, err := call(t.Context(), c, false)
	require.NoError(t, err)
	require.Equal(t, "plain", text)
}

// A redirection to the same host without encryption is not followed.
func TestRedirectionsKeepTheScheme(t *testing.T) {
	to := func(url string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
		require.NoError(t, err)
		return r
	}
	first := []*http.Request{to("https://llm.example/v1")}
	require.NoError(t, sameServer(to("https://llm.example/v2"), first))
	require.ErrorIs(t, sameServer(to("http://llm.example/v1"), first), http.ErrUseLastResponse)
}

// pieces is a transport that answers with the texts, each a while after the one before,
// and then keeps the stream open.
type pieces struct {
	after time.Duration
	texts []string
}

func (p pieces) RoundTrip(r *http.Request) (*http.Response, error) {
	body, w := io.Pipe()
	go func() {
		for _, text := range p.texts {
			select {
			case <-time.After(p.after):
				_, _ = io.WriteString(w, text)
			case <-r.Context().Done():
			}
		}
		<-r.Context().Done()
		_ = w.CloseWithError(r.Context().Err())
	}()
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: body, Request: r}, nil
}

// TestTimes holds the default times, which end what a server leaves open.
func TestTimes(t *testing.T) {
	comments := slices.Repeat([]string{": still thinking\n\n"}, 4)
	for name, c := range map[string]struct {
		served pieces
		want   string
		after  time.Duration
	}{
		"silent":        {pieces{texts: []string{"data: \"half\"\n\n"}}, "broken", 2 * time.Minute},
		"comments":      {pieces{after: 110 * time.Second, texts: append(comments, "data: \"hi\"\n\ndata: \"END\"\n\n")}, "hi", 5*110*time.Second + 5*time.Second},
		"late":          {pieces{after: 9 * time.Minute, texts: []string{"data: \"hi\"\n\ndata: [DONE]\n\n"}}, "hi", 9*time.Minute + 50*time.Millisecond},
		"not ended":     {pieces{texts: []string{"data: \"hi\"\n\ndata: \"END\"\n\n"}}, "hi", 5 * time.Second},
		"not closed":    {pieces{texts: []string{"data: \"hi\"\n\ndata: \"END\"\n\ndata: [DONE]\n\n"}}, "hi", 50 * time.Millisecond},
		"no reply ever": {pieces{}, "", 10 * time.Minute},
	} {
		for _, streamed := range []bool{true, false} {
			if !streamed && c.want != "" {
				continue
			}
			t.Run(fmt.Sprint(name, ", streamed ", streamed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client := open(t, providers.OpenAI, Options{BaseURL: "http://pieces.invalid", HTTPClient: &http.Client{Transport: c.served}})
					began := time.Now()
					text, err := call(t.Context(), client, streamed)
					require.Equal(t, c.after, time.Since(began))
					if c.want == "broken" {
						require.Equal(t, 4, wantError(t, err, llm.KindBroken).Usage.Output, "what came is billed")
						return
					}
					require.Equal(t, c.want, text)
					if c.want == "" {
						require.Equal(t, "the model gave no complete reply within 10m0s", wantError(t, err, llm.KindNetwork).Message)
						require.ErrorIs(t, err, context.DeadlineExceeded)
						return
					}
					require.NoError(t, err)
				})
			})
		}
	}
}

func TestConnectionIsUsedAgain(t *testing.T) {
	remotes := make(chan string, 5)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		remotes <- r.RemoteAddr
		script("data: \"END\"\n\ndata: [DONE]\n\n")(w, r)
	}, Options{})
	used := map[string]bool{}
	for range cap(remotes) {
		_, err := call(t.Context(), c, true)
		require.NoError(t, err)
		used[<-remotes] = true
	}
	require.Less(t, len(used), cap(remotes), "a busy machine may need more than one")
}

package toolfile_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/faultserver"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// registry makes the tools of a file.
func registry(t *testing.T, text string) *toolset.Registry {
	t.Helper()
	file, err := agentfile.ParseTools([]byte(text), agentfile.YAML)
	require.NoError(t, err)
	made, _, err := toolfile.Tools(file)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, made.Close()) })
	return made
}

// faults says how calls of a faulty endpoint end: the code, a part of the text,
// and how many requests a pure tool with one retry and a once tool make of it.
var faults = map[faultserver.Fault]struct {
	code, says string
	pure, once int
}{
	faultserver.Refused:     {tool.CodeUnreachable, "refused", 0, 0},
	faultserver.Reset:       {tool.CodeUnreachable, "", 2, 1},
	faultserver.Half:        {tool.CodeUnreachable, "unexpected EOF", 2, 1},
	faultserver.Silent:      {tool.CodeTimeout, "did not finish within 250ms", 2, 1},
	faultserver.SlowLoris:   {tool.CodeTimeout, "did not finish within 250ms", 2, 1},
	faultserver.Stops:       {tool.CodeTimeout, "did not finish within 250ms", 2, 1},
	faultserver.Busy:        {tool.CodeHTTPStatus, "429", 2, 1},
	faultserver.BusyFor:     {tool.CodeHTTPStatus, "try again in 2m0s", 1, 1},
	faultserver.Broken:      {tool.CodeHTTPStatus, "500", 2, 1},
	faultserver.InvalidJSON: {codes.OK, `{"not": json`, 1, 1},
	faultserver.WrongType:   {codes.OK, `{"fine": true}`, 1, 1},
}

func TestFaultyEndpointsAreObservations(t *testing.T) {
	t.Parallel()
	for _, fault := range faultserver.All() {
		want, known := faults[fault]
		require.True(t, known, fault)
		for _, kind := range []string{"pure", "once", "http_get"} {
			t.Run(fmt.Sprintf("%s %s", fault, kind), func(t *testing.T) {
				t.Parallel()
				server, err := faultserver.New()
				require.NoError(t, err)
				t.Cleanup(server.Close)
				address, err := url.Parse(server.URL(fault))
				require.NoError(t, err)
				tools := registry(t, fmt.Sprintf(`
tools:
  - {name: pure, http: {url: %[1]q}, effect: pure, timeout: 250ms, retries: 1}
  - {name: once, http: {url: %[1]q}, timeout: 250ms, retries: 1}
  - {builtin: http_get, hosts: [%[2]q], timeout: 250ms, retries: 1}
`, address, address.Host))
				out := tools.Execute(t.Context(), tool.Call{Run: "r", ID: "c", Name: kind, Arguments: fmt.Sprintf(`{"url":%q}`, address)})
				require.Less(t, out.Latency, 3*time.Second, "two timeouts, a pause, and a slow machine")
				code, text := codes.OK, out.Result
				if out.Failure != nil {
					code, text = out.Failure.Code, out.Failure.Message
				}
				wanted := want.code
				if kind == "once" && fault != faultserver.Refused && (wanted == tool.CodeTimeout || wanted == tool.CodeUnreachable) {
					wanted = codes.OutcomeUnknown // it was sent
				}
				require.Equal(t, wanted, code, text)
				require.Contains(t, text, want.says)
				requests := want.pure
				if kind == "once" {
					requests = want.once
				}
				require.Equal(t, requests, server.Requests(fault))
			})
		}
	}
}

// A tool that is down is not called for a while, whatever it is down by, and is
// called again when it works again.
func TestCircuitOfAnEndpoint(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if !works.Load() {
			http.Error(w, "down", http.StatusBadGateway)
		}
	}))
	t.Cleanup(server.Close)
	tools := registry(t, fmt.Sprintf(`
tools:
  - {name: guarded, http: {url: %[1]q}, breaker: {failures: 2, open: 300ms}}
  - {name: bare, http: {url: %[1]q}, breaker: {off: true}}
`, server.URL))
	execute := func(name string) string {
		out := tools.Execute(t.Context(), tool.Call{Run: "r", ID: "c", Name: name, Arguments: "{}"})
		if out.Failure == nil {
			return codes.OK
		}
		if out.Failure.Code == codes.CircuitOpen {
			require.Contains(t, out.Failure.Message, `"guarded" failed again and again and was not called; it may work again in 1s, at `)
			require.Contains(t, out.Failure.Message, "the last failure was: http_status")
		}
		return out.Failure.Code
	}
	for range 2 {
		require.Equal(t, tool.CodeHTTPStatus, execute("guarded"))
	}
	require.Equal(t, codes.CircuitOpen, execute("guarded"))
	require.EqualValues(t, 2, asked.Load())
	for range 9 {
		require.Equal(t, tool.CodeHTTPStatus, execute("bare"))
	}
	works.Store(true)
	require.Eventually(t, func() bool { return execute("guarded") == codes.OK }, time.Minute, 20*time.Millisecond)
}

// Every kind of tool is given the key under which a repeated run of a call can
// be recognised.
func TestIdempotencyKeyReachesEveryKind(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Header.Get("Idempotency-Key"))
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	fromFile := registry(t, fmt.Sprintf(`
tools:
  - {name: post, http: {url: %[1]q}}
  - {name: get, http: {url: %[1]q, method: GET}}
  - {name: command, exec: {command: [sh, -c, 'printf %%s "$MOOREBUS_IDEMPOTENCY_KEY"']}}
  - {builtin: http_get, hosts: [%[2]q]}
`, server.URL, host))
	function, err := typed.New(tool.Definition{Name: "function"}, func(ctx context.Context, _ struct{}) (string, error) {
		call, _ := typed.CallFrom(ctx)
		return call.IdempotencyKey(), nil
	})
	require.NoError(t, err)
	ofGo, err := toolset.New(function)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		tools     *toolset.Registry
		arguments string
	}{
		"post": {fromFile, "{}"}, "get": {fromFile, "{}"}, "command": {fromFile, "{}"}, "function": {ofGo, "{}"},
		"http_get": {fromFile, fmt.Sprintf(`{"url":%q}`, server.URL)},
	} {
		out := c.tools.Execute(t.Context(), tool.Call{Run: "run-1", ID: "call_1", Name: name, Arguments: c.arguments})
		require.Nil(t, out.Failure, name)
		require.Equal(t, "run-1/call_1", out.Result, name)
	}
}

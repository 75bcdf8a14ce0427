package route_test

import (
	"bufio"
	"context"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// sent is an input with every kind of field.
type sent struct {
	Inner
	Which  which     `query:"*"`
	ID     string    `path:"id"`
	Text   string    `query:"q" doc:"A text."`
	Number uint64    `query:"number"`
	Few    int       `query:"few"`
	Yes    bool      `query:"yes"`
	Since  time.Time `query:"since"`
	Above  *float64  `query:"above"`
	Keys   []string  `header:"Idempotency-Key" doc:"A key."`
	Body   body      `body:""`
}

type Inner struct {
	Namespace string `header:"Moorebus-Namespace"`
}

type which map[string]string

func (which) Parameters() iter.Seq2[string, string] {
	return maps.All(map[string]string{"of_some": "One of some."})
}

type body struct {
	Name string `json:"name"`
}

var echo = route.Define(route.Route{Pattern: "POST /v1/echo/{id}", Summary: "Echoes."},
	func(_ context.Context, _ *control.Controller, in sent) (sent, error) {
		if in.Text == "refuse" {
			return in, refusal.New(refusal.Conflict, refusal.CodeConflict, "no").With(map[string]any{"run": in.ID})
		}
		return in, nil
	}).Locates(func(s sent) string { return "/v1/echo/" + s.ID })

// overHTTP serves rows as a gateway does.
func overHTTP(t *testing.T, rows ...route.Route) route.Client {
	mux := http.NewServeMux()
	for _, row := range rows {
		mux.HandleFunc(row.Pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := row.Handle(w, r); err != nil {
				e := route.RefusalOf(err)
				require.NoError(t, route.WriteJSON(w, route.StatusOf(e.Kind), e))
			}
		})
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return route.Client{URL: s.URL, Transport: http.DefaultTransport, Namespace: "team"}
}

// A handler gets what a client sends, and the client what the handler answers, over HTTP and in one process.
func TestOpCarriesBothWays(t *testing.T) {
	row := echo.Row(nil)
	require.Equal(t, []route.Parameter{{Name: "Idempotency-Key", Description: "A key."}}, row.Headers)
	require.Equal(t, route.Parameter{Name: "q", Description: "A text."}, row.Query[1])
	require.Equal(t, route.Parameter{Name: "of_some", Description: "One of some."}, row.Query[0])
	require.Equal(t, []string{refusal.CodeBadNamespace}, row.Codes)
	require.Equal(t, body{}, row.Body)
	require.Equal(t, sent{}, row.Answer)
	zero := 0.0
	in := sent{
		Which: which{"of_some": "ü"}, ID: "a/b c%?..", Text: "ü & =", Number: 7, Few: 3, Yes: true, Since: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Above: &zero, Keys: []string{"k"}, Body: body{"n"},
	}
	for _, c := range []route.Client{overHTTP(t, row), {Transport: route.NewInProcess([]route.Route{row}), Namespace: "team"}} {
		want := in
		want.Namespace = "team"
		got, err := echo.Call(t.Context(), c, in)
		require.NoError(t, err)
		require.Equal(t, want, got)
		refused := in
		refused.Text = "refuse"
		_, err = echo.Call(t.Context(), c, refused)
		var e *refusal.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, []any{refusal.Conflict, refusal.CodeConflict, "no", map[string]any{"run": in.ID}}, []any{e.Kind, e.Code, e.Message, e.Fields})
		for _, bad := range []sent{{ID: "a", Body: body{"caf\xe9"}}, {ID: "\xff"}, {ID: "a", Text: "\xff"}, {ID: "a", Which: which{"of_some": "\xff"}}, {ID: "a", Keys: []string{"\xff"}}} {
			_, err = echo.Call(t.Context(), c, bad)
			require.True(t, refusal.Is(err, refusal.CodeBadRequest), "%v", err)
			require.ErrorContains(t, err, "not valid UTF-8")
		}
	}
}

func TestParametersAreRefused(t *testing.T) {
	c := overHTTP(t, echo.Row(nil))
	for query, want := range map[string]string{
		"x=1": `"x": unknown parameter; there are: of_some, q, number, few, yes, since, above`, "q=1&q=2": "q: is given twice", "number=0": `number: "0" is not a number from 1`,
		"few=-1": `few: "-1" is not a number`, "yes=1": `yes: "1" is neither true nor false`, "since=now": `since: "now" is not a time`, "above=x": `above: "x" is not a number`, "q=%ff": "not valid UTF-8",
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", c.URL+"/v1/echo/1?"+query, strings.NewReader("{}"))
		require.NoError(t, err)
		_, err = c.Send(r)
		require.True(t, refusal.Is(err, refusal.CodeBadParameter), "%s: %v", query, err)
		require.ErrorContains(t, err, want)
	}
}

var lines = route.DefineStream[struct{}](route.Route{Pattern: "GET /v1/lines", Summary: "Streams."})

func open(t *testing.T, ctx context.Context, handle func(w http.ResponseWriter, r *http.Request) error) (*http.Response, error) {
	c := route.Client{Transport: route.NewInProcess([]route.Route{lines.Row(func(w http.ResponseWriter, r *http.Request, _ struct{}) error { return handle(w, r) })})}
	r, err := lines.Request(ctx, c, struct{}{})
	require.NoError(t, err)
	return c.Send(r)
}

// What a handler in this process has written can be read before it ends, and its context ends with
// the reader.
func TestInProcessFlows(t *testing.T) {
	read := make(chan struct{})
	ended := make(chan error, 1)
	resp, err := open(t, t.Context(), func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/event-stream")
		require.NoError(t, http.NewResponseController(w).Flush())
		_, _ = io.WriteString(w, "one\n")
		<-read
		_, _ = io.WriteString(w, "two\n")
		<-r.Context().Done()
		ended <- r.Context().Err()
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	scan := bufio.NewScanner(resp.Body)
	require.True(t, scan.Scan())
	require.Equal(t, "one", scan.Text())
	close(read)
	require.True(t, scan.Scan())
	require.Equal(t, "two", scan.Text())
	require.NoError(t, resp.Body.Close())
	require.ErrorIs(t, <-ended, context.Canceled, "Close has waited for it")
}

func TestInProcessCancels(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := open(t, ctx, func(_ http.ResponseWriter, r *http.Request) error {
		cancel()
		<-r.Context().Done()
		return r.Context().Err()
	})
	require.ErrorIs(t, err, context.Canceled)
}

// The error of a handler in this process is the one that it returned. An answer that breaks off is
// an error of its reader.
func TestInProcessErrors(t *testing.T) {
	_, err := open(t, t.Context(), func(http.ResponseWriter, *http.Request) error { return io.ErrNoProgress })
	require.Equal(t, io.ErrNoProgress, err)
	resp, err := open(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = io.WriteString(w, "one")
		panic(http.ErrAbortHandler)
	})
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, resp.Body.Close())
	resp, err = open(t, t.Context(), func(http.ResponseWriter, *http.Request) error { return nil })
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
}

// A handler that panics takes along who asked, as in a call, unless its answer has begun.
func TestInProcessPanics(t *testing.T) {
	require.PanicsWithValue(t, "a fault", func() {
		_, _ = open(t, t.Context(), func(http.ResponseWriter, *http.Request) error { panic("a fault") })
	})
	resp, err := open(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = io.WriteString(w, "one")
		panic("a fault")
	})
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.ErrorContains(t, err, "panicked: a fault")
	require.NoError(t, resp.Body.Close())
	_, err = route.InProcess{}.RoundTrip(resp.Request)
	require.ErrorContains(t, err, "nothing in this process answers GET /v1/lines")
}

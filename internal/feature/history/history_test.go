package history_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/history"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	goleak.VerifyTestMain(m)
}

// rig is gateways on a bus.
type rig struct {
	controltest.World
	bus *natsbus.Bus
}

func newRig(t *testing.T) *rig {
	bus := controltest.NATS(t, natsbus.InitOptions{Shards: 2})
	require.NoError(t, announce.NewDirectory(bus, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
	return &rig{World: controltest.NewWorld(t, bus), bus: bus}
}

// gateway is one, with its log.
type gateway struct {
	*control.Controller
	t    *testing.T
	url  string
	log  strings.Builder
	stop func()
}

// serve starts a gateway that keeps its views in a file. With idle its parts do not run.
func (r *rig) serve(t *testing.T, file string, idle bool) *gateway {
	g := &gateway{t: t}
	logger := slog.New(slog.NewTextHandler(&g.log, nil))
	var err error
	g.Controller, err = control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: r.bus}), Instance: "test", Logger: logger},
	}.On(r.bus))
	require.NoError(t, err)
	parts := all.Features().With("history", history.Made(history.Settings{File: func([]string) string { return file }})).On(g.Controller)
	s, err := httpapi.New(httpapi.Config{Control: g.Controller, Rows: parts.Rows(), Feed: r.bus, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	server := httptest.NewServer(s.Handler())
	g.url = server.URL
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		if idle {
			<-ctx.Done()
			done <- nil
			return
		}
		done <- worker.RunAll(ctx, parts.Run, s.Run)
	}()
	g.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	t.Cleanup(g.stop)
	return g
}

// get sends a GET with parameters, which are pairs, and returns the status, the header of what is missing and the body.
func (g *gateway) get(path, ns string, parameters ...string) (status int, behind, body string) {
	g.t.Helper()
	q := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		q.Set(parameters[i], parameters[i+1])
	}
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.url+path+"?"+q.Encode(), nil)
	require.NoError(g.t, err)
	if ns != "" {
		req.Header.Set("Moorebus-Namespace", ns)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(g.t, err)
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	require.NoError(g.t, err)
	return res.StatusCode, res.Header.Get(history.BehindHeader), string(data)
}

func (g *gateway) search(parameters ...string) (found history.Hits) {
	g.t.Helper()
	status, behind, body := g.get("/v1/search", "", parameters...)
	require.Equal(g.t, http.StatusOK, status, body)
	require.Empty(g.t, behind)
	require.NoError(g.t, json.Unmarshal([]byte(body), &found))
	return found
}

// start starts a run in which a model fails once and then answers.
func (r *rig) start(g *gateway, agent, task, problem string) string {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = agent, "openai"
	started, err := g.Start(r.T.Context(), "", control.StartRequest{Agent: &a, Task: task, Labels: events.Labels{"team": agent}})
	require.NoError(r.T, err)
	id := started.RunID
	r.Happens(id, events.Planning, &events.LLMAttemptFailed{Kind: "overloaded", Message: "busy " + problem})
	r.Happens(id, events.Planning, controltest.Answered(`{"done":"Yes, `+problem+`"}`))
	return id
}

// What runs say is found by its words, with what stands around the first of them, page by page.
func TestSearch(t *testing.T) {
	r := newRig(t)
	g := r.serve(t, filepath.Join(t.TempDir(), "views.db"), false)
	long := strings.Repeat("filler ", 200)
	first := r.start(g, "billing", long+"Charge the CARD of Jürgen, 請求書を送る. "+long, "ETIMEDOUT")
	second := r.start(g, "refunds", "Refund a card.", "ECONNRESET")

	found := g.search("query", "card jürgen")
	require.Len(t, found.Hits, 1)
	hit := found.Hits[0]
	require.Equal(t, []any{first, uint64(1), "task"}, []any{hit.Run, hit.N, string(hit.Kind)})
	require.Contains(t, hit.Snippet, "Charge the CARD of Jürgen")
	require.LessOrEqual(t, len([]rune(hit.Snippet)), 300)
	require.Contains(t, g.search("query", "書").Hits[0].Snippet, "請求書")
	kinds := map[string]string{}
	for _, h := range g.search("query", "etimedout").Hits {
		kinds[string(h.Kind)] = h.Snippet
	}
	require.Equal(t, map[string]string{"error": "overloaded busy ETIMEDOUT", "answer": `{"done":"Yes, ETIMEDOUT"}`}, kinds)
	require.Empty(t, g.search("query", "card -agent:billing -agent:refunds").Hits)
	require.Equal(t, second, g.search("query", "card* agent:refunds").Hits[0].Run)
	require.Empty(t, g.search("query", "agent:billing").Hits, "there is no text to look for")

	whole, pages := g.search("query", "text:card,econnreset,etimedout"), []history.Hit{}
	require.Len(t, whole.Hits, 6)
	for next := "first"; next != ""; {
		page := history.Hits{}
		if next == "first" {
			page = g.search("query", "text:card,econnreset,etimedout", "limit", "2")
		} else {
			page = g.search("query", "text:card,econnreset,etimedout", "limit", "2", "cursor", next)
		}
		pages, next = append(pages, page.Hits...), page.Next
	}
	require.Equal(t, whole.Hits, pages)
	_, _, body := g.get("/v1/search", "elsewhere", "query", "card")
	require.JSONEq(t, `{"hits":[]}`, body)
}

func TestFacets(t *testing.T) {
	r := newRig(t)
	g := r.serve(t, filepath.Join(t.TempDir(), "views.db"), false)
	for _, agent := range []string{"a", "b", "a", "c"} {
		r.start(g, agent, "Do it.", "x")
	}
	for by, want := range map[string][]string{"agent": {"a", "b", "c"}, "label.team": {"a", "b", "c"}, "state": {"done"}, "tool": {}} {
		status, behind, body := g.get("/v1/facets", "", "by", by)
		require.Equal(t, http.StatusOK, status, body)
		require.Empty(t, behind)
		var found history.FacetRows
		require.NoError(t, json.Unmarshal([]byte(body), &found))
		keys := []string{}
		for _, row := range found.Rows {
			keys = append(keys, row.Key)
		}
		require.Equal(t, want, keys, by)
		require.EqualValues(t, 4, found.Total.Runs)
		require.NotNil(t, found.Total.DurationMS.P95)
	}
	_, _, body := g.get("/v1/facets", "", "by", "agent", "limit", "1", "query", "-agent:b")
	var found history.FacetRows
	require.NoError(t, json.Unmarshal([]byte(body), &found))
	require.EqualValues(t, 2, found.Rows[0].Runs)
	require.EqualValues(t, 1, found.Other.Runs)
	require.EqualValues(t, 3, found.Total.Runs)
}

// Whatever is asked, the answer is a result or says what is wrong.
func TestHostileQueries(t *testing.T) {
	r := newRig(t)
	g := r.serve(t, filepath.Join(t.TempDir(), "views.db"), false)
	r.start(g, "a", `NEAR("x" OR y*) AND NOT z' -- "; DROP TABLE runs; %`, "\x00\x01 \"")
	for _, q := range []string{
		`NEAR OR`, `"NEAR(x)"`, `x*`, `'; DROP TABLE runs; --`, `"\"quoted\""`, "a\x00b", "%", `state:'`, `label.%:x`, `words:x`, `text:*`, `-`, `"`, strings.Repeat("w", 4096), strings.Repeat("w", 5000), strings.Repeat("a ", 65), `started>never`, "日本 é e\u0301",
	} {
		for _, path := range []string{"/v1/search", "/v1/facets"} {
			status, behind, body := g.get(path, "", "query", q, "by", "agent")
			if path == "/v1/search" {
				status, behind, body = g.get(path, "", "query", q)
			}
			require.Empty(t, behind)
			if status == http.StatusOK {
				continue
			}
			require.Equal(t, http.StatusBadRequest, status, "%q: %s", q, body)
			var refused struct {
				Code     string
				Position *int
				Fields   []string
			}
			require.NoError(t, json.Unmarshal([]byte(body), &refused))
			require.Equal(t, "bad_query", refused.Code, "%q: %s", q, body)
			require.NotNil(t, refused.Position)
			require.Contains(t, refused.Fields, "label.KEY")
		}
	}
	for _, wrong := range [][]string{
		{"/v1/search"}, {"/v1/search", "query", "x", "limit", "201"}, {"/v1/search", "query", "x", "cursor", "x"}, {"/v1/search", "query", "x", "cursor", "e30"}, {"/v1/search", "query", "x", "q", "x"},
		{"/v1/facets"}, {"/v1/facets", "by", "task"}, {"/v1/facets", "by", "label."}, {"/v1/facets", "by", "agent", "limit", "0"}, {"/v1/facets", "by", "agent", "limit", "1001"},
	} {
		status, _, body := g.get(wrong[0], "", wrong[1:]...)
		require.Equal(t, http.StatusBadRequest, status, "%v: %s", wrong, body)
		require.Contains(t, body, `"bad_parameter"`, wrong)
	}
	require.Len(t, g.search("query", "drop table").Hits, 1, "nothing was dropped")
}

// The file may go, or be damaged, and gateways may come and go: the answers stay. Where the file cannot be
// used, a temporary one takes its place.
func TestTheFileCanBeLost(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "new", "views.db")
	g := r.serve(t, file, false)
	r.start(g, "a", "Charge the card.", "ETIMEDOUT")
	want := g.search("query", "text:card,etimedout")
	require.Len(t, want.Hits, 3)
	beside := r.serve(t, file, false)
	require.Equal(t, want, beside.search("query", "text:card,etimedout"), "a file belongs to one process")
	beside.stop()
	require.Equal(t, 1, strings.Count(beside.log.String(), "temporary file"))
	g.stop()
	require.NotContains(t, g.log.String(), "temporary file")
	for name, harm := range map[string]func(){
		"kept":      func() {},
		"deleted":   func() { require.NoError(t, os.Remove(file)) },
		"truncated": func() { require.NoError(t, os.Truncate(file, 5000)) },
		"foreign":   func() { require.NoError(t, os.WriteFile(file, []byte("something else"), 0o600)) },
		"a folder": func() {
			require.NoError(t, os.RemoveAll(filepath.Dir(file)))
			require.NoError(t, os.MkdirAll(file, 0o700))
		},
	} {
		harm()
		again := r.serve(t, file, false)
		require.Equal(t, want, again.search("query", "text:card,etimedout"), name)
		if info, err := os.Stat(file); name != "a folder" {
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
		}
		again.stop()
		if name == "a folder" {
			require.Equal(t, 1, strings.Count(again.log.String(), "temporary file"))
			require.NoError(t, os.Remove(file))
		}
	}
}

// A run that was purged is found no more.
func TestPurgedRuns(t *testing.T) {
	r := newRig(t)
	g := r.serve(t, filepath.Join(t.TempDir(), "views.db"), false)
	id := r.start(g, "a", "Charge the card.", "ETIMEDOUT")
	require.Len(t, g.search("query", "card").Hits, 1)
	head, err := r.bus.Head(t.Context(), r.At(id))
	require.NoError(t, err)
	_, err = r.bus.Purge(t.Context(), r.At(id), head.Seq)
	require.NoError(t, err)
	require.Empty(t, g.search("query", "card").Hits)
}

// A gateway without a store answers, and says that it does not know what is missing.
func TestBehind(t *testing.T) {
	r := newRig(t)
	g := r.serve(t, filepath.Join(t.TempDir(), "views.db"), true)
	for path, by := range map[string]string{"/v1/search": "query", "/v1/facets": "by"} {
		status, behind, body := g.get(path, "", by, "agent")
		require.Equal(t, http.StatusOK, status, body)
		require.Equal(t, "unknown", behind)
	}
}

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// toolServer answers all tools over HTTP: those of a recorded run with the
// recorded results, others with their own handler.
type toolServer struct {
	*httptest.Server
	gate gate

	mu       sync.Mutex
	runs     map[string]*playback
	handlers map[string]http.HandlerFunc
	problems []error
}

func newToolServer(t *testing.T) *toolServer {
	s := &toolServer{runs: map[string]*playback{}, handlers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Close)
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := errors.Join(s.problems...); err != nil {
			t.Errorf("tool server: %v", err)
		}
	})
	return s
}

// play lets a run's calls be answered from its recording.
func (s *toolServer) play(p *playback) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[p.run] = p
}

// handle lets a handler answer the tool of a name.
func (s *toolServer) handle(tool string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[tool] = h
}

// actorHeader says which actor makes a request, see [toolServer.write].
const actorHeader = "X-Actor"

func (s *toolServer) serve(w http.ResponseWriter, r *http.Request) {
	arguments, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller has gone
	}
	tool := strings.TrimPrefix(r.URL.Path, "/tools/")
	run, id := r.Header.Get("X-Moorebus-Run"), r.Header.Get("X-Moorebus-Call")
	s.mu.Lock()
	if key := r.Header.Get("Idempotency-Key"); key != run+"/"+id || run == "" || id == "" {
		s.problems = append(s.problems, fmt.Errorf("%s: Idempotency-Key is %q, run %q, call %q", tool, key, run, id))
	}
	playback, handler := s.runs[run], s.handlers[tool]
	s.mu.Unlock()
	if s.gate.holds(r, r.Header.Get(actorHeader)) {
		return
	}
	switch {
	case handler != nil:
		handler(w, r)
	case playback == nil:
		http.Error(w, "no conversation is played in this run", http.StatusNotFound)
	default:
		result, err := playback.execute(id, tool, string(arguments))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		if result.Status != 0 {
			w.WriteHeader(result.Status)
		}
		_, _ = io.WriteString(w, result.text())
	}
}

// write writes the tool file of one actor: the tools of the setup's names, which are
// pure or as its settings say.
func (s *toolServer) write(t *testing.T, actor string, of *setup) string {
	t.Helper()
	var b strings.Builder
	if of.mcp != "" {
		fmt.Fprintf(&b, "mcp: %q\n", of.mcp)
	}
	if of.toolApproval != "" {
		fmt.Fprintf(&b, "approval: %s\n", of.toolApproval)
	}
	b.WriteString("tools:\n")
	for _, name := range of.tools {
		setting, ok := of.toolSettings[name]
		if !ok {
			setting = "effect: pure"
		}
		fmt.Fprintf(&b, "  - {name: %q, description: %q, schema: {type: object}, http: {url: %q, headers: {%s: %q}}, %s}\n",
			name, "Answers as recorded.", s.URL+"/tools/"+name, actorHeader, actor, setting)
	}
	file := filepath.Join(t.TempDir(), actor+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	return file
}

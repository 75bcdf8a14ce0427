package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// toolKind is a tool that the runs use.
type toolKind struct {
	name, pool, effect, risk string
	// slow is how long it takes at most after it has had its effect.
	slow time.Duration
	// exec makes it a command, builtin one that comes with Moorebus; else it is
	// this process over HTTP.
	exec, builtin bool
	// service makes it one of the NATS service, client one that the run's client carries out.
	service, client bool
	// agent makes it an agent, whose calls their own runs answer.
	agent bool
	// apart says that only kinds of run that are about it call it.
	apart bool
	// lacking is the number of the actor of its pool that does not have it, from 1; 0:
	// all have it.
	lacking int
}

// The tools that stand apart: one asks a human, the others are in the pool that
// one actor serves.
const (
	askHuman = "ask_human"
	lonely   = "lonely"
	lonePay  = "lone_pay"
)

var tools = []toolKind{
	{name: "lookup", pool: "web", effect: "pure", risk: "low", slow: 50 * time.Millisecond},
	{name: "search", pool: "files", effect: "pure", risk: "medium", slow: 1200 * time.Millisecond},
	{name: "flaky", pool: "web", effect: "idempotent", risk: "low", slow: 100 * time.Millisecond},
	{name: "huge", pool: "web", effect: "pure", risk: "low", slow: 50 * time.Millisecond},
	{name: "broken", pool: "default", effect: "pure", risk: "low"},
	{name: "note", pool: "default", effect: "once", risk: "low", slow: 300 * time.Millisecond},
	{name: "post", pool: "web", effect: "once", risk: "medium", slow: 300 * time.Millisecond},
	{name: "pay", pool: "files", effect: "once", risk: "high", slow: 1500 * time.Millisecond},
	{name: "append_line", pool: "files", effect: "once", risk: "low", exec: true},
	{name: "weigh", pool: partsPool, effect: "pure", risk: "low", slow: 200 * time.Millisecond, lacking: 1},
	{name: "label", pool: partsPool, effect: "idempotent", risk: "medium", slow: 100 * time.Millisecond, lacking: 2},
	{name: "ship", pool: partsPool, effect: "once", risk: "low", slow: 700 * time.Millisecond, lacking: 3},
	{name: askHuman, pool: "default", effect: "pure", risk: "low", builtin: true, apart: true},
	{name: lonely, pool: lonePool, effect: "pure", risk: "low", slow: 600 * time.Millisecond, apart: true},
	{name: helper, pool: agentsPool, effect: "idempotent", risk: "low", agent: true, apart: true},
	{name: deputy, pool: agentsPool, effect: "idempotent", risk: "low", agent: true, apart: true},
	{name: "tally", pool: "web", effect: "pure", risk: "low", slow: 300 * time.Millisecond, service: true, apart: true},
	{name: "charge", pool: "web", effect: "once", risk: "medium", slow: 700 * time.Millisecond, service: true, apart: true},
	{name: pick, effect: "once", client: true, apart: true},
	{name: glance, effect: "once", client: true, apart: true},
	{name: lonePay, pool: lonePool, effect: "once", risk: "low", slow: 600 * time.Millisecond, apart: true},
}

// toolNames are the tools that do not stand apart.
func toolNames() []string {
	var names []string
	for _, t := range tools {
		if !t.apart {
			names = append(names, t.name)
		}
	}
	return names
}

func toolNamed(name string) *toolKind {
	for i := range tools {
		if tools[i].name == name {
			return &tools[i]
		}
	}
	return nil
}

// execution is one time that a tool ran.
type execution struct {
	tool      string
	arguments string
}

// ledger has a line `run/call tool arguments` for each execution, on the disk before the tool
// does anything else. Several processes may write it.
type ledger struct {
	path string

	mu   sync.Mutex
	file *os.File
	seen map[string]int
}

func openLedger(path string) (*ledger, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &ledger{path: path, file: file, seen: map[string]int{}}, err
}

func (l *ledger) close() { _ = l.file.Close() }

// toolServer runs the tools of this process, and notes them in the ledger.
type toolServer struct {
	*httptest.Server
	*ledger
}

func newToolServer(dir string) (*toolServer, error) {
	l, err := openLedger(filepath.Join(dir, "ledger"))
	if err != nil {
		return nil, err
	}
	s := &toolServer{ledger: l}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	return s, nil
}

// close ends the server; requests that still wait are cut off.
func (s *toolServer) close() {
	s.CloseClientConnections()
	s.Close()
	s.ledger.close()
}

func (s *toolServer) serve(w http.ResponseWriter, r *http.Request) {
	arguments, err := io.ReadAll(r.Body)
	tool := toolNamed(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil || tool == nil {
		http.Error(w, "what?", http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	times, err := s.record(key, tool.name, string(arguments))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if tool.slow > 0 && !pause(r.Context(), rand.N(tool.slow)) {
		return // the caller has gone
	}
	switch {
	case tool.name == "broken":
		http.Error(w, "broken for good", http.StatusInternalServerError)
	case tool.name == "huge":
		_, _ = io.WriteString(w, strings.Repeat(key+"\n", 300<<10/len(key)))
	case tool.name == "flaky" && times == 1:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		_, _ = fmt.Fprintf(w, "%s did %s", tool.name, key)
	}
}

// record writes an execution down and returns how often the key was seen.
func (l *ledger) record(key, tool, arguments string) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[key]++
	if _, err := fmt.Fprintf(l.file, "%s %s %s\n", key, tool, arguments); err != nil {
		return 0, err
	}
	return l.seen[key], l.file.Sync()
}

// executions reads the ledger back, by `run/call`.
func (l *ledger) executions() (map[string][]execution, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	all := map[string][]execution{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		key, rest, _ := strings.Cut(lines.Text(), " ")
		tool, arguments, _ := strings.Cut(rest, " ")
		all[key] = append(all[key], execution{tool, arguments})
	}
	return all, lines.Err()
}

// writeFile writes an actor's file of tools, and returns its path.
func (s *toolServer) writeFile(dir string, actor int) (string, error) {
	entries := []map[string]any{{"service": service, "pool": "web"}}
	for _, t := range tools {
		if t.lacking == actor+1 || t.service || t.client {
			continue
		}
		if t.agent {
			entries = append(entries, map[string]any{"agent": t.name})
			continue
		}
		if t.builtin {
			entries = append(entries, map[string]any{"builtin": t.name, "pool": t.pool})
			continue
		}
		e := map[string]any{
			"name": t.name, "description": "Does " + t.name + ".", "pool": t.pool, "effect": t.effect, "risk": t.risk, "timeout": "10s",
			"schema": map[string]any{"type": "object", "properties": map[string]any{"amount": map[string]any{"type": "number"}}},
		}
		if t.effect != "once" {
			e["retries"] = 2
		}
		if t.exec {
			line := fmt.Sprintf(`read -r arguments; printf '%%s %%s %%s\n' "$MOOREBUS_IDEMPOTENCY_KEY" %s "$arguments" >>"$LEDGER"; echo appended`, t.name)
			e["sandbox"] = "off" // the ledger is everybody's
			e["exec"] = map[string]any{"command": []string{"sh", "-c", line}, "env": map[string]string{"LEDGER": s.path}}
		} else {
			e["http"] = map[string]any{"url": s.URL + "/" + t.name, "method": "POST"}
		}
		entries = append(entries, e)
	}
	text, err := json.Marshal(map[string]any{"tools": entries})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("tools-%d.yaml", actor)) // JSON is YAML
	return path, os.WriteFile(path, text, 0o600)
}

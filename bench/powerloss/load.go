package powerloss

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// LoadCommand is the first argument of a program that is to call Load, with the path
// of a LoadOptions file as the second. Record runs its own program so, under strace.
const LoadCommand = "powerloss-load"

// LoadOptions are what the traced process is told, as JSON.
type LoadOptions struct {
	// Program is the moorebus command, Data its data directory, Fsync its mode.
	Program, Data, Fsync string
	// Marks is the file that gets what is seen, Dir a directory for files of its own.
	Marks, Dir string
	// Runs is the number of runs in each life, Lives how often the process is started.
	// All lives but the last end with SIGKILL in the middle of their runs.
	Runs, Lives int
}

// mark is one line of the marks: something that a client, or the world, has seen.
type mark struct {
	// Run and N are an event of which the log said that it is there, Hash that of its
	// body where it was seen.
	Run  string `json:"run,omitempty"`
	N    uint64 `json:"n,omitempty"`
	Hash string `json:"hash,omitempty"`
	// Agent is a definition that was stored.
	Agent string `json:"agent,omitempty"`
	// Call is a tool's call that took effect, Tool its tool.
	Call string `json:"call,omitempty"`
	Tool string `json:"tool,omitempty"`
}

// The tools with effects outside. A call of toolOnce has to be announced in the log.
const (
	toolOnce       = "record"
	toolIdempotent = "note"
)

// toolFile is a file of tools whose effects go to a URL.
func toolFile(url string) []byte {
	tool := func(name, effect string) map[string]any {
		return map[string]any{
			"name": name, "description": "Writes the text down.", "effect": effect,
			"schema": json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`),
			"http":   map[string]any{"url": url + "/" + name, "method": http.MethodPost},
		}
	}
	text, _ := json.Marshal(map[string]any{"tools": []any{ // plain values
		map[string]any{"builtin": "calculator"}, tool(toolOnce, "once"), tool(toolIdempotent, "idempotent"),
	}})
	return text
}

// agents are what the runs do: ten steps with effects outside, a conversation, and a
// wait for a human whose time ends.
func agents() map[string]string {
	call := func(name, arguments string) string {
		return `{"name":"` + name + `","arguments":` + arguments + `}`
	}
	// Long arguments that do not compress well fill blocks of the log (4 MB).
	random := rand.New(rand.NewPCG(1, 1))
	long := ""
	for range 200 {
		long += fmt.Sprintf("%016x", random.Uint64())
	}
	sum, once, again := call("calculator", `{"expression":"6*7"}`), call(toolOnce, `{"text":"`+long+`"}`), call(toolIdempotent, `{"text":"`+long[1000:]+`"}`)
	calls := func(all ...string) string { return `{"calls":[` + strings.Join(all, ",") + `]}` }
	script := strings.Join([]string{
		calls(sum), calls(once), calls(sum), calls(again), calls(once, again), calls(sum), calls(once), calls(sum), calls(again), calls(sum), `{"text":"It is done."}`,
	}, ",")
	return map[string]string{
		"steps": `{"name":"steps","llm":{"provider":"scripted","script":[` + script + `]},"tools":["calculator","record","note"]}`,
		"talk":  `{"name":"talk","llm":{"provider":"scripted","script":[{"text":"Hello."},` + calls(once) + `,{"text":"I see."}]},"tools":["record"]}`,
		"ask":   `{"name":"ask","llm":{"provider":"scripted","script":[` + calls(once) + `,{"text":"Well."}]},"tools":["record"],"approval":{"policy":"always","expires":"20s"}}`,
	}
}

// load is the traced process: it starts moorebus, has runs carried out, and marks what
// is acknowledged.
type load struct {
	o     LoadOptions
	marks *os.File
	http  *http.Client

	mu sync.Mutex
	// known are the events that were marked; ended counts ends of runs.
	known map[string]bool
	ended int
	moved chan struct{}
}

// Load carries the load out. It writes each acknowledgement to the marks before it
// continues.
func Load(ctx context.Context, optionsFile string) (err error) {
	text, err := os.ReadFile(optionsFile)
	if err != nil {
		return err
	}
	l := &load{known: map[string]bool{}, moved: make(chan struct{}, 1), http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	if err := json.Unmarshal(text, &l.o); err != nil {
		return err
	}
	if l.marks, err = os.Create(l.o.Marks); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.marks.Close()) }()
	world := httptest.NewServer(effects(func(call, tool string) { l.mark(mark{Call: call, Tool: tool}) }))
	defer world.Close()
	tools := filepath.Join(l.o.Dir, "tools.json")
	if err := os.WriteFile(tools, toolFile(world.URL), 0o600); err != nil {
		return err
	}
	for life := 1; life <= l.o.Lives; life++ {
		if err := l.live(ctx, tools, life == l.o.Lives); err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
	}
	return nil
}

// effects is the world outside: it answers calls of tools after it has told seen.
func effects(seen func(call, tool string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen(r.Header.Get("Idempotency-Key"), r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
		_, _ = io.WriteString(w, "written down")
	})
}

func (l *load) mark(m mark) {
	line, _ := json.Marshal(m) // plain values
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.marks.Write(append(line, '\n')) // a mark that is missing demands nothing
}

// live is one start of moorebus with its runs.
func (l *load) live(ctx context.Context, tools string, last bool) (err error) {
	p, err := startServer(ctx, l.o.Program, l.o.Data, l.o.Fsync, tools, filepath.Join(l.o.Dir, "moorebus.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop(!last)) }()
	for name, agent := range agents() {
		if err := l.post(ctx, http.MethodPut, p.url+"/v1/agents/"+name, agent, nil); err != nil {
			return err
		}
		l.mark(mark{Agent: name})
	}
	l.mu.Lock()
	l.ended = 0
	l.mu.Unlock()
	watched, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { stop(); all.Wait() }()
	all.Go(func() { l.follow(watched, p.url) })
	first := make(chan error, 1)
	for worker := range 8 {
		all.Go(func() {
			for i := worker; i < l.o.Runs; i += 8 {
				if err := l.start(watched, p.url, i); err != nil && watched.Err() == nil {
					first <- err
					return
				}
			}
		})
	}
	want := l.o.Runs * 8 / 10 // the others wait for a human or a user
	if !last {
		want /= 2
	}
	deadline := time.After(2 * time.Minute)
	for {
		l.mu.Lock()
		ended := l.ended
		l.mu.Unlock()
		if ended >= want {
			return nil
		}
		select {
		case <-l.moved:
		case err := <-first:
			return err
		case <-deadline:
			return fmt.Errorf("%d of %d runs have ended after two minutes\n%s", ended, want, p.log())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// start starts run i and does what a client has to do for it.
func (l *load) start(ctx context.Context, url string, i int) error {
	agent, mode := "steps", "task"
	switch i % 10 {
	case 4:
		agent, mode = "talk", "chat"
	case 9:
		agent = "ask"
	}
	var made struct {
		RunID string `json:"run_id"`
		N     uint64 `json:"n"`
	}
	if err := l.post(ctx, http.MethodPost, url+"/v1/runs", fmt.Sprintf(`{"agent":%q,"task":"Do it.","mode":%q}`, agent, mode), &made); err != nil {
		return err
	}
	l.mark(mark{Run: made.RunID, N: made.N})
	if agent != "talk" {
		return nil
	}
	var said struct {
		N uint64 `json:"n"`
	}
	if err := l.post(ctx, http.MethodPost, url+"/v1/runs/"+made.RunID+"/inputs", `[{"type":"user-message","content":"And?"}]`, &said); err != nil {
		return err
	}
	l.mark(mark{Run: made.RunID, N: said.N})
	return nil
}

// post makes a request that has to succeed.
func (l *load) post(ctx context.Context, method, url, body string, out any) error {
	return request(ctx, l.http, method, url, body, out)
}

func request(ctx context.Context, client *http.Client, method, url, body string, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %d %s", method, url, answer.StatusCode, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// event is what is read of an event's body.
type event struct {
	Type string `json:"type"`
	Run  string `json:"subject"`
	N    uint64 `json:"n"`
	To   string `json:"to"`
	Data struct {
		CallID string `json:"call_id"`
		Calls  []struct {
			ID string `json:"id"`
		} `json:"calls"`
	} `json:"data"`
}

func (e *event) terminal() bool { return e.To == "done" || e.To == "error" || e.To == "cancelled" }

func hash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// follow marks every event of the feed until the stream breaks.
func (l *load) follow(ctx context.Context, url string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/events?from_seq=0:0", nil)
	if err != nil {
		return
	}
	r.Header.Set("Accept", "text/event-stream")
	answer, err := l.http.Do(r)
	if err != nil {
		return // the runs do not end then, which is an error
	}
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewReaderSize(answer.Body, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		if body, is := bytes.CutPrefix(line, []byte("data: ")); is {
			l.saw(bytes.TrimSuffix(body, []byte("\n")))
		}
	}
}

// saw marks an event of the feed.
func (l *load) saw(body []byte) {
	var e event
	if json.Unmarshal(body, &e) != nil || e.N == 0 {
		return // live text
	}
	m := mark{Run: e.Run, N: e.N, Hash: hash(body)}
	l.mu.Lock()
	known := l.known[m.Hash]
	l.known[m.Hash] = true
	l.mu.Unlock()
	if known {
		return
	}
	l.mark(m)
	if e.terminal() {
		l.mu.Lock()
		l.ended++
		l.mu.Unlock()
		select {
		case l.moved <- struct{}{}:
		default:
		}
	}
}

// freeAddress is a loopback address on which nobody listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

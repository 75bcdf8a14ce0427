package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
	"github.com/nats-io/nats.go"
)

// roleStart bounds the start of a process, roleEnd its end after SIGTERM.
const (
	roleStart = 20 * time.Second
	roleEnd   = 12 * time.Second
	// startsAtOnce is how many runs are started at once.
	startsAtOnce = 64
)

// fleet is a server in this process and roles in processes of their own,
// on loopback alone.
type fleet struct {
	dir, bin string
	server   *embedded.Server
	conn     *nats.Conn
	bus      *natsbus.Bus
	// gateway is the base URL of its HTTP.
	gateway   string
	http      *http.Client
	processes []*roleProcess
	// tool, if not nil, is the endpoint that its actor calls; close closes it.
	tool *endpoint
}

// roleCommands are the roles that the benchmarks start.
var roleCommands = []string{"gateway", "planner", "actor", "observer"}

// startFleet starts a server with a gateway, by the commands in bin.
func startFleet(ctx context.Context, bin string, syncAlways bool, o natsbus.InitOptions) (f *fleet, err error) {
	dir, err := os.MkdirTemp("", "moorebus-bench-")
	if err != nil {
		return nil, err
	}
	f = &fleet{dir: dir, bin: bin, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: startsAtOnce}}}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	f.server, err = embedded.Start(ctx, embedded.Options{Dir: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", SyncAlways: syncAlways})
	if err != nil {
		return f, err
	}
	// Over TCP as the roles are: what this process measures is what they see.
	if f.conn, err = natsbus.Connect(ctx, natsbus.ConnectOptions{URL: f.server.ClientURL(), Name: "moorebus/bench"}); err != nil {
		return f, err
	}
	if err := natsbus.Init(ctx, f.conn, o); err != nil {
		return f, err
	}
	if f.bus, err = natsbus.Open(ctx, f.conn, natsbus.Options{}); err != nil {
		return f, err
	}
	return f, f.startGateway(ctx)
}

// builtCommands returns a directory of the commands: bin, or if that is empty one
// that they are built into and that remove removes.
func builtCommands(ctx context.Context, bin string) (dir string, remove func(), err error) {
	if bin != "" {
		return bin, func() {}, nil
	}
	if dir, err = os.MkdirTemp("", "moorebus-bench-bin-"); err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	if err = buildCommands(ctx, dir, roleCommands...); err != nil {
		remove()
	}
	return dir, remove, err
}

// part is one part of a benchmark with settings of type S.
type part[S any] struct {
	name string
	run  func(context.Context, S) ([]figure, error)
}

// runParts runs one part, or all if only is empty.
func runParts[S any](ctx context.Context, only string, s S, parts []part[S]) ([]figure, error) {
	var figures []figure
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
		if only != "" && only != p.name {
			continue
		}
		more, err := p.run(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		figures = append(figures, more...)
	}
	if figures == nil {
		return nil, cli.Usage("--only: %q is no part of it; use one of %v", only, names)
	}
	return figures, nil
}

// startGateway starts the gateway on a free port and waits until it is ready.
func (f *fleet) startGateway(ctx context.Context) error {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		return err
	}
	f.gateway = "http://" + address
	p, err := f.start("gateway", nil, "--instance", "gateway", "--listen", address)
	if err != nil {
		return err
	}
	return p.await(ctx, "ready", func() bool {
		answer, err := f.http.Get(f.gateway + "/readyz")
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
}

// start starts a role with nothing of this process's environment but the path.
func (f *fleet) start(command string, env []string, args ...string) (*roleProcess, error) {
	p := &roleProcess{name: command, ended: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(f.bin, command), append(args, "--log-level", "warn")...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.dir, "NATS_URL=" + f.server.ClientURL()}, env...)
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the state says how it ended
	}()
	f.processes = append(f.processes, p)
	return p, nil
}

// startRoles starts several roles with no arguments but an instance's name.
func (f *fleet) startRoles(roles ...string) error {
	for _, role := range roles {
		if _, err := f.start(role, nil, "--instance", role); err != nil {
			return err
		}
	}
	return nil
}

// close ends everything and removes the data.
func (f *fleet) close() {
	var all sync.WaitGroup
	for _, p := range f.processes {
		all.Go(p.end)
	}
	all.Wait()
	if f.tool != nil {
		f.tool.close()
	}
	f.http.CloseIdleConnections()
	if f.conn != nil {
		f.conn.Close()
	}
	if f.server != nil {
		f.server.Shutdown()
	}
	_ = os.RemoveAll(f.dir)
}

// run starts a run of an agent, given as JSON, and repeats that while the roles
// are not known yet.
func (f *fleet) run(ctx context.Context, agent json.RawMessage) (id string, err error) {
	body, err := json.Marshal(map[string]any{"agent": agent, "task": "Do the steps."})
	if err != nil {
		return "", err
	}
	for {
		id, again, err := f.post(ctx, body)
		if err == nil || !again {
			return id, err
		}
		if !idle(ctx, 50*time.Millisecond) {
			return "", errors.Join(ctx.Err(), err)
		}
	}
}

func (f *fleet) post(ctx context.Context, body []byte) (id string, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.gateway+"/v1/runs", bytes.NewReader(body))
	if err != nil {
		return "", false, err
	}
	answer, err := f.http.Do(request)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = answer.Body.Close() }()
	var started struct {
		RunID string `json:"run_id"`
		Code  string `json:"code"`
		Text  string `json:"message"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&started); err != nil {
		return "", false, err
	}
	if answer.StatusCode != http.StatusCreated {
		again = started.Code == "unknown_provider" || started.Code == "unknown_tool"
		return "", again, fmt.Errorf("starting a run: HTTP %d: %s", answer.StatusCode, started.Text)
	}
	return started.RunID, false, nil
}

// runs starts n runs, startsAtOnce at once, and returns their ids.
func (f *fleet) runs(ctx context.Context, n int, agent json.RawMessage) ([]string, error) {
	ids, errs := make([]string, n), make([]error, n)
	slots := make(chan struct{}, startsAtOnce)
	var all sync.WaitGroup
	for k := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if ids[k], errs[k] = f.run(ctx, agent); errs[k] != nil {
				errs[k] = fmt.Errorf("run %d of %d: %w", k+1, n, errs[k])
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// stepsAgent is the agent of a scripted run that calls a tool in every step and then
// answers, as JSON.
func stepsAgent(steps int, tool, arguments string) (json.RawMessage, error) {
	script := make([]any, 0, steps+1)
	for range steps {
		script = append(script, map[string]any{"calls": []any{map[string]any{"name": tool, "arguments": json.RawMessage(arguments)}}})
	}
	script = append(script, map[string]string{"text": "All steps are done."})
	return json.Marshal(map[string]any{
		"name": "bench", "llm": map[string]any{"provider": "scripted", "script": script}, "tools": []string{tool},
		"config": map[string]any{"reflect_every_n_steps": 0, "max_steps": steps + 1},
	})
}

// last is the place of the log's last event: one shard, so it counts the events.
func (f *fleet) last(ctx context.Context) (uint64, error) { return f.bus.Last(ctx, 0) }

// roleProcess is a role that runs, or ran.
type roleProcess struct {
	name  string
	cmd   *exec.Cmd
	log   logTail
	ended chan struct{}
}

// await waits until the process is as it should be.
func (p *roleProcess) await(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, roleStart)
	defer cancel()
	for !is() {
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s: %s", p.name, p.cmd.ProcessState, p.log.String())
		default:
		}
		if !idle(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s is not %s: %w: %s", p.name, what, ctx.Err(), p.log.String())
		}
	}
	return nil
}

// end asks the process to end, and kills it if it does not.
func (p *roleProcess) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(roleEnd):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// logTail keeps the first part of what a process says.
type logTail struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := 8<<10 - l.text.Len(); room > 0 {
		l.text.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// idle pauses and reports whether the context is still there.
func idle(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// awaitEvents waits until the log holds so many events, and returns when it did.
func (f *fleet) awaitEvents(ctx context.Context, want uint64, limit time.Duration) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		last, err := f.last(ctx)
		if err == nil && last >= want {
			return time.Now(), nil
		}
		if !idle(ctx, 10*time.Millisecond) {
			return time.Time{}, fmt.Errorf("the log holds %d events of %d: %w%s", last, want, ctx.Err(), f.said())
		}
	}
}

// said is what the processes logged, for errors.
func (f *fleet) said() string {
	var b strings.Builder
	for _, p := range f.processes {
		if text := p.log.String(); text != "" {
			fmt.Fprintf(&b, "\n--- %s\n%s", p.name, text)
		}
	}
	return b.String()
}

// madeBy is who made an event, from its body.
func madeBy(body []byte) (string, error) {
	var e struct {
		Source string `json:"source"`
	}
	err := json.Unmarshal(body, &e)
	return e.Source, err
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/natsbus"
)

// startsAtOnce is how many runs are started at once.
const startsAtOnce = 64

// fleet is a server in this process and roles in their own processes, on
// loopback alone.
type fleet struct {
	*node
	bus *natsbus.Bus
	bin string
	// gateway is the base URL of its HTTP.
	gateway   string
	http      *http.Client
	processes []*process
	// tool, if not nil, is the endpoint that its actor calls; close closes it.
	tool *endpoint
}

// startFleet starts a server with a gateway, by the commands in bin; more are the
// gateway's further arguments.
func startFleet(ctx context.Context, bin string, t terms, o natsbus.InitOptions, more ...string) (f *fleet, err error) {
	t.tcp = true // as the roles are connected: what this process measures is what they see
	n, err := startNode(ctx, t)
	if err != nil {
		return nil, err
	}
	f = &fleet{node: n, bin: bin, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: startsAtOnce}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.bus, err = n.openBus(ctx, t, o); err != nil {
		return f, err
	}
	return f, f.startGateway(ctx, more)
}

// startGateway starts the gateway on a free port and waits until it is ready.
func (f *fleet) startGateway(ctx context.Context, more []string) error {
	free, err := freeport.Addresses(1)
	if err != nil {
		return err
	}
	address := free[0]
	f.gateway = "http://" + address
	p, err := f.start("gateway", nil, append(more, "--listen", address)...)
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

// start starts a role, whose instance is named after it and numbered.
func (f *fleet) start(role string, env []string, args ...string) (*process, error) {
	name := role
	for n := 1; slices.ContainsFunc(f.processes, func(p *process) bool { return p.name == name }); n++ {
		name = role + "-" + strconv.Itoa(n)
	}
	args = append(args, "--instance", name, "--log-level", "warn")
	p, err := startProcess(f.bin, f.dir, role, name, args, append(env, "NATS_URL="+f.server.ClientURL()))
	if err == nil {
		f.processes = append(f.processes, p)
	}
	return p, err
}

// startRoles starts several roles with the same arguments.
func (f *fleet) startRoles(roles []string, args ...string) error {
	for _, role := range roles {
		if _, err := f.start(role, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// close ends everything and removes the data. Its error says which processes had
// ended by themselves, or did not when they should.
func (f *fleet) close() error {
	errs := make([]error, len(f.processes))
	var all sync.WaitGroup
	for i, p := range f.processes {
		all.Go(func() { errs[i] = p.end() })
	}
	all.Wait()
	if f.tool != nil {
		f.tool.close()
	}
	f.http.CloseIdleConnections()
	f.node.close()
	return errors.Join(errs...)
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
		again = started.Code == "unknown_provider" || started.Code == "unknown_tool" || started.Code == "announcements_pending"
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
func (f *fleet) said() string { return saidBy(f.processes) }

func saidBy(processes []*process) string {
	var b strings.Builder
	for _, p := range processes {
		if text := p.tail(); text != "" {
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

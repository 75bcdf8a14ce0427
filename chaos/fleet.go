package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/retry"
)

// ackWait is how long a worker may be silent before its work goes to another.
const ackWait = 2 * time.Second

// poolWait is how long nobody may serve a pool before its calls are answered.
const poolWait = 2 * time.Second

// pools are the pools of tools; every actor serves two of them, so that each has
// two actors.
var pools = []string{"default", "web", "files"}

// agentsPool is that of agents that are called. Two actors serve it and nothing else.
const agentsPool = "agents"

// lonePool is served by the last actor alone.
const lonePool = "lone"

// partsPool is served by the first three actors, of which each lacks one of its tools,
// so that calls have to be passed on.
const partsPool = "parts"

// fleet is every process of one game.
type fleet struct {
	o       options
	servers []*process
	workers []*process
	// lone is the only actor of its pool.
	lone *process
	// exporter is the role that sends the log as traces.
	exporter *process
	urls     string // of all servers, with commas
	gateway  string // its base URL
}

// newFleet prepares the processes; toolFile writes what an actor serves, model is the
// base URL of the model server, traces that of the receiver of spans.
func newFleet(o options, toolFile func(actor int) (string, error), model, traces string) (*fleet, error) {
	f := &fleet{o: o}
	if err := os.MkdirAll(filepath.Join(o.dir, "logs"), 0o700); err != nil {
		return nil, err
	}
	if err := f.addServers(); err != nil {
		return nil, err
	}
	addresses, err := freeport.Addresses(1)
	if err != nil {
		return nil, err
	}
	f.gateway = "http://" + addresses[0]
	f.addWorker("gateway", 0, nil, "--listen", addresses[0], "--pool-wait", poolWait.String())
	for i := range 2 {
		f.addWorker("planner", i, []string{"OPENAI_BASE_URL=" + model + "/v1", "OPENAI_API_KEY=none"})
	}
	if err := f.addActors(toolFile); err != nil {
		return nil, err
	}
	for i := range 2 {
		f.addWorker("observer", i, nil, "--snapshot-every", "5")
	}
	f.addWorker("telemetry", 0, []string{endpoint + traces})
	f.exporter = f.workers[len(f.workers)-1]
	if err := f.serveMetrics(); err != nil {
		return nil, err
	}
	for i := range 2 {
		p := f.process("service-"+strconv.Itoa(i), "chaos", f.env(), "service", filepath.Join(o.dir, "ledger"))
		p.kind = "service"
		f.workers = append(f.workers, p)
	}
	return f, nil
}

// addActors adds those of the pools of tools, of which the last one serves the lone pool
// too, and those of the pool of agents.
func (f *fleet) addActors(toolFile func(actor int) (string, error)) error {
	for i := range len(pools) + 2 {
		file, err := toolFile(i)
		if err != nil {
			return err
		}
		args := []string{"--tools", file}
		switch {
		case i >= len(pools):
			args = append(args, "--pool", agentsPool)
		case i == len(pools)-1:
			args = append(args, "--pool", lonePool)
			fallthrough
		default:
			args = append(args, "--pool", pools[i], "--pool", pools[(i+1)%len(pools)], "--pool", partsPool)
		}
		f.addWorker("actor", i, nil, args...)
		if i == len(pools)-1 {
			f.lone = f.workers[len(f.workers)-1]
		}
	}
	return nil
}

// addServers adds one server that syncs every message, or three that replicate.
func (f *fleet) addServers() error {
	n := 1
	if f.o.cluster {
		n = 3
	}
	addresses, err := freeport.Addresses(2 * n)
	if err != nil {
		return err
	}
	clients, routes := addresses[:n], addresses[n:]
	for i := range n {
		more := ", sync_interval: always }\n"
		if f.o.cluster {
			more = fmt.Sprintf(" }\ncluster { name: chaos, listen: %q, routes: [\"nats://%s\"] }\n", routes[i], strings.Join(routes, `", "nats://`))
		}
		server, err := f.server("nats-"+strconv.Itoa(i), clients[i], more)
		if err != nil {
			return err
		}
		f.servers = append(f.servers, server)
	}
	f.urls = "nats://" + strings.Join(clients, ",nats://")
	return nil
}

// server prepares a server; more is the rest of its configuration, from within
// that of JetStream on.
func (f *fleet) server(name, address, more string) (*process, error) {
	text := fmt.Sprintf("server_name: %s\nlisten: %q\njetstream { store_dir: %q%s", name, address, filepath.Join(f.o.dir, "data", name), more)
	file := filepath.Join(f.o.dir, name+".conf")
	return f.process(name, "nats-server", nil, "-c", file), os.WriteFile(file, []byte(text), 0o600)
}

// addSpare adds an empty server to which nobody but the audit goes, and returns
// its URL.
func (f *fleet) addSpare() (*process, string, error) {
	addresses, err := freeport.Addresses(1)
	if err != nil {
		return nil, "", err
	}
	server, err := f.server("nats-spare", addresses[0], " }\n")
	f.servers = append(f.servers, server)
	return server, "nats://" + addresses[0], err
}

func (f *fleet) process(name, command string, env []string, args ...string) *process {
	return &process{
		name: name, kind: command, command: filepath.Join(f.o.bin, command), args: args, env: env,
		logPath: filepath.Join(f.o.dir, "logs", name+".log"),
	}
}

func (f *fleet) env(pairs ...string) []string {
	return environment(f.o.dir, append(pairs, "NATS_URL="+f.urls)...)
}

// addWorker adds a role's process. Its log has the lost races, which are told on
// level debug.
func (f *fleet) addWorker(role string, i int, env []string, args ...string) {
	name := role + "-" + strconv.Itoa(i)
	args = append([]string{"--instance", name, "--log-level", "debug", "--log-format", "json", "--group-commit", f.o.groupCommit()}, args...)
	command := role
	if role == "telemetry" {
		command, args = "moorebus", append([]string{role}, args...)
	}
	p := f.process(name, command, f.env(env...), args...)
	p.kind = role
	f.workers = append(f.workers, p)
}

// serveMetrics has every worker so far serve its metrics.
func (f *fleet) serveMetrics() error {
	addresses, err := freeport.Addresses(len(f.workers))
	if err != nil {
		return err
	}
	for i, p := range f.workers {
		p.metrics = addresses[i]
		p.args = append(p.args, "--metrics-listen", p.metrics)
	}
	return nil
}

func (f *fleet) all() []*process { return append(append([]*process{}, f.servers...), f.workers...) }

// start starts everything and returns when runs can be started.
func (f *fleet) start(ctx context.Context) error {
	for _, p := range f.servers {
		if err := p.start(); err != nil {
			return err
		}
	}
	if err := f.init(ctx); err != nil {
		return err
	}
	for _, p := range f.workers {
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

// init sets the bus up as soon as it answers.
func (f *fleet) init(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	replicas := "1"
	if f.o.cluster {
		replicas = "3"
	}
	return f.initAt(ctx, f.urls, "--shards", strconv.Itoa(f.o.shards), "--replicas", replicas)
}

// initAt sets up the bus of a server, with further arguments.
func (f *fleet) initAt(ctx context.Context, url string, args ...string) error {
	args = append([]string{"init", "--nats", url, "--ack-wait", ackWait.String(), "--pools", strings.Join(append([]string{lonePool, agentsPool, partsPool}, pools...), ",")}, args...)
	for {
		out, code, err := f.output(ctx, "moorebus", args...)
		if err == nil && code == 0 {
			return nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("moorebus init: exit %d: %s", code, out)
		}
	}
}

// stop ends the workers, then the servers.
func (f *fleet) stop() error {
	return errors.Join(endAll(f.workers), endAll(f.servers))
}

func endAll(all []*process) error {
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, p := range all {
		wait.Go(func() { errs[i] = p.end() })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// pause waits and reports false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	return retry.Wait(ctx, d)
}

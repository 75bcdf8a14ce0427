package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

// userCase is one way to run Moorebus.
type userCase struct {
	bin, layout, fsync, model, server string
	// lead is --lead of dev.
	lead bool
}

func (c userCase) String() string {
	return fmt.Sprintf("%s, fsync %s, %s", c.layout, c.fsync, c.model)
}

// flags are those that select when the log is flushed.
func (c userCase) flags() []string {
	if c.fsync == fsyncDefault {
		return nil
	}
	return []string{"--fsync", c.fsync}
}

const (
	serverAuto     = "auto"
	serverMoorebus = "moorebus"
	serverNATS     = "nats-server"
	serverCluster  = "cluster"
)

// userSite is an installation of processes alone, as a user starts them, on loopback
// and on a fresh data directory.
type userSite struct {
	dir, url string
	// task is the request that starts a run.
	task      []byte
	client    *http.Client // requests
	streams   *http.Client // streams of events
	model     *callModel
	processes []*process
}

// dataOf is the data directory of a site in a directory.
func dataOf(dir string) string { return filepath.Join(dir, "data") }

// userAgent is the name of the stored agent.
const userAgent = "agent-10"

// openUserSite starts the processes; close ends them and removes the data.
func openUserSite(ctx context.Context, c userCase) (u *userSite, err error) {
	dir, err := dataDir(c.fsync != fsyncRelaxed)
	if err != nil {
		return nil, err
	}
	return startUserSite(ctx, c, dir)
}

// startUserSite is openUserSite on a directory, which it takes over.
func startUserSite(ctx context.Context, c userCase, dir string) (u *userSite, err error) {
	free, err := freeport.Addresses(2)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	u = &userSite{
		dir: dir, url: "http://" + free[0],
		client:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}},
		streams: &http.Client{Transport: &http.Transport{}},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.close())
		}
	}()
	if u.task, err = json.Marshal(map[string]string{"agent": userAgent, "task": "Do the steps."}); err != nil {
		return u, err
	}
	var env []string
	if c.model == modelOpenAI {
		if u.model, err = newCallModel(); err != nil {
			return u, err
		}
		env = []string{"OPENAI_BASE_URL=" + u.model.url + "/v1", "OPENAI_API_KEY=none", "OPENAI_MODEL=bench"}
	}
	if c.layout == layoutDev {
		args := append([]string{"dev", "--data", dataOf(dir), "--listen", free[0]}, c.flags()...)
		if c.lead {
			args = append(args, "--lead")
		}
		if _, err := u.launch(c.bin, "moorebus", "dev", args, env); err != nil {
			return u, err
		}
	} else if err := u.split(ctx, c, free[0], free[1], env); err != nil {
		return u, err
	}
	return u, u.answers(ctx, u.url+"/readyz", u.processes[len(u.processes)-1])
}

// split starts a server and a process for each role, the gateway last.
func (u *userSite) split(ctx context.Context, c userCase, listen, bus string, env []string) error {
	env = append(env, "NATS_URL=nats://"+bus)
	start := u.bus
	if c.server == serverCluster {
		start = u.cluster
	}
	if err := start(ctx, c, bus, env); err != nil {
		return err
	}
	for _, role := range []string{"planner", "actor", "observer"} {
		if _, err := u.launch(c.bin, role, role, nil, env); err != nil {
			return err
		}
	}
	_, err := u.launch(c.bin, "gateway", "gateway", []string{"--listen", listen}, env)
	return err
}

// bus starts the server and sets it up.
func (u *userSite) bus(ctx context.Context, c userCase, address string, env []string) error {
	own := c.server == serverMoorebus
	if c.server == serverAuto {
		// A command without `server` shows its own help, which does not name this flag.
		help, err := exec.CommandContext(ctx, filepath.Join(c.bin, "moorebus"), "server", "--help").CombinedOutput()
		own = err == nil && strings.Contains(string(help), "--fsync")
	}
	if own {
		args := append([]string{"server", "--data", dataOf(u.dir), "--nats-listen", address}, c.flags()...)
		p, err := u.launch(c.bin, "moorebus", "server", args, nil)
		if err != nil {
			return err
		}
		return u.initialised(ctx, c.bin, p, []string{"doctor"}, env)
	}
	if c.fsync != fsyncDefault && c.fsync != fsyncRelaxed && c.fsync != "always" {
		return fmt.Errorf("nats-server has no fsync mode %q: use --server moorebus", c.fsync)
	}
	conf := filepath.Join(u.dir, "nats.conf")
	text := fmt.Sprintf("listen: %q\njetstream { store_dir: %q\n", address, dataOf(u.dir))
	if c.fsync != fsyncRelaxed {
		text += "sync_interval: always\n" // as deploy/nats-server.conf has it
	}
	if err := os.WriteFile(conf, []byte(text+"}\n"), 0o600); err != nil {
		return err
	}
	p, err := u.launch(natsServer(c.bin), serverNATS, serverNATS, []string{"-c", conf}, nil)
	if err != nil {
		return err
	}
	return u.initialised(ctx, c.bin, p, []string{"init", "--wait"}, env)
}

// cluster starts three servers, the first at that address, with every stream on each.
func (u *userSite) cluster(ctx context.Context, c userCase, first string, env []string) error {
	free, err := freeport.Addresses(5)
	if err != nil {
		return err
	}
	clients, routes := append([]string{first}, free[:2]...), free[2:]
	for i, listen := range clients {
		name := fmt.Sprintf("server-%d", i+1)
		conf := filepath.Join(u.dir, name+".conf")
		text := fmt.Sprintf("server_name: %s\nlisten: %q\njetstream { store_dir: %q }\ncluster { name: bench, listen: %q, routes: [nats://%s] }\n",
			name, listen, filepath.Join(dataOf(u.dir), name), routes[i], strings.Join(routes, ", nats://"))
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return err
		}
		if _, err := u.launch(natsServer(c.bin), serverNATS, name, []string{"-c", conf}, nil); err != nil {
			return err
		}
	}
	return u.initialised(ctx, c.bin, u.processes[0], []string{"init", "--replicas", "3", "--wait"}, env)
}

// natsServer is the directory of nats-server: that of the commands, or that of this
// program.
func natsServer(bin string) string {
	if _, err := os.Stat(filepath.Join(bin, serverNATS)); err == nil {
		return bin
	}
	if own, err := os.Executable(); err == nil {
		return filepath.Dir(own)
	}
	return bin
}

// initialised waits until a command of the client succeeds on the bus.
func (u *userSite) initialised(ctx context.Context, bin string, server *process, args, env []string) error {
	var said []byte
	err := server.await(ctx, "set up", func() (is bool) {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "moorebus"), args...)
		cmd.Env = append([]string{"HOME=" + u.dir}, env...)
		var err error
		said, err = cmd.CombinedOutput()
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("%w\nmoorebus %s: %s", err, strings.Join(args, " "), said)
	}
	return nil
}

// launch starts one process.
func (u *userSite) launch(bin, command, name string, args, env []string) (*process, error) {
	p, err := startProcess(bin, u.dir, command, name, args, env)
	if err == nil {
		u.processes = append(u.processes, p)
	}
	return p, err
}

// answers waits until the URL answers with 200.
func (u *userSite) answers(ctx context.Context, url string, p *process) error {
	return p.await(ctx, "ready", func() bool {
		answer, err := u.client.Get(url)
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
}

// store stores the agent. Its model gets all messages.
func (u *userSite) store(ctx context.Context, model string, steps int) error {
	a, err := stepAgent(steps)
	if err != nil {
		return err
	}
	llm := map[string]any{"provider": modelScripted, "script": a.LLM.Script}
	if model == modelOpenAI {
		u.model.steps.Store(int64(steps))
		llm = map[string]any{"provider": modelOpenAI}
	}
	body, err := json.Marshal(map[string]any{
		"name": userAgent, "llm": llm, "tools": []string{builtin.Calculator},
		"config": map[string]any{"reflect_every_n_steps": 0, "max_steps": steps + 1, "context_window_size": 0},
	})
	if err != nil {
		return err
	}
	var stored struct{ Name, Hash string }
	return u.request(ctx, http.MethodPut, "/v1/agents/"+userAgent, body, http.StatusOK, &stored)
}

// awaitRoles waits until a run can be started, and starts one: the gateway may be ready
// before the other roles have announced what they offer.
func (u *userSite) awaitRoles(ctx context.Context) error {
	var failed error
	err := u.processes[0].await(ctx, "joined by the roles", func() bool {
		_, failed = u.carry(ctx, load{runs: 1, atOnce: 1})
		return failed == nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w%s", err, failed, u.said())
	}
	return nil
}

// cpu is how long each process has computed.
func (u *userSite) cpu() ([]time.Duration, error) {
	spent := make([]time.Duration, len(u.processes))
	for i, p := range u.processes {
		var err error
		if spent[i], err = cpuTime(p.cmd.Process.Pid); err != nil {
			return nil, err
		}
	}
	return spent, nil
}

// cpuSince is how long each has computed since cpu returned before.
func (u *userSite) cpuSince(before []time.Duration) (names []string, spent []time.Duration, err error) {
	if spent, err = u.cpu(); err != nil {
		return nil, nil, err
	}
	for i, p := range u.processes {
		names = append(names, p.name)
		spent[i] -= before[i]
	}
	return names, spent, nil
}

// close ends all processes, in the order in which a user would, and removes the data.
func (u *userSite) close() error {
	u.client.CloseIdleConnections()
	u.streams.CloseIdleConnections()
	var errs []error
	for i := len(u.processes) - 1; i >= 0; i-- {
		errs = append(errs, u.processes[i].end())
	}
	if u.model != nil {
		u.model.close()
	}
	return errors.Join(append(errs, os.RemoveAll(u.dir))...)
}

// said is what the processes logged, for errors.
func (u *userSite) said() string { return saidBy(u.processes) }

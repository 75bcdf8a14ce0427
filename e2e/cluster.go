package e2e

import (
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startTime bounds every start, and other things that do not take long.
const startTime = time.Minute

// setup says what a cluster is made of; no number means one.
type setup struct {
	planners, actors, observers, gateways int
	// ackWait is for `moorebus init`; 0 is the default.
	ackWait time.Duration
	// tools are the names of the tools; they are pure, unless toolSettings says
	// something else in YAML's flow form.
	tools        []string
	toolSettings map[string]string
	// toolApproval is the approval of the tool file itself, in YAML's flow form.
	toolApproval string
	// actorTools are the tools that each actor has of them; empty: all.
	actorTools [][]string
	// actorPools has the pool that each actor serves; empty: each serves all.
	actorPools []string
	// mcp is the file of the MCP servers of each actor.
	mcp string
	// observing makes the actors observers, too. Others are started only by start then.
	observing bool
	// services makes the actors serve the tools of all NATS services.
	services bool
	// subagents are entries of a tool file, in YAML's flow form, whose tools are
	// agents. If there are any, an actor of its own serves the pool `agents`.
	subagents []string
	// gatewayArgs are further arguments of gateways.
	gatewayArgs []string
	// initArgs are further arguments of `moorebus init`.
	initArgs []string
	// late starts the bus after everything else.
	late bool
}

// cluster is Moorebus in its own processes around a nats-server process.
type cluster struct {
	t     *testing.T
	setup setup
	home  string
	store string
	// busAddress and gatewayAddresses stay the same over restarts.
	busAddress       string
	gatewayAddresses []string

	bus       *process
	roles     map[string]*process // those that run, by instance
	launched  []*process          // every process there ever was
	toolFiles map[string]string

	// older is where the commands of an earlier build are; those of the instances in outdated
	// are started. Both may be empty.
	older    string
	outdated map[string]bool

	model *modelServer
	tools *toolServer
	api   *api
}

// startCluster starts everything, waits until it is ready, and stops everything
// at the end of the test, when every process has to end well.
func startCluster(t *testing.T, s setup) *cluster {
	t.Helper()
	return startOlderCluster(t, "", s)
}

// startOlderCluster starts a cluster whose processes are all of the build in the directory older,
// the server excepted. An empty one: of this build.
func startOlderCluster(t *testing.T, older string, s setup) *cluster {
	t.Helper()
	needsCommands(t)
	for _, n := range []*int{&s.planners, &s.actors, &s.observers, &s.gateways} {
		*n = max(*n, 1)
	}
	if s.observing {
		s.observers = 0
	}
	s.actors = max(s.actors, len(s.actorPools), len(s.actorTools))
	addresses := freeAddresses(t, 1+s.gateways)
	c := &cluster{
		t: t, setup: s, home: t.TempDir(), store: t.TempDir(), busAddress: addresses[0], gatewayAddresses: addresses[1:],
		roles: map[string]*process{}, toolFiles: map[string]string{}, model: newModelServer(t), tools: newToolServer(t),
		older: older, outdated: map[string]bool{},
	}
	if older != "" {
		c.each(func(role string, i int) { c.outdated[instance(role, i)] = true })
	}
	c.api = newAPI(t, "http://"+c.gatewayAddresses[0])
	t.Cleanup(c.stop)
	if !s.late {
		c.startBus()
	}
	c.each(c.start)
	if s.late {
		c.startBus()
	}
	c.api.awaitReady()
	c.api.awaitTools(s.tools)
	for i := range s.observers { // an observer tells nobody else that it is there
		p := c.roles[instance("observer", i)]
		require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "msg=ready") }, startTime, 10*time.Millisecond, p.name)
	}
	return c
}

// each calls fn with the name of every role process.
func (c *cluster) each(fn func(role string, i int)) {
	for _, role := range []string{"gateway", "planner", "actor", "observer", "agents"} {
		for i := range c.numberOf(role) {
			fn(role, i)
		}
	}
}

// numberOf returns how many processes a role has.
func (c *cluster) numberOf(role string) int {
	return map[string]int{
		"gateway": c.setup.gateways, "planner": c.setup.planners, "actor": c.setup.actors, "observer": c.setup.observers,
		"agents": min(1, len(c.setup.subagents)),
	}[role]
}

// startServer starts the bus's process and leaves it at that.
func (c *cluster) startServer() {
	c.t.Helper()
	host, port := "127.0.0.1", c.busAddress[len("127.0.0.1:"):]
	c.bus = c.launch("nats-server", environment(c.home), "nats-server", "-a", host, "-p", port, "-js", "-sd", c.store)
}

// startBus starts the server and sets the streams up, twice, since that is safe.
func (c *cluster) startBus() {
	c.t.Helper()
	c.startServer()
	c.init(c.t, c.older != "")
	c.init(c.t, c.older != "")
}

// init runs `moorebus init`, that of the older build or that of this one.
func (c *cluster) init(t *testing.T, older bool) {
	t.Helper()
	args := append([]string{"init"}, c.setup.initArgs...)
	if c.setup.ackWait > 0 {
		args = append(args, "--ack-wait", c.setup.ackWait.String())
	}
	if pools := c.pools(); len(pools) > 0 {
		args = append(args, "--pools", strings.Join(pools, ","))
	}
	dir := bin
	if older {
		dir = c.older
	}
	var out output
	require.Eventually(t, func() bool {
		out = runOf(t, dir, c.env(), "moorebus", args...)
		return out.code != 75 // the bus does not answer yet
	}, startTime, 20*time.Millisecond)
	require.Zero(t, out.code, "moorebus init: %s", out.stderr)
}

// pools are the pools of tools that `moorebus init` is told of.
func (c *cluster) pools() []string {
	pools := slices.Clone(c.setup.actorPools)
	if len(c.setup.subagents) > 0 {
		pools = append(pools, "agents")
	}
	return pools
}

func (c *cluster) busURL() string { return "nats://" + c.busAddress }

func (c *cluster) env(pairs ...string) []string {
	return environment(c.home, append(pairs, "NATS_URL="+c.busURL())...)
}

func instance(role string, i int) string { return role + "-" + strconv.Itoa(i) }

// start starts, or starts again, the i-th process of a role.
func (c *cluster) start(role string, i int) {
	c.t.Helper()
	name, command := instance(role, i), role
	args, env := []string{"--instance", name}, c.env()
	switch role {
	case "gateway":
		args = append(append(args, "--listen", c.gatewayAddresses[i]), c.setup.gatewayArgs...)
	case "planner":
		// The key tells the model server which planner asks.
		env = c.env("OPENAI_BASE_URL="+c.model.URL+"/v1", "OPENAI_API_KEY="+name)
	case "actor":
		if c.toolFiles[name] == "" {
			of := c.setup
			if len(of.actorTools) > 0 {
				of.tools = of.actorTools[i]
			}
			c.toolFiles[name] = c.tools.write(c.t, name, &of)
		}
		args = append(args, "--tools", c.toolFiles[name])
		if c.setup.observing {
			args = append(args, "--observe")
		}
		if c.setup.services {
			args = append(args, "--services")
		}
		if pools := c.setup.actorPools; len(pools) > 0 {
			args = append(args, "--pool", pools[i])
		}
	case "agents":
		command = "actor"
		args = append(args, "--pool", "agents", "--tools", c.subagentFile())
	}
	if c.outdated[name] {
		cmd := exec.Command(filepath.Join(c.older, "moorebus"), append([]string{command}, args...)...) // one binary is every role
		cmd.Env = env
		p := startProcess(c.t, name+" (older)", cmd)
		c.launched = append(c.launched, p)
		c.roles[name] = p
		return
	}
	c.roles[name] = c.launch(name, env, command, args...)
}

// subagentFile writes the tool file of the actor of the pool `agents`, once.
func (c *cluster) subagentFile() string {
	c.t.Helper()
	const of = "agents"
	if c.toolFiles[of] == "" {
		c.toolFiles[of] = filepath.Join(c.t.TempDir(), "agents.yaml")
		text := "tools:\n  - " + strings.Join(c.setup.subagents, "\n  - ") + "\n"
		require.NoError(c.t, os.WriteFile(c.toolFiles[of], []byte(text), 0o600))
	}
	return c.toolFiles[of]
}

func (c *cluster) launch(name string, env []string, command string, args ...string) *process {
	c.t.Helper()
	p := launch(c.t, name, env, command, args...)
	c.launched = append(c.launched, p)
	return p
}

// replace kills the i-th process of a role (kill -9) and starts it again.
func (c *cluster) replace(role string, i int) {
	c.t.Helper()
	c.roles[instance(role, i)].kill()
	c.start(role, i)
}

// restart kills every process, the server first, and starts all of them again.
func (c *cluster) restart() {
	c.t.Helper()
	c.bus.kill()
	c.each(func(role string, i int) { c.roles[instance(role, i)].kill() })
	c.startServer()
	c.each(c.start)
	c.api.awaitReady()
}

// stop ends the roles, then the bus, each with SIGTERM.
func (c *cluster) stop() {
	// A connection that was opened ahead and never used keeps a server of Go's
	// library from ending for 5 s.
	c.api.http.CloseIdleConnections()
	terminateAll(c.t, slices.Collect(maps.Values(c.roles)))
	if c.bus != nil {
		terminateAll(c.t, []*process{c.bus})
	}
	for _, p := range c.launched {
		p.reap(c.t)
	}
}

// replay runs the replay command on the bus.
func (c *cluster) replay(args ...string) output {
	c.t.Helper()
	return run(c.t, c.env(), "replay", args...)
}

// verifyAll holds every run of the bus to the laws of the log.
func (c *cluster) verifyAll() {
	c.t.Helper()
	out := c.replay("verify", "--all")
	require.Zero(c.t, out.code, "replay verify --all: %s%s", out.stdout, out.stderr)
}

// awaitReady waits until the gateway says that everything it needs is there.
func (a *api) awaitReady() {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		status, _, err := a.do(a.t.Context(), http.MethodGet, "/readyz", nil)
		return err == nil && status == http.StatusOK
	}, startTime, 10*time.Millisecond, "the gateway is not ready")
}

// awaitTools waits until the tools are announced.
func (a *api) awaitTools(names []string) {
	a.t.Helper()
	var missing string
	require.Eventually(a.t, func() bool {
		var tools []struct {
			Name string `json:"name"`
		}
		if err := a.get(a.t.Context(), "/v1/tools", &tools); err != nil {
			missing = err.Error()
			return false
		}
		announced := map[string]bool{}
		for _, tool := range tools {
			announced[tool.Name] = true
		}
		missing = ""
		for _, name := range names {
			if !announced[name] {
				missing = name
			}
		}
		return missing == ""
	}, startTime, 10*time.Millisecond, "tools are not announced: %v", lazy(func() string { return missing }))
}

// lazy is a text that is made when it is printed.
type lazy func() string

func (l lazy) String() string { return l() }

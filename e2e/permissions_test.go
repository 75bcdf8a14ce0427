package e2e

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// site is a copy of deploy/nats in which the commands of its README are run as
// they stand there, but for the ports, which are free ones.
type site struct {
	t     *testing.T
	dir   string
	ports *strings.Replacer
	port  map[string]string
	env   []string
}

// lasting are the commands that run until they are told to end.
var lasting = regexp.MustCompile(`^(\w+=\S+ )*(nats-server|gateway|planner|observer|actor|moorebus tap|moorebus server)( |$)`)

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), port: map[string]string{}}
	var pairs []string
	used := []string{"4222", "4223", "4224", "8222", "8223", "8224", "6222", "6223", "6224", "8080"}
	addresses := freeAddresses(t, len(used))
	for i, port := range used {
		_, free, err := net.SplitHostPort(addresses[i])
		require.NoError(t, err)
		s.port[port] = free
		pairs = append(pairs, ":"+port, ":"+free)
	}
	s.ports = strings.NewReplacer(pairs...)
	require.NoError(t, os.CopyFS(s.dir, os.DirFS("../deploy/nats")))
	confs, err := filepath.Glob(filepath.Join(s.dir, "*.conf"))
	require.NoError(t, err)
	more, err := filepath.Glob(filepath.Join(s.dir, "cluster", "*.conf"))
	require.NoError(t, err)
	require.Len(t, more, 4)
	for _, file := range append(confs, more...) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte(s.ports.Replace(string(text))), 0o600))
	}
	s.env = environment(t.TempDir())
	s.env[0] = "PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")
	s.do(s.block("moorebus certs"))
	return s
}

// block returns the commands of one block of the README, named by its first
// words that tell it from the others.
func (s *site) block(holds string) []string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "README.md"))
	require.NoError(s.t, err)
	for _, found := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(found[1], holds) {
			return strings.Split(strings.TrimSpace(s.ports.Replace(found[1])), "\n")
		}
	}
	require.Fail(s.t, "the README has no such block", holds)
	return nil
}

// do runs the commands in order. Those that last are started and returned; the
// others have to succeed, and their output is returned.
func (s *site) do(commands []string) (started []*process, said string) {
	s.t.Helper()
	for _, line := range commands {
		switch rest, export := strings.CutPrefix(line, "export "); {
		case export:
			s.env = append(s.env, strings.Fields(rest)...)
		case lasting.MatchString(line):
			started = append(started, s.start(line))
		default:
			said += s.shell(line)
		}
	}
	return started, said
}

func (s *site) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, s.env, time.Second
	return cmd
}

func (s *site) shell(line string) string {
	s.t.Helper()
	needsCommands(s.t)
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := s.command(ctx, "exec env "+line)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(s.t, cmd.Run(), "%s\n%s%s", line, &stdout, &stderr)
	return stdout.String()
}

func (s *site) start(line string) *process {
	s.t.Helper()
	p := startProcess(s.t, line, s.command(context.Background(), "exec env "+line))
	s.t.Cleanup(func() { p.reap(s.t) })
	return p
}

// awaitPort waits until somebody listens there.
func (s *site) awaitPort(port string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:"+s.port[port], time.Second)
		return err == nil && conn.Close() == nil
	}, startTime, 10*time.Millisecond, "port %s", port)
}

// guardedTools serve two pools; dump's result is too large for the log.
const guardedTools = `tools:
  - {builtin: calculator}
  - {name: dump, description: Prints much., schema: {type: object}, pool: web, effect: pure, exec: {command: [sh, -c, "head -c 700000 /dev/zero | tr '\\0' x"]}}
  - {name: pay, description: Pays., schema: {type: object}, pool: web, exec: {command: [echo, paid]}}
`

var guardedAgent = map[string]any{
	"name": "guarded", "tools": []string{"calculator", "dump", "pay"},
	"approval": map[string]any{"policy": "tools", "tools": []string{"pay"}},
	"llm": map[string]any{"provider": "scripted", "script": []any{
		map[string]any{"calls": []any{
			map[string]any{"name": "calculator", "arguments": map[string]any{"expression": "40 + 2"}, "id": "sum"},
			map[string]any{"name": "dump", "arguments": map[string]any{}, "id": "dump"},
		}},
		map[string]any{"calls": []any{map[string]any{"name": "pay", "arguments": map[string]any{}, "id": "pay"}}},
		map[string]any{"text": "It is {{observation -1}}."},
	}},
}

// TestGuardedBus follows the README of deploy/nats: a server with TLS and a user
// for each role. A run needs all of them: calls in two pools, a result that goes
// to the object store, an approval. The tap sees it and can do nothing.
func TestGuardedBus(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "tools.yaml"), []byte(guardedTools), 0o600))
	s.do(s.block("--credentials keys > permissions.conf"))
	info, err := os.Stat(filepath.Join(s.dir, "keys", "planner.nk"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	server, _ := s.do(s.block("-c server.conf"))
	s.awaitPort("4222")
	_, said := s.do(s.block("operator.nk moorebus init --pools web\n"))
	require.Contains(t, said, "set up: pool web")
	roles, _ := s.do(s.block("gateway.nk"))
	require.Len(t, roles, 5)

	look := s.block("tap.nk")
	taps, _ := s.do(look[:2])
	a := newAPI(t, "http://127.0.0.1:"+s.port["8080"])
	a.awaitReady()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var run struct {
		ID     string `json:"run_id"`
		Queued bool   `json:"queued"`
	}
	require.NoError(t, a.call(ctx, "PUT", "/v1/quotas/default", map[string]any{"active": 1}, nil))
	require.NoError(t, a.persist(ctx, "POST", "/v1/runs", map[string]any{"agent": guardedAgent, "task": "Pay."}, &run))
	require.True(t, run.Queued, "it is admitted soon")
	s.awaitState(ctx, a, run.ID, "waiting_for_human")
	require.NoError(t, a.call(ctx, "POST", "/v1/runs/"+run.ID+"/decisions", map[string]any{"call_id": "pay", "decision": "approved", "by": "ann"}, nil))
	s.awaitState(ctx, a, run.ID, "done")
	var view struct {
		Memory struct {
			Answer string `json:"final_answer"`
		} `json:"memory"`
	}
	require.NoError(t, a.get(ctx, "/v1/runs/"+run.ID, &view))
	require.Contains(t, view.Memory.Answer, "paid")
	_, log, err := a.do(ctx, "GET", "/v1/runs/"+run.ID+"/events", nil)
	require.NoError(t, err)
	require.Contains(t, string(log), `"bucket":"results_web"`, "the large result went to the object store")
	require.Eventually(t, func() bool { return strings.Contains(taps[0].log.String(), "LlmFinalAnswer") }, startTime, 10*time.Millisecond, "the tap sees the end")

	_, said = s.do(look[2:])
	require.Contains(t, said, run.ID, "moorebus runs, as the operator")
	require.NotContains(t, said, "bad ", "moorebus doctor, as a tap and as the operator")
	require.Contains(t, said, "unseen", "moorebus doctor, as a tap")
	s.refusedToTap()
	s.keepAndFork(run.ID)
	s.addPool(server[0])
	terminateAll(t, roles)
	for _, role := range roles {
		for _, refused := range []string{"violation", "not permitted"} {
			require.NotContains(t, role.log.String(), refused, "%s may do what it does", role.name)
		}
	}
}

// keepAndFork does with a run what only the operator may.
func (s *site) keepAndFork(run string) {
	s.t.Helper()
	operator := "NATS_NKEY=keys/operator.nk moorebus "
	fork := strings.TrimSpace(s.shell(operator + "fork " + run + " --at 1"))
	require.Len(s.t, fork, len(run))
	s.shell(operator + "cancel " + fork)
	s.shell(operator + "purge " + run + " --parents-of-kept --archive archive.jsonl --grace 1ms")
	require.Contains(s.t, s.shell(operator+"import archive.jsonl"), "imported")
	s.shell("NATS_NKEY=keys/tap.nk NATS_INBOX_PREFIX=_INBOX_tap replay verify --all")
}

// addPool adds a pool as the README says, but that the server is told by its
// process.
func (s *site) addPool(server *process) {
	s.t.Helper()
	later := s.block("--pools web,gpu")
	s.do(later[:1])
	s.reload(server)
	s.do(later[2:])
	s.awaitUser("actor_gpu")
}

// reload has a server read its configuration again, once. While it does, it may refuse anybody.
func (s *site) reload(server *process) {
	s.t.Helper()
	require.NoError(s.t, server.cmd.Process.Signal(syscall.SIGHUP))
	require.Eventually(s.t, func() bool { return strings.Contains(server.log.String(), "Reloaded server configuration") }, startTime, 10*time.Millisecond)
}

// awaitUser waits until the server knows a user.
func (s *site) awaitUser(name string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), startTime)
		defer cancel()
		return s.command(ctx, "exec env NATS_NKEY=keys/"+name+".nk NATS_INBOX_PREFIX=_INBOX_"+name+" replay verify --all").Run() == nil
	}, startTime, 50*time.Millisecond, "%s has a user", name)
}

func (s *site) awaitState(ctx context.Context, a *api, run, want string) {
	s.t.Helper()
	var view struct {
		State string `json:"state"`
	}
	require.Eventually(s.t, func() bool {
		return a.get(ctx, "/v1/runs/"+run, &view) == nil && view.State == want
	}, time.Minute, 20*time.Millisecond, "the run comes to %s; it is in %s", want, lazy(func() string { return view.State }))
}

// refusedToTap has a tap try what only others may.
func (s *site) refusedToTap() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	out, err := s.command(ctx, "exec env NATS_NKEY=keys/tap.nk NATS_INBOX_PREFIX=_INBOX_tap moorebus init --pools web").CombinedOutput()
	require.Error(s.t, err)
	require.Contains(s.t, string(out), "$JS.API.")
	require.Contains(s.t, string(out), "not permitted")
}

// TestGuardedCluster follows the README for three servers with TLS on every
// connection, kills one of them and carries on.
func TestGuardedCluster(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	block := s.block("cluster/n1.conf")
	servers, said := s.do(block)
	require.Len(t, servers, 3)
	require.Contains(t, said, "the log lies on 3 servers")
	servers[0].kill()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), startTime)
		defer cancel()
		return s.command(ctx, "exec env NATS_NKEY=keys/tap.nk NATS_INBOX_PREFIX=_INBOX_tap replay verify --all").Run() == nil
	}, time.Minute, 50*time.Millisecond, "two servers carry on")
}

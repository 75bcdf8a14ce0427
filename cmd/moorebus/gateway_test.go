package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/pkg/events"
)

// outcome is what a command wrote, and its exit code.
type outcome struct {
	out, err string
	code     int
}

// moorebus runs a command in a process of its own, and has ids and times of its output be alike.
func moorebus(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "moorebus", args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+home, "USER=tester", "GORACE="+noSleep)
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{out.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

var ids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}`)

func (o outcome) withoutIDs() outcome {
	return outcome{ids.ReplaceAllString(o.out, "ID"), ids.ReplaceAllString(o.err, "ID"), o.code}
}

func agentOf(t *testing.T, text string) events.Agent {
	t.Helper()
	a, err := agentfile.ParseAgent([]byte(text), agentfile.YAML, agentfile.Options{CheckScript: script.Check})
	require.NoError(t, err)
	return a
}

// Every command on runs says over HTTP what it says on the bus.
func TestCommandsOverHTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts hundreds of processes
	}
	t.Parallel()
	b := testBus(t)
	start := func(a events.Agent, task string, state events.State) string {
		id, err := b.start(a, task, state)
		require.NoError(t, err)
		return id
	}
	asker := agentOf(t, `{name: asker, llm: {provider: scripted, script: [{calls: [{name: calculator, arguments: {"expression": "40 + 2"}}]}, {text: "It is {{observation -1}}."}]}, tools: [calculator], approval: {policy: always}}`)
	questioner := agentOf(t, `{name: asker, llm: {provider: scripted, script: [{calls: [{name: ask_human, arguments: {"question": "Which?"}}]}, {text: Fine.}]}, tools: [ask_human]}`)
	painter := agentOf(t, `{name: painter, llm: {provider: scripted, script: [{calls: [{name: pick, arguments: {"a": 1}}]}, {text: Painted.}]}, client_tools: [{name: pick, description: Picks., schema: {type: object}}]}`)
	failing := agentOf(t, `{name: failing, llm: {provider: scripted, script: [{error: {kind: auth, message: the key is no good}}]}}`)
	chat := start(chatAgent(t), "Hello?", events.WaitingForUser)
	waiting := start(asker, "What is 40 + 2?", events.WaitingForHuman)
	dead := start(failing, "Fail.", events.Errored)
	fork := strings.TrimSpace(moorebus(t, "", "fork", chat, "--at", "2", "--nats", b.url).out)
	require.Regexp(t, ids, fork)

	onBus, overHTTP := []string{"--nats", b.url}, []string{"--url", b.gateway, "--token", testToken}
	both := func(stdin string, args ...string) {
		t.Helper()
		bus, http := moorebus(t, stdin, append(args, onBus...)...), moorebus(t, stdin, append(args, overHTTP...)...)
		require.Equal(t, bus, http, args)
		require.NotEqual(t, outcome{}, bus, args) // it said something
	}
	const unknown = "0198c5a0-5a6b-7c00-8000-000000000001"
	for _, args := range [][]string{
		{"runs", "-o", "json"}, {"runs", "-o", "json", "--limit", "1"}, {"runs", "-o", "json", "--state", "waiting_for_human"}, {"runs", "-o", "yaml", "--agent", "talker", "--since", "1h"},
		{"runs", "--limit", "1001"}, {"runs", "--state", "flying"}, {"runs", "--parent", unknown, "-o", "json"}, {"runs", "--namespace", "other", "-o", "json"},
		{"runs", "-o", "json", "--waiting", "any", "--text", "HELLO", "--cost-above", "0"},
		{"show", chat}, {"show", chat, "--at", "1"}, {"show", chat, "--at", "99"}, {"show", chat, "-o", "json"}, {"show", chat, "--memory"}, {"show", chat[:30]}, {"show", "@last"}, {"show", "0"},
		{"show", fork}, {"show", fork, "-o", "yaml"}, {"show", waiting}, {"show", dead}, {"show", unknown}, {"show", unknown, "--memory"},
		{"show", chat, "--request", "--at", "2"}, {"show", chat, "--request", "--at", "1"}, {"show", chat, "--request"},
		{"show", chat, "--usage"}, {"show", waiting, "--usage", "-o", "json"}, {"show", unknown, "--usage"}, {"show", fork, "--tree"}, {"show", chat, "--tree", "-o", "json"}, {"show", unknown, "--tree"},
		{"trace", chat}, {"trace", fork, "-o", "json"}, {"trace", unknown}, {"trace", chat, "--state", "flying"},
		{"tap", "--run", dead, "--from", "1"}, {"tap", "--run", dead, "--from", "2", "-o", "json"}, {"tap", "--run", dead, "--from", "1", "--outputs"}, {"tap", "--run", unknown, "--from", "1"}, {"tap", "--run", dead},
		{"export", chat}, {"export", fork}, {"export", unknown},
		{"tools", "-o", "json"}, {"agents", "get", "nobody"},
		{"dead", "-o", "json"}, {"dead", "--all"}, {"dead", "drop", unknown}, {"dead", "drop", "9:1"}, {"dead", "retry", chat}, {"dead", "retry", unknown},
		{"diff", chat, fork}, {"diff", chat, dead, "-o", "json"}, {"diff", chat, unknown},
		{"resume", chat}, {"approve", chat}, {"approve", waiting, "nonsense"}, {"approve", waiting, "--arguments", `{"x": 1}`}, {"answer", waiting, "no question"}, {"return", chat, "call_1", "blue"},
		{"fork", chat, "--at", "99"}, {"fork", chat, "--at", "1", "--patch", "nonsense"}, {"send", dead, "Hello?"}, {"cancel", dead, unknown},
		{"storage", "get", "librarian", "none"}, {"storage", "list", "Bad"},
	} {
		both("", args...)
	}
	// A file of a message is not in the log, but in the object store.
	image := filepath.Join(t.TempDir(), "dot.gif")
	require.NoError(t, os.WriteFile(image, append([]byte("GIF89a"), make([]byte, 100_000)...), 0o600))
	sent := moorebus(t, "", append([]string{"send", chat, "Look.", "--attach", image}, overHTTP...)...)
	require.Zero(t, sent.code, sent.err)
	require.NoError(t, b.await(chat, func(s runs.RunState) bool { return s.N == 4 }))
	both("", "export", chat)
	require.Contains(t, moorebus(t, "", append([]string{"export", chat}, overHTTP...)...).out, `{"blob":`)
	both("{name: x, llm: {provider: nobody}", "agents", "put", "-")

	// What changes something is said of two runs of one kind.
	each := func(run func() string, args ...string) {
		t.Helper()
		at := func(id string, place []string) outcome {
			all := append(slicesReplace(args, "RUN", id), place...)
			return moorebus(t, "", all...).withoutIDs()
		}
		bus, http := at(run(), onBus), at(run(), overHTTP)
		require.Equal(t, bus, http, args)
		require.Zero(t, http.code, "%v: %s", args, http.err)
	}
	conversation := func() string { return start(chatAgent(t), "Hello?", events.WaitingForUser) }
	call := func() string { return start(asker, "What is 40 + 2?", events.WaitingForHuman) }
	each(conversation, "pause", "RUN", "--reason", "lunch")
	each(conversation, "cancel", "RUN", "-o", "json")
	each(conversation, "fork", "RUN", "--at", "2", "--patch", `{"task": "Other"}`, "--key", "once")
	each(call, "approve", "RUN", "--arguments", `{"expression": "1 + 1"}`, "--namespace", "default")
	each(func() string { return start(failing, "Fail.", events.Errored) }, "dead", "retry", "RUN")
	each(func() string { return start(failing, "Fail.", events.Errored) }, "dead", "drop", "RUN")
	each(call, "reject", "RUN", "--reason", "no")
	each(func() string { return start(questioner, "Ask.", events.WaitingForHuman) }, "answer", "RUN", "That one")
	each(func() string {
		id := conversation()
		_, err := b.host.Gateway().Pause(t.Context(), "", id, events.By{})
		require.NoError(t, err)
		return id
	}, "resume", "RUN")
	started := func() string { return start(painter, "Paint.", events.Acting) }
	// The run goes on at once, so its state is either.
	for _, place := range [][]string{onBus, overHTTP} {
		require.Zero(t, moorebus(t, "", append([]string{"return", started(), "call_1_1", "--error", "closed"}, place...)...).code)
		require.Zero(t, moorebus(t, "Hello!\n", append([]string{"send", conversation(), "-", "--id", "m"}, place...)...).code)
	}

	file := filepath.Join(t.TempDir(), "agent.yaml")
	require.NoError(t, os.WriteFile(file, []byte("name: stored\nllm: {provider: scripted, script: [{text: Hi.}]}\n"), 0o600))
	for _, place := range [][]string{onBus, overHTTP} {
		detached := moorebus(t, "", append([]string{"run", "--detach", "--agent", file, "Look.", "--attach", image}, place...)...)
		require.Zero(t, detached.code, detached.err)
		require.Contains(t, detached.err, "moorebus tap --run "+strings.TrimSpace(detached.out)+" --from 1 "+place[0]+" "+place[1]+"\n")
		require.NoError(t, b.await(strings.TrimSpace(detached.out), func(s runs.RunState) bool { return s.State == events.Done }))
	}
	for _, args := range [][]string{
		{"agents", "put", file, "-o", "json"}, {"agents", "list"}, {"agents", "get", "stored"},
		{"storage", "put", "librarian", "b,a", "A & B"}, {"storage", "list"}, {"storage", "list", "librarian"}, {"storage", "get", "librarian", "a, b"}, {"storage", "search", "librarian", "a &", "--tags", "a"},
	} {
		both("", args...)
	}
	require.Zero(t, moorebus(t, "", append([]string{"storage", "delete", "librarian", "a,b"}, overHTTP...)...).code)
	require.Equal(t, cli.ExitFailure, moorebus(t, "", append([]string{"storage", "get", "librarian", "a,b"}, onBus...)...).code)
}

// slicesReplace returns the words with one replaced.
func slicesReplace(words []string, old, with string) []string {
	all := make([]string, len(words))
	for i, word := range words {
		if all[i] = word; word == old {
			all[i] = with
		}
	}
	return all
}

// serveAgain serves the gateway's HTTP on an address until stop is called.
func (b *bus) serveAgain(t *testing.T, address string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server, err := httpapi.New(httpapi.Config{Control: b.host.Gateway(), Feed: b.bus, Listener: listener, Token: testToken, Logger: quiet})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// A tap over HTTP misses nothing and repeats nothing when the gateway is restarted.
func TestTapOverARestart(t *testing.T) {
	b := testBus(t)
	id, err := b.start(chatAgent(t), "Hello?", events.WaitingForUser)
	require.NoError(t, err)
	const address = "127.0.0.1:0"
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	at := listener.Addr().String()
	require.NoError(t, listener.Close())
	stop := b.serveAgain(t, at)
	defer func() { stop() }()
	t.Setenv("MOOREBUS_URL", "http://"+at)
	t.Setenv("MOOREBUS_TOKEN", testToken)
	var taps []*tapping
	for _, args := range [][]string{{"--from", "0:0"}, {"--run", id, "--from", "1"}} {
		p := startTapAt(t, nil, append(args, "-o", "json")...)
		p.next(t, `"n":2,`)
		taps = append(taps, p)
	}
	stop()
	_, err = b.host.Gateway().Cancel(t.Context(), "", id, events.By{Reason: "enough"})
	require.NoError(t, err)
	stop = b.serveAgain(t, at)
	for _, p := range taps {
		require.True(t, p.lines.Scan(), p.stderr)
		require.Contains(t, p.lines.Text(), `"type":"Cancelled"`, "nothing twice, nothing missed")
	}
	require.NoError(t, taps[1].cmd.Wait(), "it ends with its run: %s", taps[1].stderr)
	require.Regexp(t, `^0:\d+,1:\d+$`, taps[0].interrupt(t))
}

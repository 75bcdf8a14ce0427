package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/stretchr/testify/require"
)

// screen is what a process has printed so far.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(data)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// terminal is a command that runs until the test ends, or by itself.
type terminal struct {
	out, log screen
	ended    chan error
}

func open(t *testing.T, home, command string) *terminal {
	t.Helper()
	cmd := shell(context.WithoutCancel(t.Context()), home, "exec env "+command)
	s := &terminal{ended: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = &s.out, &s.log
	require.NoError(t, cmd.Start())
	go func() { s.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may be over already
		select {
		case <-s.ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-s.ended
			t.Errorf("%s did not end", command)
		}
		if t.Failed() {
			t.Logf("--- %s\n%s%s", command, &s.out, &s.log)
		}
	})
	return s
}

// free returns a loopback address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	all, err := freeport.Addresses(1)
	require.NoError(t, err)
	return all[0]
}

// playActor starts the installation and the actor, each as a process of its own,
// and then the run.
func playActor(t *testing.T, s []session) {
	playInstallation(t, s, "127.0.0.1:8090", "127.0.0.1:4290", `Here it is:\n*****\na log\n*****`)
}

// playServices does so with a NATS service.
func playServices(t *testing.T, s []session) {
	playInstallation(t, s, "127.0.0.1:8091", "127.0.0.1:4291", `6 words, published as `)
}

// playInstallation starts the first two commands, which last, and then a run, whose memory
// holds a text in the end. The addresses are those of the commands.
func playInstallation(t *testing.T, s []session, http, bus, holds string) {
	require.Len(t, s, 3)
	home := newHome(t)
	addresses := strings.NewReplacer(http, free(t), bus, free(t))
	open(t, home, addresses.Replace(s[0].command))
	open(t, home, addresses.Replace(s[1].command))
	started := ""
	require.Eventually(t, func() bool {
		started = curl(t, addresses.Replace(s[2].command))
		return strings.Contains(started, "run_id") // the tools are known by then
	}, time.Minute, 100*time.Millisecond)
	requirePrinted(t, s[2].output, started)
	var run struct {
		ID string `json:"run_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(started), &run))
	state := "curl -s " + addresses.Replace(http+"/v1/runs/") + run.ID
	require.Eventually(t, func() bool { return strings.Contains(curl(t, state), holds) }, time.Minute, 100*time.Millisecond)
}

var curlCommand = regexp.MustCompile(`^curl -s (\S+)(?: -d @(\S+))?$`)

// curl does what a document's curl command does, on machines too that have none,
// and returns the answer; empty while nobody answers.
func curl(t *testing.T, command string) string {
	t.Helper()
	match := curlCommand.FindStringSubmatch(command)
	require.NotNil(t, match, command)
	method, body := http.MethodGet, []byte(nil)
	if match[2] != "" {
		var err error
		method = http.MethodPost
		body, err = os.ReadFile(filepath.Join("..", match[2]))
		require.NoError(t, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+match[1], bytes.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(answer)
}

// playApproval starts the run in one terminal and approves it in another one.
func playApproval(t *testing.T, s []session) {
	require.Len(t, s, 2)
	home := newHome(t)
	first := open(t, home, s[0].command)
	id := regexp.MustCompile(`(?m)^run ([0-9a-f-]{36})`)
	require.Eventually(t, func() bool {
		shown := first.log.String()
		return id.MatchString(shown) && strings.Contains(shown, "HumanApprovalRequired")
	}, time.Minute, 20*time.Millisecond)
	run := id.FindStringSubmatch(first.log.String())[1]
	requirePrinted(t, s[1].output, runToEnd(t, home, strings.Replace(s[1].command, "RUN", run, 1)))
	select {
	case err := <-first.ended:
		first.ended <- err
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "the run goes on")
	}
	requirePrinted(t, s[0].output, first.out.String())
}

// playSubagents runs the agents and then shows the run of the first one.
func playSubagents(t *testing.T, s []session) {
	require.Len(t, s, 2)
	home := newHome(t)
	shown := runToEnd(t, home, s[0].command+" 2>&1")
	id := regexp.MustCompile(`(?m)^run ([0-9a-f-]{36})$`).FindStringSubmatch(shown)
	require.NotNil(t, id, shown)
	requirePrinted(t, append([]string{"…"}, s[0].output...), shown)
	requirePrinted(t, s[1].output, runToEnd(t, home, strings.Replace(s[1].command, "RUN", id[1], 1)))
}

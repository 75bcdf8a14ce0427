package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listener is one connection to a run's events that hears the words of replies.
type listener struct {
	mu sync.Mutex
	// message is the reply that is heard, text what was said of it so far.
	message string
	text    string
	err     error
	ended   *event
	done    chan struct{}
}

// listen connects to a run's events, once.
func (a *api) listen(ctx context.Context, run string) *listener {
	l := &listener{done: make(chan struct{})}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/v1/runs/"+run+"/events", nil)
	require.NoError(a.t, err)
	request.Header.Set("Accept", "text/event-stream")
	response, err := a.http.Do(request)
	require.NoError(a.t, err)
	require.Equal(a.t, http.StatusOK, response.StatusCode)
	go func() {
		defer close(l.done)
		defer func() { _ = response.Body.Close() }()
		_ = readSSE(response.Body, l.hear)
	}()
	return l
}

func (l *listener) hear(name, _, data string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name != "chunk" {
		e := new(event)
		if err := json.Unmarshal([]byte(data), e); err == nil && e.terminal() {
			l.ended = e
		}
		return nil
	}
	var c chunk
	err := json.Unmarshal([]byte(data), &c)
	if c.MessageID != l.message {
		l.message, l.text = c.MessageID, "" // a planner that was taken for dead was asked once more
	}
	if err == nil && (c.Offset != len(l.text) || l.ended != nil) {
		err = fmt.Errorf("a piece at %d follows %d bytes", c.Offset, len(l.text))
	}
	if err != nil {
		l.err = err
	}
	l.text += c.Text
	return nil
}

// heard is what was said so far; it fails the test if a piece was missing or came
// twice.
func (l *listener) heard(t *testing.T) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.NoError(t, l.err)
	return l.text
}

// slowly is a reply that stops in the middle: halfway is closed there, and go on
// lets it end.
func slowly(text string) (reply modelReply, halfway chan struct{}, goOn chan struct{}) {
	halfway, goOn = make(chan struct{}), make(chan struct{})
	reply = says(text)
	middle := len(reply.deltas()) / 2
	there := sync.OnceFunc(func() { close(halfway) }) // the reply may be asked for once more
	reply.before = func(delta int) {
		if delta == middle {
			there()
			<-goOn
		}
	}
	return reply, halfway, goOn
}

// TestListenersWhoComeLate connects to a run while the model is in the middle of a
// reply, over two gateways that are other processes than the planner: everybody
// hears the reply from its beginning, each piece once. `moorebus tap --outputs`
// does too, and `moorebus trace` tells afterwards what happened.
func TestListenersWhoComeLate(t *testing.T) {
	t.Parallel()
	// Nobody dies here: however slow the machine is, no call of the model comes again.
	c := startCluster(t, setup{gateways: 2, ackWait: 10 * time.Minute, entries: []string{"{builtin: calculator}"}})
	c.api.awaitTools([]string{"calculator"})
	other := newAPI(t, "http://"+c.gatewayAddresses[1])
	other.awaitReady()
	s := c.stage()
	text := strings.TrimSpace(strings.Repeat("All of it was said, and 12 times 3 is 36. ", 40))
	reply, halfway, goOn := slowly(text)
	t.Cleanup(sync.OnceFunc(func() {
		select {
		case <-goOn:
		default:
			close(goOn) // else the model's server does not end
		}
	}))
	run := s.begin(t, script{asks("c-1", "calculator", `{"expression": "12 * 3"}`), reply}, "calculator")
	await(t, halfway, "the model has said the half")

	tap := c.launch("tap", c.env(), "moorebus", "tap", "--run", run, "--from", "1", "--outputs", "-o", "json")
	var listeners []*listener
	for _, at := range []*api{c.api, other, c.api} {
		listeners = append(listeners, at.listen(t.Context(), run))
	}
	half := text[:len(text)/4]
	for i, l := range listeners {
		require.Eventually(t, func() bool { return strings.HasPrefix(l.heard(t), half) }, startTime, 10*time.Millisecond, "listener %d hears what was said before it came", i)
		require.Less(t, len(l.heard(t)), len(text))
	}
	require.Eventually(t, func() bool { return strings.Contains(tap.log.String(), `"llm_token"`) }, startTime, 10*time.Millisecond, "the tap hears it too")
	close(goOn)
	for i, l := range listeners {
		await(t, l.done, "the stream ends with its run")
		require.NotNil(t, l.ended, "listener %d: its stream was cut short", i)
		require.Equal(t, text, l.heard(t), "listener %d", i)
		require.Equal(t, "LlmFinalAnswer", l.ended.Type)
	}
	await(t, tap.done, "the tap ends with its run")
	require.Zero(t, tap.cmd.ProcessState.ExitCode(), tap.log.String())
	checkOutputs(t, tap.log.String(), run, text)
	c.checkTraces(t, run)
	c.verifyAll()
}

// checkOutputs holds what a tap showed to the run: a call, the words and the answer.
func checkOutputs(t *testing.T, shown, run, answer string) {
	t.Helper()
	said, kinds := "", []string{}
	for line := range strings.Lines(shown) {
		var o struct{ Kind, Run, Text, Content string }
		require.NoError(t, json.Unmarshal([]byte(line), &o), line)
		require.Equal(t, run, o.Run, line)
		said += o.Text
		if len(kinds) == 0 || kinds[len(kinds)-1] != o.Kind {
			kinds = append(kinds, o.Kind)
		}
		if o.Kind == "final_answer" {
			require.Equal(t, answer, o.Content)
		}
	}
	require.Equal(t, answer, said)
	require.Subset(t, kinds, []string{"state_started", "tool_call_started", "tool_call_finished", "llm_token", "final_answer"})
	require.Equal(t, "final_answer", kinds[len(kinds)-1])
}

// checkTraces reads the run's trace from the bus and from an export: they are the same.
func (c *cluster) checkTraces(t *testing.T, run string) {
	t.Helper()
	trace := c.moorebus(t, "trace", run, "-o", "json")
	for _, event := range []string{"Start", "LlmToolCall", "ToolSuccess", "Continue", "LlmFinalAnswer"} {
		require.Contains(t, trace, `"`+event+`"`)
	}
	file := filepath.Join(t.TempDir(), "runs.jsonl")
	c.moorebus(t, "export", "--all", "--out", file)
	require.Equal(t, trace, c.moorebus(t, "trace", run, "-o", "json", "--file", file))
	acting := c.moorebus(t, "trace", run, "-o", "json", "--state", "acting")
	require.Contains(t, acting, `"ToolSuccess"`)
	require.NotContains(t, acting, `"LlmFinalAnswer"`)
}

// moorebus runs moorebus on the bus, which has to succeed, and returns what it wrote.
func (c *cluster) moorebus(t *testing.T, args ...string) string {
	t.Helper()
	out := run(t, c.env(), "moorebus", args...)
	require.Zero(t, out.code, "moorebus %v: %s", args, out.stderr)
	return out.stdout
}

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// waitingVariable is the environment variable with how many runs wait.
const waitingVariable = "MOOREBUS_WAITING"

const (
	// waitingRuns is how many wait where nobody says.
	waitingRuns = 1000
	// Gateway and planner together may take waitingBase bytes and waitingEach
	// for each run that waits, and waitingMost whatever waits.
	waitingBase = 200e6
	waitingEach = 40e3
	waitingMost = 500e6
	// waitingPrompt is the length of the system prompt, in bytes: a long one.
	waitingPrompt = 16 << 10
	// waitingDecisions is how many runs are decided on, one after the other.
	waitingDecisions = 20
)

// TestWaiting lets many runs wait for a human in one gateway and one planner,
// reads what memory both take, and measures how soon a decision is acted on.
func TestWaiting(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the memory of a process is read from /proc, which only Linux has") // reason: no other system says it there
	}
	n := waitingRuns
	if text := os.Getenv(waitingVariable); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err, waitingVariable)
	}
	c := startCluster(t, setup{tools: []string{"look"}})
	c.tools.handle("look", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "seen") })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	began := time.Now()
	waits := c.api.countWaiting(ctx, t, n)
	runs := c.api.startWaiting(ctx, t, n)
	select {
	case err := <-waits:
		require.NoError(t, err)
	case <-ctx.Done():
		t.Fatal("not all runs came to wait for a human")
	}
	t.Logf("%d runs wait after %s", n, time.Since(began).Round(time.Millisecond))

	gateway, planner := c.roles["gateway-0"].memory(t), c.roles["planner-0"].memory(t)
	t.Logf("gateway %d MB (peak %d MB), planner %d MB (peak %d MB)",
		gateway.now/1e6, gateway.peak/1e6, planner.now/1e6, planner.peak/1e6)
	require.Less(t, gateway.now+planner.now, int(min(waitingBase+waitingEach*float64(n), waitingMost)), "bytes of gateway and planner together")

	var took []time.Duration
	for range waitingDecisions {
		one, err := c.api.decideOne(ctx, runs[rand.IntN(len(runs))])
		require.NoError(t, err)
		took = append(took, one)
	}
	slices.Sort(took)
	// A disk that other work keeps busy delays single decisions by seconds.
	median, longest := took[len(took)/2], took[len(took)-1]
	t.Logf("%d decisions were acted on, the median within %s, the slowest within %s", waitingDecisions, median.Round(time.Millisecond), longest.Round(time.Millisecond))
	require.Less(t, median, time.Second)
}

// startWaiting starts runs, several at a time, and returns their ids.
func (a *api) startWaiting(ctx context.Context, t *testing.T, n int) []string {
	t.Helper()
	definition := map[string]any{
		"name": "waiting", "system_prompt": strings.Repeat("Do as the people say who decide. ", waitingPrompt/32),
		"tools": []string{"look"}, "approval": map[string]string{"policy": "always"},
		"llm": map[string]any{"provider": "scripted", "script": []map[string]any{
			{"calls": []map[string]any{{"name": "look"}}}, {"text": "It is done."},
		}},
	}
	runs := make([]string, n)
	errs := make([]error, n)
	next := make(chan int, n)
	for i := range runs {
		runs[i] = newRunID()
		next <- i
	}
	close(next)
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := range next {
				errs[i] = a.start(ctx, runRequest{Agent: definition, Task: "Look at this.", RunID: runs[i]})
			}
		})
	}
	clients.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return runs
}

// countWaiting tells when n runs have asked for a human.
func (a *api) countWaiting(ctx context.Context, t *testing.T, n int) <-chan error {
	t.Helper()
	lines, err := a.lines(ctx, "/v1/events?type=HumanApprovalRequired")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		defer func() { _ = lines.Close() }()
		seen := 0
		for scan := bufio.NewScanner(lines); scan.Scan(); {
			if strings.HasPrefix(scan.Text(), "data:") {
				if seen++; seen == n {
					done <- nil
					return
				}
			}
		}
		done <- fmt.Errorf("the feed ended after %d of %d runs", seen, n)
	}()
	return done
}

// lines opens an event stream.
func (a *api) lines(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/event-stream")
	response, err := a.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s: HTTP %d", path, response.StatusCode)
	}
	return response.Body, nil
}

// decideOne approves a run's call and returns the time until its result stood in
// the log. A run that was decided on before is left alone.
func (a *api) decideOne(ctx context.Context, run string) (time.Duration, error) {
	v, err := a.view(ctx, run)
	if err != nil || v.State != "waiting_for_human" {
		return 0, err
	}
	var call string
	for id := range v.Memory.ToolCalls {
		call = id
	}
	lines, err := a.lines(ctx, "/v1/runs/"+run+"/events?from="+strconv.FormatUint(v.N+1, 10))
	if err != nil {
		return 0, err
	}
	defer func() { _ = lines.Close() }()
	began := time.Now()
	decision := map[string]string{"call_id": call, "decision": "approved", "by": "a test"}
	if err := a.call(ctx, http.MethodPost, "/v1/runs/"+run+"/decisions", decision, nil); err != nil {
		return 0, err
	}
	for scan := bufio.NewScanner(lines); scan.Scan(); {
		data, is := strings.CutPrefix(scan.Text(), "data: ")
		var e struct{ Type string }
		if is && json.Unmarshal([]byte(data), &e) == nil && e.Type == "ToolSuccess" {
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("run %s: the stream ended before the call's result", run)
}

// residence is the memory of a process in bytes: resident, and at most so far.
type residence struct{ now, peak int }

func (p *process) memory(t *testing.T) residence {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	kilobytes := map[string]int{}
	for line := range strings.Lines(string(status)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(strings.TrimSpace(value), " kB") {
			kilobytes[key], err = strconv.Atoi(strings.Fields(value)[0])
			require.NoError(t, err)
		}
	}
	require.Contains(t, kilobytes, "VmRSS")
	return residence{now: kilobytes["VmRSS"] << 10, peak: kilobytes["VmHWM"] << 10}
}

// TestTimersThatWereRemoved: one message with Nats-Rollup removes all timers. A gateway sets those of
// open runs again from the log, so approvals still expire and runs still end in time.
func TestTimersThatWereRemoved(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{tools: []string{"pay"}})
	s := c.stage()
	held := agent{Tools: []string{"pay"}, Approval: map[string]any{"policy": "always", "expires": "10s"}}
	approval := s.beginAgent(t, held, script{asks("p-1", "pay", "{}"), says("Nobody answered.")})
	gone := make(chan struct{})
	t.Cleanup(func() { close(gone) })
	bounded := s.beginAgent(t, agent{Budget: map[string]any{"max_wall_time": "10s"}}, blocked{script{says("Too late.")}, gone})
	s.awaitHeld(t, approval, 1)

	conn, err := nats.Connect("nats://" + c.busAddress)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	left := func() uint64 {
		stream, err := js.Stream(t.Context(), "MOORE_TIMERS")
		require.NoError(t, err)
		return stream.CachedInfo().State.Msgs
	}
	require.GreaterOrEqual(t, left(), uint64(3), "the timers of both runs, and that of the approval")
	wipe := nats.NewMsg("timers.set.default.x.model")
	wipe.Header.Set("Nats-Rollup", "all")
	_, err = js.PublishMsg(t.Context(), wipe)
	require.NoError(t, err)
	require.EqualValues(t, 1, left(), "one message removes all")
	// And another one has the server store what gateways keep there, as a timer that fires.
	forged := nats.NewMsg("timers.set.default.y.model")
	forged.Header.Set("Nats-Schedule", "@at "+time.Now().UTC().Format(time.RFC3339Nano))
	forged.Header.Set("Nats-Schedule-Target", "timers.cancel.moorebus.armed.run")
	_, err = js.PublishMsg(t.Context(), forged)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "MOORE_TIMERS")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := stream.GetLastMsgForSubject(t.Context(), "timers.cancel.moorebus.armed.run")
		return err == nil
	}, time.Minute, 10*time.Millisecond)

	c.replace("gateway", 0)
	c.api.awaitReady()
	for run, code := range map[string]string{approval: "LlmFinalAnswer", bounded: "BudgetExceeded"} {
		end, _ := s.finish(t, run)
		require.Equal(t, code, end.Type, string(end.Data))
	}
	c.verifyAll()
}

package agent_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// resume attaches to a run and waits for its end.
func resume(ctx context.Context, a *watched, id string) (answer string, err error) {
	if a.last, err = a.Attach(ctx, id); err != nil {
		return "", err
	}
	defer func() { err = cmp.Or(err, a.last.Release()) }()
	return a.last.Wait(ctx)
}

// doomedDir makes the test binary a program that hangs in a custom state, until it
// is killed.
const doomedDir = "MOOREBUS_TEST_DOOMED_DIR"

// doomed runs an agent on a data directory, says its run's id once it is in the
// custom state, and never ends.
func doomed(dir string) {
	var run *agent.Run
	started := make(chan struct{})
	hang := func(ctx context.Context, w *agent.Work) (events.Payload, error) {
		<-started
		fmt.Println(run.ID())
		select {}
	}
	a, err := agent.New("agent").LLM(scripted.NewMock(scripted.Say("Pass the salt, please."))).Data(dir).Graph(reviewed(hang)).Build()
	if err == nil {
		run, err = a.Start(context.Background(), agent.Task(task))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	close(started)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _ = run.Wait(ctx) // for an end that does not come: this process is killed long before
	os.Exit(1)
}

// stateSize is the size of what the server keeps of a consumer. It writes that a
// moment after it changed.
func stateSize(dir, consumer string) int64 {
	info, err := os.Stat(filepath.Join(dir, "jetstream", "jetstream", "$G", "streams", events.StreamName(0), "obs", consumer, "o.dat"))
	if err != nil {
		return 0
	}
	return info.Size()
}

// lengthenAckWait makes deliveries of the data directory outlive any test, if they are
// waited for.
func lengthenAckWait(t *testing.T, dir string) {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
	require.NoError(t, err)
	defer server.Shutdown()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{States: []events.State{"reviewing"}, AckWait: time.Hour}))
}

// TestResumeInACustomState kills the process of a run that is in a state of its own
// graph; another one carries it on.
func TestResumeInACustomState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), binary)
	child.Env, child.Stderr = append(os.Environ(), doomedDir+"="+dir), os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "the child says its run")
	id := lines.Text()
	require.Eventually(t, func() bool { return stateSize(dir, "reviewing") > stateSize(dir, "paging") }, time.Minute, 5*time.Millisecond, "the server keeps the delivery")
	require.NoError(t, child.Process.Kill())
	_ = child.Wait() // killed

	lengthenAckWait(t, dir)
	graph := reviewed(strict)
	model := scripted.NewMock()
	a := build(t, model, func(b *agent.Builder) { b.Data(dir).Graph(graph) })
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	answer, err := resume(ctx, a, id)
	require.NoError(t, err)
	require.Equal(t, "Pass the salt, please.", answer)
	require.Zero(t, model.CallCount(), "what the model said stands in the log")
	types := eventsOf(a.Trace())
	require.Equal(t, []string{"Start", "LlmFinalAnswer"}, types[:2])
	require.Equal(t, []string{"LlmAttemptFailed", "ReviewPassed"}, types[2:], "the lost worker is counted once")

	again, err := resume(ctx, a, id)
	require.NoError(t, err, "a run that has ended is not run again")
	require.Equal(t, answer, again)
	require.Equal(t, types, eventsOf(a.Trace()))

	server, err := embedded.Start(ctx, embedded.Options{Dir: dir})
	require.NoError(t, err)
	defer server.Shutdown()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{})
	require.NoError(t, err)
	machine, err := graph.Machine()
	require.NoError(t, err)
	report, err := verify.Log(ctx, bus, machine, verify.Options{All: true})
	require.NoError(t, err)
	require.True(t, report.Clean(), report.Findings)
}

// A run that others carry on is only waited for.
func TestResumeElsewhere(t *testing.T) {
	t.Parallel()
	bus := busOf(t)
	reviewing, hold := make(chan struct{}), make(chan struct{})
	graph := reviewed(func(context.Context, *agent.Work) (events.Payload, error) {
		close(reviewing)
		<-hold
		return agent.Emit("ReviewPassed", nil)
	})
	worker, err := agent.Serve(t.Context(), buildNamed(t, "worker", scripted.NewMock(scripted.Say("the answer")), func(b *agent.Builder) { b.Bus(bus).Graph(graph) }).Agent)
	require.NoError(t, err)
	defer func() { require.NoError(t, worker.Close()) }()

	client := built(t, agent.New("agent").Elsewhere().Use("worker").RemoteTools("search").Bus(bus).Graph(graph))
	r, err := client.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	<-reviewing
	require.NoError(t, r.Release())
	_, err = r.Wait(t.Context())
	require.ErrorContains(t, err, "was released")

	waited := make(chan string, 1)
	go func() {
		answer, err := resume(context.Background(), client, r.ID())
		waited <- fmt.Sprint(answer, err)
	}()
	close(hold)
	require.Equal(t, "the answer<nil>", <-waited)
}

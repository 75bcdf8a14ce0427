package plan_test

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/plan"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
)

var measure = flag.Bool("measure", false, "measure more shapes of runs")

// shape is what all runs of one measurement have in common.
type shape struct{ steps, calls, tokens, runs int }

// TestDisk carries out real runs on a real server and compares what its directory takes
// with what the plan says.
func TestDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it carries out hundreds of runs
	}
	shapes := []shape{{steps: 5, calls: 5, tokens: 6000, runs: 400}}
	if *measure {
		shapes = append(shapes, shape{0, 0, 0, 8000}, shape{10, 10, 0, 1200}, shape{10, 10, 5000, 800}, shape{10, 10, 20000, 400}, shape{5, 15, 0, 1200}, shape{30, 30, 0, 400})
	}
	for _, s := range shapes {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			stored := s.carryOut(t)
			planned, err := plan.For(plan.Load{RunsPerDay: s.runs, Steps: s.steps, Calls: s.calls, Tokens: s.tokens, Retain: 1, Replicas: 1, Peak: 1})
			require.NoError(t, err)
			n, disk := planned.Value("events_per_day"), planned.Value("disk_per_day")
			t.Logf("%d runs: %d events (planned %.0f), %d bytes, %.0f a run, %.0f an event (planned %.0f, %.2f times)",
				s.runs, stored.events, n, stored.bytes, float64(stored.bytes)/float64(s.runs), float64(stored.bytes)/float64(stored.events), disk, disk/float64(stored.bytes))
			require.InDelta(t, n, stored.events, 0.02*n)
			require.InEpsilon(t, float64(stored.bytes), disk, 0.2)
		})
	}
}

// stored is what a server keeps.
type stored struct{ events, bytes int64 }

// carryOut has a server of its own, all roles and a model that writes English.
func (s shape) carryOut(t *testing.T) stored {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir, Logger: quiet})
	require.NoError(t, err)
	defer server.Shutdown()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, natsbus.Init(ctx, conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	words := &prose{text: english(t)}
	tools, err := toolset.New(reader{words, s})
	require.NoError(t, err)
	h, err := host.New(host.Options{Bus: bus, Tools: tools, Providers: map[string]llm.Caller{"writer": llm.CallerFunc(s.reply(words))}, Logger: quiet})
	require.NoError(t, err)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(running) }()
	defer func() { stop(); <-ended }()
	require.NoError(t, h.Announce(ctx))

	agent := events.DefaultAgent()
	agent.Name, agent.LLM.Provider, agent.Tools = "writer", "writer", []string{"read"}
	agent.Config.ReflectEveryNSteps, agent.Config.MaxSteps = 0, s.steps+1
	agent, err = agent.Resolve()
	require.NoError(t, err)
	done := make(chan string, s.runs)
	unwatch, err := bus.Watch(journal.Filter{To: events.Done}, func(journal.Record) { done <- "" }, nil)
	require.NoError(t, err)
	defer unwatch()
	unwatchErrors, err := bus.Watch(journal.Filter{To: events.Errored}, func(r journal.Record) { done <- string(r.Body) }, nil)
	require.NoError(t, err)
	defer unwatchErrors()
	require.NoError(t, conn.Flush())
	for range s.runs {
		_, err := h.Gateway().Start(ctx, events.DefaultNamespace, control.StartRequest{Agent: &agent, Task: "Read the chapters, and say what they have in common. " + words.next(s.share())})
		require.NoError(t, err)
	}
	for range s.runs {
		select {
		case failed := <-done:
			require.Empty(t, failed)
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
	}
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	log, err := js.Stream(ctx, events.StreamName(0))
	require.NoError(t, err)
	state := log.CachedInfo().State
	server.Shutdown()
	return stored{events: int64(state.Msgs), bytes: diskUse(t, dir, state.Bytes)}
}

// share is how many bytes each text of a run has: the task, the results, the answer.
func (s shape) share() int { return 4 * s.tokens / (s.calls + 2) }

// reply is the model: it calls the tool as often as the shape says, and then answers.
func (s shape) reply(words *prose) llm.CallerFunc {
	return func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		about := llm.Meta{Model: "writer-1", Finish: llm.FinishStop, Usage: llm.Usage{Input: 1000, Output: 100, Total: 1100}}
		if req.Replies == s.steps {
			return llm.Text{Meta: about, Content: "They say this. " + words.next(s.share())}, nil
		}
		about.Finish = llm.FinishToolCalls
		calls := make([]llm.Call, s.calls/s.steps)
		for i := range calls {
			calls[i] = llm.Call{ID: "call_" + uuid.NewString(), Name: "read", Arguments: fmt.Sprintf(`{"chapter":%d}`, 100*req.Replies+i)}
		}
		return llm.ToolCalls{Meta: about, Calls: calls}, nil
	}
}

// reader is the tool.
type reader struct {
	words *prose
	shape
}

func (reader) Definition() tool.Definition {
	return tool.Definition{Name: "read", Description: "Read a chapter of the book.", Effect: tool.Pure}.WithDefaults()
}

func (r reader) Run(context.Context, tool.Call) (string, error) {
	return "The chapter: " + r.words.next(r.share()), nil
}

// prose hands out this module's own text and code, from the beginning again at its end.
type prose struct {
	mu   sync.Mutex
	text string
	at   int
}

func (p *prose) next(n int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at+n > len(p.text) {
		p.at = 0
	}
	p.at += n
	return p.text[p.at-n : p.at]
}

// english is the module's documentation and code.
func english(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err != nil || d.IsDir() || ext != ".md" && ext != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		b.Write(text)
		return err
	}))
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return -1 // so that it can be cut anywhere
		}
		return r
	}, b.String())
}

// diskUse is what the directory of a server takes, when all blocks of the log were
// compressed: the server leaves the one that it writes as it is.
func diskUse(t *testing.T, dir string, plain uint64) int64 {
	t.Helper()
	var full, tail, all int64
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		size := int64(len(text))
		all += size
		switch in, is := filepath.Split(path); {
		case !strings.HasSuffix(in, filepath.Join("streams", events.StreamName(0), "msgs")+"/") || filepath.Ext(is) != ".blk":
		case strings.HasPrefix(string(text), "cmp"):
			full += size
		default:
			tail += size
		}
		return err
	}))
	require.NotZero(t, full, "no block is full")
	rest, ratio := all-full-tail, float64(full)/float64(int64(plain)-tail)
	t.Logf("log %d bytes before compression, %.3f after; beside it %d", plain, ratio, rest)
	return int64(ratio*float64(plain)) + rest
}

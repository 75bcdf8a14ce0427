package lkj_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/lkj"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/replay"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

const (
	iterations = 1000
	// mostPrompt bounds a request, in bytes of its body: what it says of itself, its
	// memory at the paging limit, its last thoughts, and ten messages, of which one
	// may hold what a load brought.
	mostPrompt = 16 << 10
)

// site is all roles on a server of their own.
type site struct {
	t    *testing.T
	bus  *natsbus.Bus
	host *host.Host
	// stop ends the roles.
	stop func()
}

func newSite(t *testing.T, model llm.Caller) *site {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: filepath.Join(t.TempDir(), "data")})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{RequestTimeout: time.Minute})
	require.NoError(t, err)
	s := &site{t: t, bus: bus, stop: func() {}}
	s.serve(model)
	t.Cleanup(func() { s.stop() })
	return s
}

// serve runs the roles, in the place of those that ran.
func (s *site) serve(model llm.Caller) {
	s.stop()
	var tools []tool.Tool
	for _, name := range lkj.Tools {
		made, err := builtin.New(name, builtin.Options{})
		require.NoError(s.t, err)
		tools = append(tools, made)
	}
	registry, err := toolset.New(tools...)
	require.NoError(s.t, err)
	s.host, err = host.New(host.Options{Bus: s.bus, Providers: map[string]llm.Caller{"home": model}, Tools: registry})
	require.NoError(s.t, err)
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.host.Run(ctx) }()
	s.stop = func() {
		stop()
		require.NoError(s.t, <-ended)
	}
	require.NoError(s.t, s.host.Announce(ctx))
}

// run carries a run to its end, and shows each event with the memory after it.
func (s *site) run(a events.Agent, see func(*reducer.Memory, *events.Event, journal.Record)) (events.Run, *reducer.Memory) {
	s.t.Helper()
	started, err := s.host.Gateway().Start(s.t.Context(), "", control.StartRequest{Agent: &a, Task: "Keep the library."})
	require.NoError(s.t, err)
	run := s.host.Store().Place(events.DefaultNamespace, started.RunID)
	machine := reducer.NewMachine(reducer.MachineOptions{})
	mem := machine.Initial(run.ID)
	for rec, err := range s.bus.Follow(s.t.Context(), run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
		require.NoError(s.t, err)
		e, err := machine.Apply(mem, rec.Subject, rec.Body)
		require.NoError(s.t, err)
		see(mem, e, rec)
		if machine.Table().Terminal(mem.State) {
			return run, mem
		}
	}
	require.Fail(s.t, "the run did not end", "%v", s.t.Context().Err())
	return run, nil
}

func imported(t *testing.T) events.Agent {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "config.json"))
	require.NoError(t, err)
	a, unused, err := lkj.Import(data, lkj.Options{Provider: "home"})
	require.NoError(t, err)
	require.Equal(t, []string{"llm.endpoint: endpoints belong to the planner: OPENAI_BASE_URL=http://localhost:1234/v1", "version"}, unused)
	require.Equal(t, []int{400, 500, 8, 1000}, []int{a.Config.PagingLimit, a.Config.HardLimit, a.Config.ThinkingLogEntries, a.Config.MaxIterations})
	a.Config.MaxIterations = iterations
	return a
}

func calling(t *testing.T, h *home) llm.Caller {
	t.Helper()
	caller, err := openai.New(openai.Options{BaseURL: h.URL + "/v1"})
	require.NoError(t, err)
	t.Cleanup(caller.Close)
	return caller
}

// library is what a run was told to remember, and how its log grew.
type library struct {
	t *testing.T
	// wanted are the last values by their tags.
	wanted map[string]string
	count  map[events.Type]int
	// beyond counts how often working memory was over the hard limit.
	beyond int
	// bytes are those of the log after each iteration.
	bytes []int
	log   int
}

func (l *library) see(mem *reducer.Memory, e *events.Event, rec journal.Record) {
	l.count[e.Type()]++
	l.log += len(rec.Body)
	for len(l.bytes) < mem.Step {
		l.bytes = append(l.bytes, l.log)
	}
	switch p := e.Data.(type) {
	case *events.WorkingMemoryAdded:
		l.wanted[strings.Join(p.Tags, ", ")] = p.Value
	case *events.StorageSaved:
		l.wanted[strings.Join(p.Tags, ", ")] = p.Value
	case *events.NeedsPaging:
		if reducertest.WorkingMemoryTokens(mem) > mem.Config.HardLimit {
			l.beyond++
		}
	case *events.PageDone:
		require.LessOrEqual(l.t, reducertest.WorkingMemoryTokens(mem), mem.Config.PagingLimit*8/10)
	case *events.LLMThought, *events.LLMToolCall, *events.ReplyInvalid:
		require.LessOrEqual(l.t, reducertest.WorkingMemoryTokens(mem), mem.Config.PagingLimit, "when the model was asked")
		require.LessOrEqual(l.t, len(mem.ThinkingLog), mem.Config.ThinkingLogEntries)
	}
}

// TestAThousandIterations: an imported agent thinks and acts a thousand times, with
// more to remember than its limits allow. What it is sent stays small, nothing that
// it kept is lost, and its replies carry the run once more.
func TestAThousandIterations(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: a thousand iterations take half a minute
	}
	t.Parallel()
	a := imported(t)
	h := newHome(t, librarian)
	s := newSite(t, calling(t, h))
	seen := &library{t: t, wanted: map[string]string{}, count: map[events.Type]int{}}
	run, mem := s.run(a, seen.see)
	require.Equal(t, &reducer.RunError{Code: "max_iterations", Message: fmt.Sprintf("max iterations %d exceeded", iterations)}, mem.Error)
	require.Equal(t, iterations, mem.Step)
	t.Logf("%v, %d times beyond the hard limit, %d values, %d bytes of log", seen.count, seen.beyond, len(seen.wanted), seen.log)
	for typ, least := range map[events.Type]int{
		events.TypePageDone: 50, events.TypeReplyInvalid: 20, events.TypeStorageLoaded: 20, events.TypeWorkingMemoryRemoved: 5,
	} {
		require.Greater(t, seen.count[typ], least*iterations/1000, typ)
	}
	require.Greater(t, seen.beyond, 10*iterations/1000)

	asked := h.asked()
	require.Len(t, asked, iterations)
	t.Logf("the largest request has %d bytes", slices.Max(asked))
	require.LessOrEqual(t, slices.Max(asked[100:]), mostPrompt)
	for i := 200; i < iterations; i += 100 {
		require.InEpsilon(t, seen.bytes[199]-seen.bytes[99], seen.bytes[i+99]-seen.bytes[i-1], 0.5, "the log grows from %d on", i)
	}
	s.loads(a, mem, seen.wanted)
	s.replays(a, run)
}

// loads has another run of the agent load what working memory does not hold.
func (s *site) loads(a events.Agent, mem *reducer.Memory, wanted map[string]string) {
	s.t.Helper()
	for _, entry := range mem.WorkingMemory {
		tags := strings.Join(entry.Tags, ", ")
		if wanted[tags] == entry.Value {
			delete(wanted, tags)
		}
	}
	sets := slices.Sorted(maps.Keys(wanted))
	reader := llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		text := "<agent><action><type>answer</type><value>That is all.</value></action></agent>"
		if req.Replies < len(sets) {
			text = "<agent><action>" + action("storage_load", sets[req.Replies], "") + "</action></agent>"
		}
		return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: text}, nil
	})
	loaded := map[string]string{}
	s.serve(reader)
	_, end := s.run(a, func(_ *reducer.Memory, e *events.Event, _ journal.Record) {
		if p, ok := e.Data.(*events.StorageLoaded); ok {
			for _, entry := range p.Entries {
				loaded[strings.Join(entry.Tags, ", ")] = entry.Value
			}
		}
	})
	require.Equal(s.t, "That is all.", *end.FinalAnswer)
	for tags, value := range wanted {
		require.Equal(s.t, value, loaded[tags], tags)
	}
}

// replays verifies the run, and carries it once more with the replies of its log, on
// a server whose storage is empty.
func (s *site) replays(a events.Agent, run events.Run) {
	s.t.Helper()
	machine := reducer.NewMachine(reducer.MachineOptions{})
	report, err := verify.Log(s.t.Context(), s.bus, machine, verify.Options{All: true})
	require.NoError(s.t, err)
	require.True(s.t, report.Clean(), "%+v", report.Findings)
	model, err := replay.Model(s.t.Context(), s.bus, machine, run)
	require.NoError(s.t, err)
	other := newSite(s.t, model)
	again, mem := other.run(a, func(*reducer.Memory, *events.Event, journal.Record) {})
	require.Equal(s.t, "max_iterations", mem.Error.Code)
	difference, err := replay.Diff(s.t.Context(), machine, s.bus, run, other.bus, again)
	require.NoError(s.t, err)
	require.True(s.t, difference.Equal, fmt.Sprintf("%+v", difference))
}

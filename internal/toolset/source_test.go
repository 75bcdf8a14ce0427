package toolset_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

// said is a tool that says its own text.
type said struct{ name, text string }

func (s said) Definition() tool.Definition { return tool.Definition{Name: s.name} }

func (s said) Run(context.Context, tool.Call) (string, error) { return s.text, nil }

// tap is a source whose tools a test decides on.
type tap struct {
	name string
	puts chan []tool.Tool
	done chan struct{} // gets a value when a put is through
}

func newTap(name string) *tap {
	return &tap{name: name, puts: make(chan []tool.Tool), done: make(chan struct{})}
}
func (s *tap) Name() string    { return s.name }
func (s *tap) Pools() []string { return []string{"taps"} }
func (s *tap) Run(ctx context.Context, _ *slog.Logger, put func([]tool.Tool)) {
	for {
		select {
		case tools := <-s.puts:
			put(tools)
			s.done <- struct{}{}
		case <-ctx.Done():
			return
		}
	}
}
func (s *tap) put(tools ...tool.Tool) { s.puts <- tools; <-s.done }

func TestSourcesChangeTheTools(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var log strings.Builder
	a, b := newTap("a"), newTap("b")
	r, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{a, b}}, said{name: "own", text: "mine"})
	require.NoError(t, err)
	require.Equal(t, []string{"default", "taps"}, r.Pools())
	stop := r.Start(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
	call := func(name string) toolset.Outcome { return r.Execute(t.Context(), tool.Call{Name: name}) }
	require.Equal(t, tool.CodeNotFound, call("x").Failure.Code)

	changed := r.Changed()
	a.put(said{name: "x", text: "one"}, said{name: "own", text: "not mine"}, said{name: "not a name"})
	<-changed
	require.Equal(t, "one", call("x").Result)
	require.Equal(t, "mine", call("own").Result, "the first one keeps its name")
	require.Equal(t, 2, strings.Count(log.String(), "is left out"))

	changed = r.Changed()
	a.put(said{name: "x", text: "two"})
	require.Equal(t, "two", call("x").Result, "another tool under the same definition")
	select {
	case <-changed:
		t.Fatal("no definition has changed")
	default:
	}
	b.put(said{name: "x", text: "of another source"}, said{name: "y", text: "y"})
	<-changed
	require.Equal(t, "two", call("x").Result)
	r.Ready(t.Context()) // both have said what they have

	changed = r.Changed()
	a.put()
	<-changed
	require.Equal(t, tool.CodeNotFound, call("x").Failure.Code)
	_, there := r.Lookup("y")
	require.True(t, there)
	b.put(said{name: "x", text: "of another source"}, said{name: "y", text: "y"})
	require.Equal(t, tool.CodeNotFound, call("x").Failure.Code, "runs that were started with the first one must not get it")
	require.Equal(t, 1, strings.Count(log.String(), "had this name first"), log.String())
	b.put(said{name: "x", text: "of another source"}, said{name: "y", text: "y"})
	require.Equal(t, 1, strings.Count(log.String(), "had this name first"), "it is logged once")
	stop()
	require.Len(t, r.Definitions(), 1, "what sources gave ends with them")
	require.NoError(t, r.Close())
}

// Calls go on while the tools change under them.
func TestSourcesChangeUnderCalls(t *testing.T) {
	a := newTap("a")
	r, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{a}})
	require.NoError(t, err)
	stop := r.Start(t.Context(), slog.New(slog.DiscardHandler))
	defer stop()
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 200 {
				out := r.Execute(t.Context(), tool.Call{Name: "x"})
				if out.Failure != nil && out.Failure.Code != tool.CodeNotFound {
					t.Error(out.Failure)
				}
				r.Definitions()
				r.Pools()
			}
		})
	}
	for range 100 {
		a.put(said{name: "x", text: "there"})
		a.put()
	}
	callers.Wait()
}

func TestSourcesNeedNames(t *testing.T) {
	t.Parallel()
	for _, sources := range [][]tool.Source{{newTap("")}, {newTap("a"), newTap("a")}} {
		_, err := toolset.NewWith(toolset.Options{Sources: sources})
		require.ErrorContains(t, err, "needs its own name")
	}
}

func TestReadyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{newTap("a")}})
	require.NoError(t, err)
	r.Ready(t.Context()) // nothing was started, so there is nothing to wait for
	stop := r.Start(t.Context(), slog.New(slog.DiscardHandler))
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Ready(ctx)
}

// comet is a source that comes back when a test says so.
type comet struct {
	*tap
	back chan struct{}
}

func (c *comet) Claims(name string) bool { return strings.HasPrefix(name, "comet.") }
func (c *comet) Patience() time.Duration { return 5 * time.Second }
func (c *comet) Up(ctx context.Context) error {
	select {
	case <-c.back:
		return nil
	case <-ctx.Done():
		return errors.New("it is behind the sun")
	}
}

func TestCallsWaitForASourceThatComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &comet{newTap("comet"), make(chan struct{})}
		r, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{c}})
		require.NoError(t, err)
		require.Equal(t, tool.CodeNotFound, r.Execute(t.Context(), tool.Call{Name: "comet.tail"}).Failure.Code, "it was not started")
		stop := r.Start(t.Context(), slog.New(slog.DiscardHandler))
		require.Equal(t, tool.CodeNotFound, r.Execute(t.Context(), tool.Call{Name: "other"}).Failure.Code)

		began := time.Now()
		out := r.Execute(t.Context(), tool.Call{Name: "comet.tail"})
		require.Equal(t, tool.CodeUnreachable, out.Failure.Code)
		require.Contains(t, out.Failure.Message, "behind the sun")
		require.True(t, out.Failure.NotSent)
		require.Equal(t, 5*time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, codes.Cancelled, r.Execute(ctx, tool.Call{Name: "comet.tail"}).Failure.Code)

		go func() {
			time.Sleep(time.Second) // in the bubble
			c.put(said{name: "comet.tail", text: "seen"})
			close(c.back)
		}()
		require.Equal(t, "seen", r.Execute(t.Context(), tool.Call{Name: "comet.tail"}).Result)
		require.Equal(t, "comet", r.SourceOf("comet.tail"))
		require.Equal(t, tool.CodeNotFound, r.Execute(t.Context(), tool.Call{Name: "comet.head"}).Failure.Code)
		require.Empty(t, r.SourceOf("comet.head"))
		stop()
	})
}

// A source that is quicker than a server does not get its tools: a service that names itself as
// those of an MCP server would be sent their calls.
func TestNamesOfASourceThatIsAwayStayItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		thief, owner := newTap("services"), &comet{newTap("comet"), make(chan struct{})}
		r, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{thief, owner}})
		require.NoError(t, err)
		stop := r.Start(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
		thief.put(said{name: "comet.tail", text: "stolen"}, said{name: "comets", text: "its own"})
		require.Equal(t, "its own", r.Execute(t.Context(), tool.Call{Name: "comets"}).Result)
		require.Equal(t, tool.CodeUnreachable, r.Execute(t.Context(), tool.Call{Name: "comet.tail"}).Failure.Code)
		require.Contains(t, log.String(), "the name belongs to comet; rename the tool")
		owner.put(said{name: "comet.tail", text: "seen"})
		close(owner.back)
		require.Equal(t, "seen", r.Execute(t.Context(), tool.Call{Name: "comet.tail"}).Result)
		stop()
	})
}

func TestACircuitOutlivesAReconnect(t *testing.T) {
	source := newTap("a")
	r, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{source}, Breakers: true})
	require.NoError(t, err)
	defer r.Start(t.Context(), slog.New(slog.DiscardHandler))()
	offer := func(err error, failures int) {
		f := named("x", "")
		f.def.Breaker, f.fn = tool.Breaker{Failures: failures, Open: time.Hour}, returning(err)
		source.put(f)
	}
	call := func() *tool.Failure { return r.Execute(t.Context(), tool.Call{Name: "x"}).Failure }

	offer(tool.Failf(tool.CodeUnreachable, "away"), 1)
	require.Equal(t, codes.OutcomeUnknown, call().Code)
	offer(nil, 1)
	require.Equal(t, codes.CircuitOpen, call().Code, "another tool under the same definition")
	offer(nil, 2)
	require.Nil(t, call(), "another breaker has a circuit of its own")
}

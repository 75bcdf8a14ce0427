package actor_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/actor"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// spring is a source that a test feeds.
type spring chan []tool.Tool

func (spring) Name() string    { return "spring" }
func (spring) Pools() []string { return []string{"default"} }
func (s spring) Run(ctx context.Context, _ *slog.Logger, put func([]tool.Tool)) {
	for {
		select {
		case tools := <-s:
			put(tools)
		case <-ctx.Done():
			return
		}
	}
}

// Tools that come and go are announced when they do, not with the next refresh.
func TestChangedToolsAreAnnouncedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		source := spring(make(chan []tool.Tool))
		registry, err := tool.NewRegistryWith(tool.Options{Sources: []tool.Source{source}})
		require.NoError(t, err)
		defer registry.Start(t.Context(), slog.New(slog.DiscardHandler))()
		p := r.spawn(nil, func(c *actor.Config) { c.Tools = registry })
		names := func() string {
			synctest.Wait() // no time passes in the bubble
			tools, err := p.Tools(t.Context())
			require.NoError(t, err)
			var names []string
			for _, spec := range tools {
				names = append(names, spec.Name)
			}
			return strings.Join(names, " ")
		}
		require.Empty(t, names())
		source <- []tool.Tool{pure("a", "default", says("a")), pure("b", "default", says("b"))}
		require.Equal(t, "a b", names())
		source <- []tool.Tool{pure("b", "default", says("b"))}
		require.Equal(t, "b", names())
		source <- nil
		require.Empty(t, names())
	})
}

// A call that comes before its tool's source has said what it has waits for that: an
// actor that was restarted gets calls of tools whose server still starts. What the
// source does not have then is not found.
func TestCallsWaitForSourcesThatStart(t *testing.T) {
	for name, want := range map[string]string{"late": "SUCCESS: here at last", "never": `ERROR: tool "never" not found`} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				source := spring(make(chan []tool.Tool))
				registry, err := tool.NewRegistryWith(tool.Options{Sources: []tool.Source{source}}, pure("early", "default", says("at once")))
				require.NoError(t, err)
				defer registry.Start(t.Context(), slog.New(slog.DiscardHandler))()
				r.spawn(nil, func(c *actor.Config) { c.Tools = registry })
				early, late := r.plan("early"), r.plan(name)
				time.Sleep(time.Minute) // in the bubble
				require.Equal(t, "SUCCESS: at once", observation(r, early), "others do not wait")
				require.Empty(t, observation(r, late))
				source <- []tool.Tool{pure("late", "default", says("here at last"))}
				synctest.Wait()
				require.Equal(t, want, observation(r, late))
			})
		})
	}
}

// observation is what a run was told of its one call; empty as long as nothing was.
func observation(r *rig, run events.Run) string {
	for _, e := range r.Events(run) {
		switch p := e.Data.(type) {
		case *events.ToolSuccess:
			return p.Outcome.Observation
		case *events.ToolFailure:
			return p.Outcome.Observation
		}
	}
	return ""
}

// What a tool keeps beside its text is in the object store, and its event says so.
func TestAttachmentsAreInTheEvent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.spawn([]tool.Tool{pure("draw", "default", func(ctx context.Context, _ tool.Call) (string, error) {
			keeper, ok := tool.KeeperFrom(ctx)
			require.True(t, ok)
			first, err := keeper.Keep(ctx, []byte("\x89PNG"))
			require.NoError(t, err)
			again, err := keeper.Keep(ctx, []byte("\x89PNG"))
			require.NoError(t, err)
			require.Equal(t, first, again)
			return "kept as " + first, nil
		})})
		run := r.plan("draw")
		synctest.Wait()
		var outcome *events.ToolOutcome
		for _, e := range r.Events(run) {
			if success, ok := e.Data.(*events.ToolSuccess); ok {
				outcome = success.Outcome
			}
		}
		require.NotNil(t, outcome)
		require.Len(t, outcome.Attachments, 1)
		ref := outcome.Attachments[0]
		require.Equal(t, "SUCCESS: kept as "+ref.Bucket+"/"+ref.Key, outcome.Observation)
		data, err := p.Blob(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, "\x89PNG", string(data))
	})
}

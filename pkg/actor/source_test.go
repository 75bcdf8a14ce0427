package actor_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

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

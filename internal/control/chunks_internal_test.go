package control

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// writers are two gateways that keep the chunks of client models.
func writers(t *testing.T, test func(t *testing.T, run events.Run, first, second *chunks)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		bus := simtest.New(simtest.Options{})
		var both [2]*chunks
		for i := range both {
			feed := bus.NewProcess()
			both[i] = newChunks(feed, time.Now())
			stop, err := feed.WatchAsks(both[i].answer)
			require.NoError(t, err)
			defer stop()
			defer both[i].close()
		}
		time.Sleep(time.Second) // in the bubble
		test(t, events.NewRun("default", "r", 1), both[0], both[1])
	})
}

func chunk(text string) []Input { return []Input{LLMChunk{MessageID: "m", Chunk: text}} }

// A message whose chunks went to two gateways has no content, even where the reply follows its
// last chunk at once.
func TestChunksOfSeveralGateways(t *testing.T) {
	t.Parallel()
	writers(t, func(t *testing.T, run events.Run, first, second *chunks) {
		asked := time.Now()
		_, err := first.add(run, "k", chunk("a"))
		require.NoError(t, err)
		text, err := first.text(t.Context(), run, "k", "m", asked.Add(time.Nanosecond))
		require.NoError(t, err)
		require.Equal(t, "a", text)
		_, err = second.add(run, "k", chunk("b"))
		require.NoError(t, err)
		for _, one := range []*chunks{second, first} {
			_, err = one.text(t.Context(), run, "k", "m", asked.Add(time.Nanosecond))
			require.True(t, refusal.Is(err, refusal.CodeNoContent), "%v", err)
		}
	})
}

// Chunks are taken back only as long as they are the last ones of a message that is still
// written, and chunks that are refused leave nothing.
func TestChunksAreTakenBack(t *testing.T) {
	t.Parallel()
	writers(t, func(t *testing.T, run events.Run, c, _ *chunks) {
		add := func(text string) (undo func()) {
			undo, err := c.add(run, "k", chunk(text))
			require.NoError(t, err)
			return undo
		}
		at := writingKey{run, "m"}
		add("a")
		add("b")()
		require.Equal(t, "a", string(c.writing[at].text))
		early := add("c")
		add("d")
		early()
		require.Equal(t, "acd", string(c.writing[at].text), "another request's chunk is behind it")
		_, err := c.add(run, "k", append(chunk("e"), chunk(strings.Repeat("x", journal.MaxBody))...))
		require.True(t, refusal.Is(err, refusal.CodeTooLarge), "%v", err)
		require.Equal(t, "acd", string(c.writing[at].text))
		late := add("f")
		c.drop(run)
		late()
		require.Zero(t, c.size)
		require.False(t, c.has(run, "k", "m"))
	})
}

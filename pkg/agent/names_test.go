package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Programs that share a bus cannot answer each other's runs: a name that means
// something else in a process that lives is refused, and the error names both.
func TestNamesThatCollide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := simtest.New(simtest.Options{})
		says := func(words string) llm.Caller {
			return llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
				return llm.Text{Content: words}, nil
			})
		}
		program := func(change func(*agent.Builder)) *agent.Agent {
			b := agent.New("Who are you?").LLM(says("I am the first one, always.")).Bus(j.NewProcess())
			if change != nil {
				change(b)
			}
			return built(t, b)
		}
		first, err := agent.Serve(t.Context(), program(nil))
		require.NoError(t, err)

		var taken *journal.NameTakenError
		_, err = program(func(b *agent.Builder) { b.SystemPrompt("You are another one.") }).Run(t.Context())
		require.ErrorAs(t, err, &taken)
		require.Equal(t, journal.ClaimAgent, taken.Claim.Kind)
		require.ErrorContains(t, err, taken.Claim.Instance)
		require.ErrorContains(t, err, taken.Instance)
		require.NotEqual(t, taken.Claim.Instance, taken.Instance)

		other := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
			return llm.Text{Content: "I am somebody else altogether."}, nil
		})
		_, err = agent.Serve(t.Context(), program(func(b *agent.Builder) { b.LLM(other) }))
		require.ErrorAs(t, err, &taken)
		require.Equal(t, journal.ClaimProvider, taken.Claim.Kind)

		answer, err := program(func(b *agent.Builder) { b.Name("other").LLM(other) }).Run(t.Context())
		require.NoError(t, err, "under a name of its own")
		require.Equal(t, "I am somebody else altogether.", answer)
		copied, err := agent.Serve(t.Context(), program(nil))
		require.NoError(t, err, "a copy of the program")
		require.NoError(t, copied.Close())

		require.NoError(t, first.Close())
		left, err := j.Claims(t.Context())
		require.NoError(t, err)
		require.Empty(t, left, "what has ended has given its names back")
		began := time.Now()
		answer, err = program(func(b *agent.Builder) { b.LLM(other) }).Run(t.Context())
		require.NoError(t, err, "in its place")
		require.Equal(t, "I am somebody else altogether.", answer)
		require.Less(t, time.Since(began), journal.AnnouncementRefresh, "what ended has given its names back")
	})
}

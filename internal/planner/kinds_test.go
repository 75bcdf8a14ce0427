package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// A rate limit that lasts long uses up no attempt of another kind, and a failure
// of another kind none of a rate limit.
func TestFailuresCountByTheirKind(t *testing.T) {
	limited := &llm.Error{Kind: llm.KindRateLimited, Message: "slow down", RetryAfter: time.Second}
	busy := &llm.Error{Kind: llm.KindOverloaded, Message: "busy"}
	odd := &llm.Error{Kind: llm.KindOther, Message: "odd"}
	for name, replies := range map[string][]any{
		"one that is overloaded":  {limited, limited, limited, limited, limited, limited, busy, limited, say("It is 42.")},
		"one that is like no one": {limited, limited, odd, limited, say("It is 42.")},
		"limits after failures":   {busy, busy, busy, busy, limited, limited, say("It is 42.")},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, replies, func(t *testing.T, r *rig) {
				mem := r.AwaitEnd(r.begin())
				require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
			})
		})
	}
	t.Run("and each is bounded", func(t *testing.T) {
		bubble(t, []any{limited, busy, limited, busy, busy, busy, busy, limited, busy}, func(t *testing.T, r *rig) {
			run := r.begin()
			require.Equal(t, "overloaded", r.AwaitEnd(run).Error.Code)
			require.Equal(t, 8, r.Count(run, events.TypeLLMAttemptFailed))
		})
	})
}

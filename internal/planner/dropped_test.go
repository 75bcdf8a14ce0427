package planner_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// A server that cuts a prompt without a word is found out by the tokens that it read.
func TestDroppedContextIsSaid(t *testing.T) {
	prose := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 1000) // some 9,000 tokens, 11,250 here
	for name, c := range map[string]struct {
		task    string
		usage   llm.Usage
		dropped bool
	}{
		"the context is full":             {prose, llm.Usage{Input: 8192}, true},
		"far less was read":               {prose, llm.Usage{Input: 3111}, true},
		"all was read":                    {prose, llm.Usage{Input: 9020}, false},
		"most was in a cache":             {prose, llm.Usage{Input: 1024, Cached: 8000}, false},
		"only what was new was counted":   {prose, llm.Usage{Input: 20}, false},
		"no usage":                        {prose, llm.Usage{}, false},
		"white space is cheap":            {strings.Repeat(" ", 45_000), llm.Usage{Input: 1500}, false},
		"another script":                  {strings.Repeat("नमस्ते दुनिया ", 2000), llm.Usage{Input: 6000}, false},
		"a short request":                 {"find it", llm.Usage{Input: 512}, false},
		"a context of 2048 that was left": {strings.Repeat("word ", 1600), llm.Usage{Input: 2048}, false},
	} {
		t.Run(name, func(t *testing.T) {
			caller := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
				reply := say("It is 42.")
				reply.Usage = c.usage
				return reply, nil
			})
			var logged strings.Builder
			bubbleWith(t, caller, func(t *testing.T, r *rig) {
				run := r.begin(func(s *events.Start) { s.Task = c.task })
				r.AwaitEnd(run)
				quiet()
				facts := r.event(run, 2).Data.(*events.LLMFinalAnswer).Facts
				require.Equal(t, c.dropped, facts.ContextDropped != nil)
				require.Equal(t, c.dropped, strings.Contains(logged.String(), "dropped the rest"))
				if c.dropped {
					require.Equal(t, c.usage.Input, facts.ContextDropped.Read)
					require.Greater(t, facts.ContextDropped.Sent, 11_000)
				}
			}, func(cfg *planner.Config) { cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
		})
	}
}

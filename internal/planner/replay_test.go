package planner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/replay"
)

// A run that a reply ended is carried once more to the same end, from its log alone.
func TestRunsThatAReplyEndedAreReplayed(t *testing.T) {
	empty, refused, broken := say(""), say("I will not."), cutText("It is", llm.FinishError, "")
	empty.Finish, refused.Finish = llm.FinishStop, llm.FinishRefusal
	lost := &llm.Error{Kind: llm.KindInvalid, Message: "no such thing", Usage: &broken.Usage, Reply: &broken.Meta}
	two := func(s *events.Start) {
		s.Agent.Models = map[string]events.Models{"default": {{Provider: "scripted", Model: "a"}, {Provider: "scripted", Model: "b"}}}
	}
	for code, c := range map[string]struct {
		replies []any
		change  func(*events.Start)
	}{
		"cut_off":     {[]any{cutText("It is 4", llm.FinishLength, "length")}, func(s *events.Start) { onCut(events.CutFail)(s); two(s) }},
		"refused":     {[]any{refused, refused}, two},
		"empty_reply": {[]any{empty, empty}, two},
		"invalid":     {[]any{lost}, onCut("")},
	} {
		t.Run(code, func(t *testing.T) {
			var model llm.Caller = scripted.NewMock(c.replies...)
			caller := llm.CallerFunc(func(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
				return model.Call(ctx, req, stream)
			})
			bubbleWith(t, caller, func(t *testing.T, r *rig) {
				first := r.begin(c.change)
				require.Equal(t, code, r.AwaitEnd(first).Error.Code)
				log, machine := r.Journal.NewProcess(), reducer.NewMachine(reducer.MachineOptions{})
				var err error
				model, err = replay.Model(t.Context(), log, machine, first)
				require.NoError(t, err)
				second := r.begin(c.change)
				r.AwaitEnd(second)
				diff, err := replay.Diff(t.Context(), machine, log, first, log, second)
				require.NoError(t, err)
				require.True(t, diff.Equal, "%+v", diff)
			})
		})
	}
}

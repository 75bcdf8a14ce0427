package actor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// buyer asks two questions in each run. It counts what it bought.
func buyer(effect tool.Effect, bought *[]string) *fn {
	f := &fn{def: tool.Definition{Name: "pay", Effect: effect}}
	f.run = func(ctx context.Context, c tool.Call) (string, error) {
		said := map[string]string{}
		for _, question := range []string{"How many?", "Where to?"} {
			err := callctx.Ask(ctx, question, func(answer string) error {
				if answer == "hm" {
					return fmt.Errorf("that is no answer")
				}
				said[question] = answer
				return nil
			})
			if err != nil {
				return "", err
			}
		}
		*bought = append(*bought, c.Arguments)
		return "bought " + said["How many?"] + " to " + said["Where to?"], nil
	}
	return f
}

// A tool that asks while it runs waits in the log, and runs again with each answer.
func TestToolThatAsksWhileItRuns(t *testing.T) {
	for _, effect := range []tool.Effect{tool.Pure, tool.Once} {
		t.Run(string(effect), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				spec := payTool
				spec.Effect = string(effect)
				var bought []string
				run := r.under(never, spec, &events.LLMToolCall{ToolCallReply: calls(1)})
				r.spawn([]tool.Tool{buyer(effect, &bought)})
				answer := func(question, arguments string) {
					mem := r.Await(run, func(mem *reducer.Memory) bool {
						return mem.PendingApproval != nil && mem.PendingApproval.Requests[0].Reason == question
					})
					request := mem.PendingApproval.Requests[0]
					require.True(t, request.Asks)
					require.JSONEq(t, `{"amount":1}`, request.Arguments)
					r.Append(run, events.WaitingForHuman, &events.HumanModified{Decision: saying("c1", "modified", arguments)})
				}
				answer("How many?", `{"amount":1,"answer":"hm"}`)
				answer("The answer \"hm\" was not accepted: that is no answer.\nHow many?", `{"amount":1,"answer":"two"}`)
				answer("Where to?", `{"amount":1,"answer":"Rome"}`)
				require.Equal(t, "SUCCESS: bought two to Rome", r.outcome(run).Observation)
				require.Equal(t, []string{`{"amount":1}`}, bought, "the tool does not get the answer as an argument")
			})
		})
	}
}

// An answer that a model writes counts for nothing.
func TestAnswerOfAModel(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		reply := calls(1)
		reply.Calls[0].Arguments = `{"amount":1,"answer":"two"}`
		var bought []string
		run := r.under(never, payTool, &events.LLMToolCall{ToolCallReply: reply})
		r.spawn([]tool.Tool{buyer(tool.Once, &bought)})
		mem := r.AwaitState(run, events.WaitingForHuman)
		require.Equal(t, "How many?", mem.PendingApproval.Requests[0].Reason)
		require.Empty(t, bought)
	})
}

// A batch cannot wait, and neither can a tool with an argument of that name.
func TestQuestionsThatNobodyCanAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var bought []string
		run := r.under(never, payTool, &events.LLMParallelToolCalls{ToolCallReply: calls(2)})
		var others []events.Run
		for _, key := range []string{"answer", `\u0061nswer`} {
			own := payTool
			own.Schema = []byte(`{"type":"object","properties":{"` + key + `":{"type":"string"}}}`)
			others = append(others, r.under(never, own, &events.LLMToolCall{ToolCallReply: calls(1)}))
		}
		r.spawn([]tool.Tool{buyer(tool.Once, &bought)})
		batch := r.results(run)["c1"]
		require.Equal(t, codes.InputRequired, batch.Code)
		require.Contains(t, batch.Observation, "Make this call again, alone in a reply, and a human is asked. How many?")
		for _, other := range others {
			out := r.outcome(other)
			require.Equal(t, codes.InputRequired, out.Code)
			require.Contains(t, out.Observation, `has an argument named "answer". How many?`)
			require.NotContains(t, out.Observation, "again")
		}
		require.Empty(t, bought)
	})
}

// A question with a secret, and one that is too long for the log, are found again with their
// answers.
func TestQuestionsThatAreStoredInAnotherWay(t *testing.T) {
	for name, question := range map[string]string{"a secret": "Is s3cr3t-key right?", "too long": strings.Repeat("Why? ", 1<<18), "no UTF-8": "Is it \xff?"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				asks := &fn{def: tool.Definition{Name: "pay", Effect: tool.Once}}
				asks.run = func(ctx context.Context, _ tool.Call) (said string, err error) {
					err = callctx.Ask(ctx, question, func(answer string) error {
						if said = answer; answer == "s3cr3t-key" {
							return errors.New("not that")
						}
						return nil
					})
					return said, err
				}
				run := r.under(never, payTool, &events.LLMToolCall{ToolCallReply: calls(1)})
				r.spawn([]tool.Tool{asks}, redacting("s3cr3t-key"))
				r.AwaitState(run, events.WaitingForHuman)
				r.Append(run, events.WaitingForHuman, &events.HumanModified{Decision: saying("c1", "modified", `{"amount":1,"answer":"s3cr3t-key"}`)})
				mem := r.Await(run, func(mem *reducer.Memory) bool {
					return mem.PendingApproval != nil && strings.HasPrefix(mem.PendingApproval.Requests[0].Reason, "The answer")
				})
				reason := mem.PendingApproval.Requests[0].Reason
				require.Contains(t, reason, `The answer "[REDACTED]" was not accepted: not that.`)
				require.Less(t, len(reason), 10<<10)
				require.NotContains(t, reason, "s3cr3t")
				r.Append(run, events.WaitingForHuman, &events.HumanModified{Decision: saying("c1", "modified", `{"amount":1,"answer":"yes"}`)})
				require.Equal(t, "SUCCESS: yes", r.outcome(run).Observation)
			})
		})
	}
}

// A tool that converses gets its answers with what it kept with each question, also where two
// questions have the same words. In a batch its own error is the result.
func TestDialogue(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		asks := &fn{def: tool.Definition{Name: "pay", Effect: tool.Once}}
		asks.run = func(ctx context.Context, _ tool.Call) (string, error) {
			d := callctx.DialogueOf(ctx)
			if len(d.Answers) < 2 {
				d.Put("And?", fmt.Sprint("state ", len(d.Answers), " s3cr3t-key"))
				return "", errors.New("nobody answers")
			}
			return fmt.Sprint(d.Answers), nil
		}
		run := r.under(never, payTool, &events.LLMToolCall{ToolCallReply: calls(1)})
		batch := r.under(never, payTool, &events.LLMParallelToolCalls{ToolCallReply: calls(2)})
		r.spawn([]tool.Tool{asks}, redacting("s3cr3t-key"))
		for i, answer := range []string{"one", "two"} {
			r.Await(run, func(mem *reducer.Memory) bool {
				return mem.PendingApproval != nil && strings.Contains(mem.ToolCalls["c1"].Parameters, "answer") == (i > 0)
			})
			r.Append(run, events.WaitingForHuman, &events.HumanModified{Decision: saying("c1", "modified", `{"amount":1,"answer":"`+answer+`"}`)})
		}
		require.Equal(t, "SUCCESS: [{And? one state 0 [REDACTED]} {And? two state 1 [REDACTED]}]", r.outcome(run).Observation)
		require.Contains(t, r.results(batch)["c1"].Observation, "nobody answers")
	})
}

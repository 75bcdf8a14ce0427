package toolcall

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// AnswerKey is the key that a decision on a question adds to the call's arguments.
const AnswerKey = "answer"

// Answer is what a human said to a question of a running call. Resume is what the call's tool gave
// with the question.
type Answer struct{ Question, Text, Resume string }

// Answers returns what humans answered to questions of a call that had started, in the order of
// the questions, and the call without the last answer among its arguments. Only answers that
// the log has count: a model may write an argument of that name itself.
func (g *Guard) Answers(ctx context.Context, run events.Run, c tool.Call) ([]Answer, tool.Call, error) {
	rest, answer := withoutAnswer(c.Arguments)
	if answer == "" {
		return nil, c, nil
	}
	var answers []Answer
	var question, resume, last string
	observe := func(from events.State, p events.Payload) {
		switch p := p.(type) {
		case *events.HumanApprovalRequired:
			question = ""
			i := slices.IndexFunc(p.Requests, func(r events.Request) bool { return r.CallID == c.ID && r.Asks })
			if i >= 0 && from == events.Acting {
				question, resume = p.Requests[i].Reason, p.Resume
			}
		case *events.HumanModified:
			if from == events.WaitingForHuman && p.CallID == c.ID && question != "" {
				_, text := withoutAnswer(p.Arguments)
				answers, last, question = append(answers, Answer{Question: question, Text: text, Resume: resume}), p.Arguments, ""
			}
		}
	}
	err := throughOutage(ctx, func(ctx context.Context) error {
		answers, question, last = nil, "", ""
		return g.gather(ctx, run, 0, observe)
	})
	if err != nil || last != c.Arguments {
		return nil, c, err
	}
	c.Arguments = rest
	return answers, c, nil
}

// MayAnswer reports whether arguments can hold an answer. It costs less than to read them. A key
// may be written with escapes.
func MayAnswer(arguments string) bool {
	return strings.Contains(arguments, AnswerKey) || strings.Contains(arguments, `\u`)
}

// withoutAnswer returns arguments without their answer, which is empty if they have none.
func withoutAnswer(arguments string) (rest, answer string) {
	var all map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &all) != nil || json.Unmarshal(all[AnswerKey], &answer) != nil {
		return arguments, ""
	}
	delete(all, AnswerKey)
	without, err := json.Marshal(all)
	if err != nil {
		return arguments, ""
	}
	return string(without), answer
}

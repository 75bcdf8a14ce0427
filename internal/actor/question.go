package actor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// questions are what a call's tool asks a human while it runs. A question without an answer
// ends the run of the tool. The call then waits in the log, and the tool runs again with the
// answer.
type questions struct {
	answers []toolcall.Answer
	// unasked says why no human is asked; empty: one is.
	unasked string
	// redact removes secrets from a text.
	redact func(string) string

	mu sync.Mutex
	// open is the question that needs an answer; its text is empty where none does.
	open question
}

// question is a question, and what its tool needs to continue with the answer.
type question struct{ text, state string }

// under returns the context of the call's tool.
func (q *questions) under(ctx context.Context) context.Context {
	d := callctx.Dialogue{Put: func(text, state string) { q.put(q.storable(text), q.redact(strings.ToValidUTF8(state, "\uFFFD"))) }}
	for _, a := range q.answers {
		d.Answers = append(d.Answers, callctx.Answer{Question: a.Question, Text: a.Text, State: a.Resume})
	}
	ctx = callctx.WithDialogue(ctx, d)
	return callctx.WithQuestion(ctx, q.ask)
}

// put opens a question, unless one is open.
func (q *questions) put(text, state string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open.text == "" {
		q.open = question{text, state}
	}
}

// maxQuestion bounds a question and what is said of an answer, each in bytes.
const maxQuestion = 8 << 10

// storable returns a text as the log has it.
func (q *questions) storable(text string) string {
	text = q.redact(strings.ToValidUTF8(text, "\uFFFD"))
	return truncate.Result(text, maxQuestion, int64(len(text)))
}

// ask is a [callctx.Question]. The last answer to a question counts.
func (q *questions) ask(text string, fits func(answer string) error) error {
	text = q.storable(text) // so it is found in the log
	asked := text
	for i := len(q.answers) - 1; i >= 0; i-- {
		if a := q.answers[i]; strings.HasSuffix(a.Question, text) {
			err := fits(a.Text)
			if err == nil {
				return nil
			}
			asked = q.storable(fmt.Sprintf("The answer %q was not accepted: %s.", a.Text, err)) + "\n" + text
			break
		}
	}
	q.put(asked, "")
	return tool.Failf(codes.InputRequired, "a human has to answer before the call can continue. %s%s", q.unasked, asked)
}

// unanswered returns the question that ended the run of the tool, if there is one.
func (q *questions) unanswered() question {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open
}

// unasked says why the call may not wait for a human; empty if it may. A batch cannot, and an
// answer must differ from the tool's arguments.
func (c call) unasked() string {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if toolcall.MayAnswer(c.info.Schema) { // parsing the schema for each call is dear
		_ = json.Unmarshal([]byte(c.info.Schema), &schema) // what cannot be read has none
	}
	_, taken := schema.Properties[toolcall.AnswerKey]
	switch {
	case taken:
		return fmt.Sprintf("No human can be asked about a tool that has an argument named %q. ", toolcall.AnswerKey)
	case c.batch:
		return "Nobody was asked, because the call is one of several in one reply. Make this call again, alone in a reply, and a human is asked. "
	}
	return ""
}

// ask has a human answer the question. The log has to say first that the call started.
func (a *Actor) ask(c call, q question) worker.Result {
	risk := c.info.Risk
	if risk == "" {
		risk = string(tool.Low)
	}
	asks := worker.Done(&events.HumanApprovalRequired{
		ToolCallReply: events.ToolCallReply{Calls: []events.Call{}},
		Requests: []events.Request{{
			CallID: c.ID, Tool: c.Name, Arguments: c.Arguments, Risk: risk, Asks: true, Reason: q.text,
		}},
		Deadline: c.policy.Deadline(a.cfg.Store.Now()), Resume: q.state,
	})
	if c.started {
		return asks
	}
	return worker.Then(&events.ToolCallStarted{CallID: c.ID}, func(context.Context) worker.Result { return asks })
}

package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// reflectionPrompt is the prompt of SPEC A51.
const reflectionPrompt = `Summarize the following tool call history into a single concise paragraph
that preserves all key facts, findings, and data needed to continue the task.
Task: %s
History: %s`

// chatReflectionPrompt is the same for a conversation, whose first message is not the
// current task.
const chatReflectionPrompt = `Summarize the following tool call history into a single concise paragraph
that preserves all key facts, findings, and data needed to continue the task.
The task is what the user said last in a conversation; the history may go back further.
Task: %s
History: %s`

// reflectionText returns the request for a summary of the history.
func reflectionText(mem *reducer.Memory, history string) string {
	if mem.Mode == events.ModeChat {
		return fmt.Sprintf(chatReflectionPrompt, turnTask(mem), history)
	}
	return fmt.Sprintf(reflectionPrompt, mem.Task, history)
}

// turnTask returns what the user said since the last answer.
func turnTask(mem *reducer.Memory) string {
	var said []string
	for _, m := range mem.Messages[min(mem.Control.Opened, len(mem.Messages)):] {
		if m.Role == string(llm.RoleUser) {
			said = append(said, m.Content)
		}
	}
	return strings.Join(said, "\n\n")
}

// reflect plans Reflecting: the model summarizes the history. If that fails, the history
// stays and the run goes on.
func (p *Planner) reflect(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	if len(mem.History) == 0 {
		return done(&events.ReflectDone{})
	}
	history, err := historyText(mem.History)
	if err != nil {
		return func(context.Context) worker.Result { return worker.Fail(err) }
	}
	agent := &mem.Control.Agent
	req := llm.Request{
		Run: mem.RunID, Purpose: llm.PurposeReflect, Model: model(mem), Sampling: reflecting(agent.LLM),
		Settings: mem.Settings(), Replies: mem.Control.Replies,
		Messages: []llm.Message{{Role: llm.RoleUser, Content: reflectionText(mem, history)}},
	}
	bill, end := p.reserve(mem, req)
	if end != nil {
		return done(end)
	}
	c := modelCall{run: run, provider: agent.LLM.Provider, before: e.Failed, req: req}
	return func(ctx context.Context) worker.Result {
		reply, err := p.call(ctx, c, p.silent(run)) // a summary is nothing that is said to the user
		if ctx.Err() != nil {
			return worker.Fail(ctx.Err())
		}
		if result, not := notAsked(err); not != nil && not.elsewhere() {
			return result
		}
		r := p.reflection(run, c.provider, reply, err, bill.attempt(err))
		return worker.Done(bill.charge(r, r.Model))
	}
}

// historyText returns the history as JSON without HTML escapes: the model reads its
// characters as it wrote them.
func historyText(history []reducer.HistoryEntry) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(history); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

func (p *Planner) reflection(run events.Run, provider string, reply llm.Response, err error, billed *events.Usage) *events.ReflectDone {
	if err != nil {
		p.noReflection(run, provider, err)
		return &events.ReflectDone{Failed: clean(err.Error()), Usage: billed}
	}
	u := usage(reply.About().Usage)
	done := &events.ReflectDone{Model: reply.About().Model, Usage: &u}
	if text, ok := reply.(llm.Text); ok {
		done.Summary = contextedit.Clip(maxSummary, text.Content)
	}
	if strings.TrimSpace(done.Summary) == "" {
		p.noReflection(run, provider, errNoSummary)
		done.Summary, done.Failed = "", errNoSummary.Error()
	}
	return done
}

// noReflection logs why there is no summary. A script never has one, which is no warning.
func (p *Planner) noReflection(run events.Run, provider string, reason error) {
	level := slog.LevelWarn
	if _, script := p.cfg.Providers[provider].(llm.OwnCost); script {
		level = slog.LevelDebug
	}
	p.cfg.Logger.Log(context.Background(), level, "reflection failed, the history stays", "run", run.ID, "reason", reason)
}

// reflecting returns the sampling for a summary: without thinking, since no call follows.
func reflecting(l events.LLM) llm.Sampling {
	s := sampling(l)
	s.ThinkingTokens = 0
	return s
}

// maxSummary bounds a summary, in bytes. It stands for the whole history, so only an
// absurdly long one is cut.
const maxSummary = 128 << 10

// errNoSummary is the error of a reflection without text.
var errNoSummary = errors.New("the model gave no summary")

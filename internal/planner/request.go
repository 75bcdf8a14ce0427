package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// request returns the request to a model. It depends on memory alone.
func request(mem *reducer.Memory, ref events.ModelRef) llm.Request {
	agent := &mem.Control.Agent
	return llm.Request{
		Run: mem.RunID, Purpose: llm.PurposePlan, Provider: ref.Provider, Model: ref.Model, Messages: reducer.Messages(mem, message), Tools: offered(mem),
		ProviderTools: agent.ProviderTools,
		Sampling:      sampling(agent), OutputSchema: agent.OutputSchema, Settings: mem.Settings(),
		Replies: mem.Control.Replies, Observations: observations(mem), Memory: textMemory(mem),
	}
}

// message is a message of the view as the model's port has it.
func message(m *reducer.ViewMessage) llm.Message {
	message := llm.Message{
		Role: llm.Role(m.Role), Content: m.Content, CallID: m.CallID, Name: m.Name, Failed: m.Failed, Reasoning: reasoningOf(m), Raw: m.Raw,
		Parts: m.Parts,
	}
	if m.Asked != nil {
		message.Asked = *m.Asked
	}
	if len(m.Calls) > 0 {
		message.Calls = make([]llm.Call, len(m.Calls))
	}
	for i, c := range m.Calls {
		message.Calls[i] = llm.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments}
	}
	return message
}

// observations returns the raw results of the run's calls, for an agent whose script refers
// to them.
func observations(mem *reducer.Memory) []string {
	if len(mem.Control.Agent.LLM.Script) == 0 {
		return nil
	}
	return mem.Results()
}

// offered returns the tools that the model may call, by name.
func offered(mem *reducer.Memory) []llm.Tool {
	tools := make([]llm.Tool, 0, len(mem.Tools))
	for _, name := range slices.Sorted(maps.Keys(mem.Tools)) {
		if slices.Contains(mem.Blacklist, name) {
			continue
		}
		info := mem.Tools[name]
		tools = append(tools, llm.Tool{Name: name, Description: info.Description, Schema: json.RawMessage(info.Schema)})
	}
	return append(tools, contextedit.Tools(mem)...)
}

func sampling(a *events.Agent) llm.Sampling {
	l := a.LLM
	s := llm.Sampling{Temperature: l.Temperature, TopP: l.TopP, Seed: l.Seed, MaxTokens: l.MaxTokens, Stop: slices.Clip(l.Stop), ThinkingTokens: l.ThinkingTokens}
	if r := a.Reasoning; r != nil {
		s.Effort = r.Effort
		s.ThinkingTokens = max(s.ThinkingTokens, r.BudgetTokens)
	}
	return s
}

// estimate is the size of a request in tokens, 0 where no budget asks for it.
func (p *Planner) estimate(mem *reducer.Memory, req llm.Request) int {
	if mem.Budget == nil {
		return 0
	}
	return estimate(p.cfg.Estimators.Or(mem.Config.TokenEstimator), req)
}

// estimate is the size of a request in tokens.
func estimate(count tokens.Estimator, req llm.Request) int {
	total := count(string(req.OutputSchema))
	for _, m := range req.Messages {
		total += count(m.Content)
		for _, c := range m.Calls {
			total += count(c.Name + c.Arguments)
		}
		for _, p := range m.Reasoning {
			total += count(p.Text) + count(string(p.Data))
		}
		for _, p := range m.Parts {
			total += mediaTokens(p)
		}
	}
	for _, raw := range req.ProviderTools {
		total += count(string(raw))
	}
	for _, t := range req.Tools {
		total += count(t.Name + t.Description + string(t.Schema))
	}
	return total + estimateMemory(count, req.Memory)
}

// overBudget returns which limit the next call would exceed, if any. Output is reserved if
// the agent bounds it. cost is the price of that and the input, in US dollars. used is what
// the run used so far.
func overBudget(mem *reducer.Memory, used reducer.TotalUsage, input int, cost float64, now time.Time) (code, message string) {
	b := mem.Budget
	if b == nil {
		return "", ""
	}
	output := mem.Control.Agent.LLM.MaxTokens
	for _, limit := range []struct {
		name              string
		max, used, needed int
	}{
		{"input_tokens", b.MaxInputTokens, used.Input, input},
		{"output_tokens", b.MaxOutputTokens, used.Output, max(output, 1)},
		{"total_tokens", b.MaxTotalTokens, used.Total, input + output},
	} {
		if limit.max > 0 && limit.used+limit.needed > limit.max {
			return "budget_" + limit.name, fmt.Sprintf("the budget of %d %s is used up: %d used, the next call needs about %d",
				limit.max, strings.ReplaceAll(limit.name, "_", " "), limit.used, limit.needed)
		}
	}
	if b.MaxCostUSD > 0 && used.Cost+cost > b.MaxCostUSD || b.MaxCostUSD > 0 && used.Cost >= b.MaxCostUSD {
		return "budget_cost", fmt.Sprintf("the budget of $%g is used up: $%g used, the next call costs about $%g",
			b.MaxCostUSD, dollars(used.Cost), dollars(cost))
	}
	over, _ := effects.OverWallTime(mem, now)
	return over.Code, over.Message
}

// clean makes text from outside fit for the log: valid UTF-8 of bounded length.
func clean(text string) string { return contextedit.Clip(4000, text) }

// The codes of runs that end because their model makes no progress.
const (
	codeMaxSteps      = "max_steps"
	codeMaxIterations = "max_iterations"
	codeReplyInvalid  = "reply_invalid"
)

// overPasses returns the end of a run that has used up its planning calls since the last
// user message, or whose model's replies cannot be used; else nil.
func overPasses(mem *reducer.Memory) events.Payload {
	c, since := mem.Config, mem.Control.SinceUser
	code, name, limit := codeMaxSteps, "steps", c.MaxSteps
	// Runs that an older version started have this limit pinned, whatever protocol their
	// model uses.
	if mem.Control.Agent.LLM.Text && c.MaxIterations > 0 && c.MaxIterations < limit {
		code, name, limit = codeMaxIterations, "iterations", c.MaxIterations
	}
	if since.Steps >= limit {
		return &events.MaxSteps{Outcome: events.Outcome{Code: code, Message: fmt.Sprintf("max %s %d exceeded", name, limit) + unfit(mem)}}
	}
	if bound := c.InvalidReplies(); mem.Control.Agent.LLM.Text && bound > 0 && since.Invalid >= bound {
		return &events.FatalError{Outcome: events.Outcome{Code: codeReplyInvalid, Message: fmt.Sprintf(
			"%d replies in a row could not be used; the last one: %s", since.Invalid,
			clean(strings.TrimPrefix(reducer.LastRefusal(mem), codes.ErrorPrefix))) + unfit(mem)}}
	}
	return nil
}

// unfit says how many of the model's last answers, without a break, did not satisfy the
// output schema, and why the last one did not; empty if it did.
func unfit(mem *reducer.Memory) string {
	count, last := reducer.LastRefusals(mem, codes.ErrorPrefix+schemaRefusal)
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("; %s failed %d times: %s", codeOutputSchema, count, clean(last))
}

// textMemory returns what a model that uses the text protocol sees besides the
// conversation, nil for other models.
func textMemory(mem *reducer.Memory) *llm.Memory {
	if !mem.Control.Agent.LLM.Text {
		return nil
	}
	state, _ := textState(mem)
	m := &llm.Memory{State: state, Prompts: mem.Control.Agent.LLM.StatePrompts}
	for _, entry := range mem.WorkingMemory {
		m.Entries = append(m.Entries, llm.MemoryEntry{Tags: entry.Tags, Value: entry.Value})
	}
	for _, thought := range mem.ThinkingLog {
		m.Thoughts = append(m.Thoughts, llm.LogEntry{Name: thought.Name, Content: thought.Content})
	}
	return m
}

// textNote returns what is wrong with the logged state, empty if nothing is.
func textNote(mem *reducer.Memory) string {
	if !mem.Control.Agent.LLM.Text {
		return ""
	}
	_, note := textState(mem)
	return note
}

// estimateMemory returns the size of a request's memory in tokens.
func estimateMemory(count tokens.Estimator, m *llm.Memory) int {
	if m == nil {
		return 0
	}
	total := 0
	for _, entry := range m.Entries {
		total += count(strings.Join(entry.Tags, " ")) + count(entry.Value)
	}
	for _, thought := range m.Thoughts {
		total += count(thought.Name + thought.Content)
	}
	for _, prompt := range m.Prompts {
		total += count(prompt)
	}
	return total
}

// speaking wraps the caller in the text protocol if the agent wants it. Reflections are
// plain text anyway.
func (p *Planner) speaking(caller llm.Caller, req llm.Request) (llm.Caller, error) {
	switch {
	case req.Memory == nil || req.Purpose == llm.PurposeReflect:
		return caller, nil
	case p.cfg.Text == nil:
		return nil, &llm.Error{Kind: llm.KindOther, Message: "the agent says llm.text, and this planner has no text protocol"}
	}
	return p.cfg.Text(caller), nil
}

// thought is the event of a thinking pass.
func (ch *replyChecker) thought(r llm.Thought) events.Payload {
	notes := make([]string, 0, 2)
	for _, note := range []string{ch.textNote, r.Note} {
		if note != "" {
			notes = append(notes, clean(note))
		}
	}
	return &events.LLMThought{
		MessageID: ch.messageID,
		Reply:     events.Reply{Content: strings.ToValidUTF8(r.Content, "\uFFFD"), Model: r.Model, Usage: usage(r.Usage), Facts: ch.facts(r.Meta)},
		NextState: strings.ToValidUTF8(r.NextState, "\uFFFD"), Note: strings.Join(notes, "; "),
	}
}

// malformed is the event of a reply that could not be parsed.
func (ch *replyChecker) malformed(r llm.Invalid) events.Payload {
	content := strings.ToValidUTF8(r.Content, "\uFFFD")
	if r.Cut() && ch.onCut == events.CutFail {
		return ch.cutOff(r.Meta, content, false)
	}
	return ch.invalid(r.Meta, content, codes.MalformedReply, clean(r.Reason))
}

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

// reflect plans Reflecting: the model summarizes the history, or less of it if that is too
// long for the model. If that fails, the history stays and the run continues.
func (p *Planner) reflect(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	return p.reflectWith(nil, run, mem, e)
}

// reflectWith is reflect with the reply of a client model; nil: there is none yet.
func (p *Planner) reflectWith(said *clientmodel.Message, run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	if len(mem.History) == 0 || mem.Control.Compacted != "" && !mem.Summarizable() {
		return done(&events.ReflectDone{})
	}
	req, err := reflection(mem, e.Failed)
	if err != nil {
		return func(context.Context) worker.Result { return worker.Fail(err) }
	}
	bill, end := p.reserve(mem, req, llm.Usage{})
	if end != nil {
		return done(end)
	}
	if e.Client && said == nil {
		return p.await(run, mem)
	}
	c := modelCall{run: run, before: e.Failed, trace: traceOf(mem, e), req: req, asked: p.asked(req), compacted: mem.Control.Compacted == reducer.CompactedSummary, said: said}
	return func(ctx context.Context) worker.Result {
		s := p.silent(run) // a summary is nothing that is said to the user
		p.streams.add(s)
		defer p.streams.remove(s)
		reply, err := p.call(ctx, c, s)
		if ctx.Err() != nil {
			return worker.Fail(ctx.Err())
		}
		if result, not := notAsked(err); not != nil && (not.elsewhere() || c.compacted) {
			return result
		}
		if result, ok := p.summarizeAgain(err, bill.attempt(err), c); ok {
			return result
		}
		r := p.reflected(run, req.Provider, reply, err, bill.attempt(err))
		r.MessageID = messageID(said, func() string { return "" })
		return worker.Done(bill.charge(r, r.Model))
	}
}

// traceOf returns the traceparent that the request of an effect carries.
func traceOf(mem *reducer.Memory, e effects.Effect) string {
	return tracecontext.In(mem.RunID, mem.Control.TraceParent, tracecontext.Chat(mem.RunID, e.Key, e.Failed.Total(), e.Failed.Lost))
}

// reflection returns the request for a summary after these failures.
func reflection(mem *reducer.Memory, failed reducer.Attempt) (llm.Request, error) {
	history, err := historyText(summarized(mem, failed))
	if err != nil {
		return llm.Request{}, err
	}
	ref, _ := effects.Model(mem, reducer.Attempt{})
	return llm.Request{
		Run: mem.RunID, Purpose: llm.PurposeReflect, Provider: ref.Provider, Model: ref.Model, Sampling: reflecting(&mem.Control.Agent),
		Settings: mem.Settings(), Replies: mem.Control.Replies,
		Messages: []llm.Message{{Role: llm.RoleUser, Content: reflectionText(mem, history)}},
	}, nil
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

func (p *Planner) reflected(run events.Run, provider string, reply llm.Response, err error, billed *events.Usage) *events.ReflectDone {
	if err != nil {
		p.noReflection(run, provider, err)
		return &events.ReflectDone{Failed: clean(err.Error()), Usage: billed}
	}
	u := usage(reply.About().Usage)
	done := &events.ReflectDone{Model: reply.About().Model, Usage: &u}
	if reason := noSummary(reply); reason != nil {
		p.noReflection(run, provider, reason)
		done.Failed = clean(reason.Error())
	} else {
		done.Summary = contextedit.Clip(maxSummary, textOf(reply))
	}
	return done
}

// noSummary returns why a reply is no summary, nil if it is one. A part of one would stand
// for the entire history.
func noSummary(reply llm.Response) error {
	words, refuses := refusal(reply)
	_, text := reply.(llm.Text)
	switch m := reply.About(); {
	case refuses:
		return fmt.Errorf("the model refused: %s", words)
	case m.Cut():
		return fmt.Errorf("the summary was cut off (%s)", cmp.Or(m.FinishRaw, string(m.Finish)))
	case !text || hasNothing(textOf(reply)):
		return errNoSummary
	}
	return nil
}

// noReflection logs why there is no summary. A script never has one, which is no warning.
func (p *Planner) noReflection(run events.Run, provider string, reason error) {
	level := slog.LevelWarn
	if llm.Describe(p.cfg.Providers[provider]).OwnCost {
		level = slog.LevelDebug
	}
	p.cfg.Logger.Log(context.Background(), level, "reflection failed, the history stays", "run", run.ID, "reason", reason)
}

// reflecting returns the sampling for a summary: without thinking, since no call follows.
func reflecting(a *events.Agent) llm.Sampling {
	s := sampling(a)
	s.Effort, s.ThinkingTokens = "", 0
	return s
}

// maxSummary bounds a summary, in bytes. It stands for the entire history, so only an
// absurdly long one is cut.
const maxSummary = 128 << 10

// errNoSummary is the error of a reflection without text.
var errNoSummary = errors.New("the model gave no summary")

// textState returns the state in which a model that speaks the text protocol is asked, and
// a note if that is not the state in the log.
func textState(mem *reducer.Memory) (state, note string) {
	state = mem.Control.TextState
	if slices.Contains(events.TextStates(), state) {
		return state, ""
	}
	return events.TextThinking, fmt.Sprintf("the stored state %q is unknown and was reset to thinking", contextedit.Clip(100, state))
}

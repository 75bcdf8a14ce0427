package planner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The codes of a refused call or reply.
const (
	codeBlacklisted  = "blacklisted"
	codeOutputSchema = "output_schema"
	codeCutOff       = "cut_off"
	codeTooManyCalls = "too_many_calls"
	// schemaRefusal begins what the model sees of an answer that its schema refuses.
	schemaRefusal = "the answer does not satisfy the output schema: "
)

// replyChecker checks a reply and turns it into events. It holds the parts of the memory
// that it needs. They do not change while the reply is wanted.
type replyChecker struct {
	run        string
	mode       events.Mode
	config     events.Config
	policy     *events.Approval
	schema     json.RawMessage
	tools      map[string]reducer.ToolInfo
	blacklist  []string
	known      []string
	retries    int
	confidence float64
	messageID  string
	// asked is who is asked. records says that all reasoning is recorded, and kept what the
	// log keeps of this reply's.
	asked   events.Asked
	records bool
	kept    *kept
	// textNote says what was wrong with the state that the model was asked in.
	textNote   string
	speaksText bool
	// onCut is what becomes of a reply that was truncated. emptyBefore is how many replies in
	// a row were empty until now.
	onCut       events.OnCut
	emptyBefore int
	// listed is how many calls are kept of those that are too many.
	listed int
	// internal are those of Moorebus' own tools that were offered. readMemory calls its
	// argument with the run's memory as it is now, under the run's lock. blob is
	// Planner.blob.
	internal   []llm.Tool
	readMemory func(func(*reducer.Memory))
	blob       func(events.Ref) ([]byte, error)

	validator tool.Validator
	approval  toolcall.Approval
	clock     func() time.Time
	// maxPayload is the largest payload that fits into the log, in bytes.
	maxPayload int
}

// recordsReasoning reports whether all of the model's reasoning is recorded.
func recordsReasoning(a *events.Agent) bool { return a.RecordReasoning == nil || *a.RecordReasoning }

func newReplyChecker(cfg Config, mem *reducer.Memory) *replyChecker {
	order := mem.Control.CallOrder
	return &replyChecker{
		run: mem.RunID, mode: mem.Mode, config: mem.Config, policy: mem.Control.Agent.Approval,
		schema: mem.Control.Agent.OutputSchema, tools: mem.Tools, blacklist: mem.Blacklist,
		// The list only grows at its end, so what is there now may be read.
		known: order[:len(order):len(order)], retries: mem.RetryCount, confidence: mem.ConfidenceScore,
		validator: cfg.Validator, approval: cfg.Approval, records: recordsReasoning(&mem.Control.Agent),
		clock: cfg.Store.Now, maxPayload: cfg.Store.MaxPayload(), textNote: textNote(mem), speaksText: mem.Control.Agent.LLM.Text,
		onCut: cmp.Or(mem.Control.Agent.OnCut, events.CutContinue), emptyBefore: mem.Control.SinceUser.Empty, internal: contextedit.Tools(mem),
	}
}

// check reads the entire reply; calls take precedence over text. It returns the events to
// append, all or none.
func (ch *replyChecker) check(reply llm.Response) []events.Payload {
	ch.listed = maxListed
	all := ch.payloads(reply)
	if r, calls := reply.(llm.ToolCalls); calls && len(r.Calls) > maxCalls && !ch.fit(all) {
		ch.listed = 1
		all = ch.payloads(reply)
	}
	if !ch.fit(all) {
		return one(ch.tooLarge(reply))
	}
	return all
}

// fit reports whether each event can be stored.
func (ch *replyChecker) fit(all []events.Payload) bool {
	return !slices.ContainsFunc(all, func(p events.Payload) bool { return events.PayloadSize(p) > ch.maxPayload })
}

func one(p events.Payload) []events.Payload { return []events.Payload{p} }

func (ch *replyChecker) payloads(reply llm.Response) []events.Payload {
	switch r := reply.(type) {
	case llm.ToolCalls:
		if len(r.Calls) == 0 {
			return one(ch.answer(r.Meta, r.Content))
		}
		return ch.calls(r)
	case llm.Structured:
		return one(ch.answer(r.Meta, r.Content))
	case llm.Text:
		return one(ch.answer(r.Meta, r.Content))
	case llm.Thought:
		return one(ch.thought(r))
	case llm.Invalid:
		return one(ch.malformed(r))
	}
	return one(ch.empty(llm.Meta{}))
}

// invalid is the event of a reply without calls that cannot be used. The model sees the
// reason.
func (ch *replyChecker) invalid(meta llm.Meta, content, code, reason string) events.Payload {
	return &events.ReplyInvalid{RefusedReply: events.RefusedReply{
		MessageID: ch.messageID, Content: content, Calls: []events.Call{}, Model: meta.Model, Usage: usage(meta.Usage), Facts: ch.facts(meta),
		Results: []events.Answer{{Observation: codes.ErrorPrefix + reason, Code: code}},
	}}
}

// toolUse is the event of a call that the provider could not read.
func (ch *replyChecker) toolUse(e *llm.Error) events.Payload {
	var meta llm.Meta
	if e.Reply != nil {
		meta = *e.Reply
	}
	meta.Finish = cmp.Or(meta.Finish, llm.FinishError)
	if e.Usage != nil {
		meta.Usage = *e.Usage
	}
	return ch.invalid(meta, "", string(llm.KindToolUse), clean(e.Message))
}

func (ch *replyChecker) tooLarge(reply llm.Response) events.Payload {
	meta := reply.About()
	meta.Reasoning = nil
	return ch.invalid(meta, clean(textOf(reply)), codes.TooLarge,
		fmt.Sprintf("the reply is too large: at most %d bytes fit; send less at once", ch.maxPayload))
}

// textOf returns the text of a reply, including the text of one with calls.
func textOf(reply llm.Response) string {
	switch r := reply.(type) {
	case llm.Text:
		return r.Content
	case llm.Structured:
		return r.Content
	case llm.ToolCalls:
		return r.Content
	case llm.Thought:
		return r.Content
	case llm.Invalid:
		return r.Content
	}
	return ""
}

func (ch *replyChecker) answer(meta llm.Meta, content string) events.Payload {
	content = strings.ToValidUTF8(content, "\uFFFD")
	if hasNothing(content) && len(ch.schema) == 0 && !meta.Cut() {
		content = standIn(meta)
	}
	reply := events.Reply{Content: content, Model: meta.Model, Usage: usage(meta.Usage), Facts: ch.facts(meta)}
	cut := meta.Cut()
	switch {
	case hasNothing(content):
		return ch.empty(meta)
	case cut && ch.onCut == events.CutContinue && ch.speaksText:
		return ch.invalid(meta, content, codeCutOff, "the reply was cut off before its end: give a shorter one")
	case cut && ch.onCut != events.CutAccept:
		return ch.cutOff(meta, content, false)
	case ch.mode == events.ModeChat:
		return &events.LLMMessageComplete{MessageID: ch.messageID, Reply: reply, Incomplete: cut}
	}
	if len(ch.schema) == 0 && !cut && utf8.RuneCountInString(content) < ch.config.MinAnswerLength {
		return &events.AnswerTooShort{MessageID: ch.messageID, Content: content, Model: meta.Model, Usage: usage(meta.Usage), Facts: ch.facts(meta)}
	}
	if len(ch.schema) > 0 {
		err := ch.validator.Validate(ch.schema, content)
		switch {
		case err != nil && cut:
			return ch.invalid(meta, content, codeCutOff, "the answer was cut off before it satisfied the output schema: give a shorter one")
		case err != nil:
			return ch.invalid(meta, content, codeOutputSchema, schemaRefusal+ofAnswer(clean(err.Error())))
		}
	}
	return &events.LLMFinalAnswer{MessageID: ch.messageID, Reply: reply, Incomplete: cut}
}

// calls answers the calls of Moorebus' own tools and checks the others. It does neither for
// a reply of low confidence.
func (ch *replyChecker) calls(r llm.ToolCalls) []events.Payload {
	r.Confidence = confidence(r.Meta)
	reply := events.ToolCallReply{
		Content: strings.ToValidUTF8(r.Content, "\uFFFD"), Confidence: r.Confidence, Model: r.Model, Usage: usage(r.Usage),
		Facts: ch.factsOf(r.Meta, true), MessageID: ch.messageID,
	}
	if r.Cut() && ch.onCut == events.CutFail {
		return one(ch.cutOff(r.Meta, r.Calls[len(r.Calls)-1].Arguments, true))
	}
	internal, external := ch.split(r)
	if len(internal) == 0 {
		return one(ch.external(reply, external))
	}
	var rest events.Payload
	if len(external) > 0 {
		rest = ch.external(reply, external)
		if _, doubted := rest.(*events.LowConfidence); doubted {
			return one(rest)
		}
	}
	return ch.contextEvents(internal, &reply, rest)
}

// contextEvents returns the events of a reply with calls of Moorebus' own tools: one for
// each of them, and last the event of the other calls, if there are any. The last event
// counts as the reply.
func (ch *replyChecker) contextEvents(internal []events.Call, reply *events.ToolCallReply, rest events.Payload) []events.Payload {
	all := make([]events.Payload, 0, len(internal)+1)
	var e *contextedit.Edits
	ch.readMemory(func(mem *reducer.Memory) { e = contextedit.New(mem, ch.validator, ch.blob, internal) })
	for _, call := range internal {
		all = append(all, e.Event(call))
	}
	if rest != nil {
		return append(all, rest)
	}
	last := events.ReplyOf(all[len(all)-1])
	last.Part = false
	last.Content, last.MessageID, last.Confidence = reply.Content, reply.MessageID, reply.Confidence
	last.Model, last.Usage, last.Chunks, last.Facts = reply.Model, reply.Usage, reply.Chunks, reply.Facts
	return all
}

// external checks every call in this order (SPEC A35): too many, known tool, blacklist,
// complete, arguments that satisfy the schema, confidence, approval policy.
func (ch *replyChecker) external(reply events.ToolCallReply, calls []askedCall) events.Payload {
	for i, asked := range calls {
		code, reason := asked.code, asked.reason
		if code == "" || code == codeCutOff {
			if first, why := ch.refuse(asked.Call); code == "" || first == codeBlacklisted {
				code, reason = first, why
			}
		}
		if code != "" {
			reply.Refused = append(reply.Refused, events.Refusal{Call: asked.Call, Observation: codes.ErrorPrefix + reason, Code: code, Place: i + 1})
		} else {
			reply.Calls = append(reply.Calls, asked.Call)
		}
	}
	if len(reply.Calls) == 0 {
		return refused(reply)
	}
	if reply.Confidence < ch.config.ConfidenceThreshold && ch.retries < ch.config.MaxRetries {
		return &events.LowConfidence{MessageID: reply.MessageID, Confidence: reply.Confidence, Model: reply.Model, Usage: reply.Usage, Facts: reply.Facts}
	}
	if len(reply.Calls) > 1 && !ch.config.ParallelTools {
		reply.Calls, reply.Queued = reply.Calls[:1], reply.Calls[1:]
	}
	return ch.accept(&reply)
}

// confidence returns a reply's confidence as a number from 0 to 1. It is 1 if none is given,
// or if it is not a number.
func confidence(m llm.Meta) float64 {
	if math.IsNaN(m.Confidence) || m.Confidence == 0 && !m.ZeroConfidence {
		return 1
	}
	return min(max(m.Confidence, 0), 1)
}

// refuse returns why a call may not run. The code is empty if it may.
func (ch *replyChecker) refuse(call events.Call) (code, reason string) {
	info, ok := ch.tools[call.Name]
	switch {
	case !ok:
		return tool.CodeNotFound, fmt.Sprintf("tool %q not found", call.Name)
	case slices.Contains(ch.blacklist, call.Name):
		return codeBlacklisted, fmt.Sprintf("tool %q is blacklisted: do without it", call.Name)
	}
	err := ch.validator.Validate(json.RawMessage(info.Schema), call.Arguments)
	if err == nil {
		err = approval.Distinct(json.RawMessage(info.Schema), call.Arguments)
	}
	if err != nil {
		return tool.CodeInvalidArguments, fmt.Sprintf("invalid arguments for %s: %s", call.Name, clean(err.Error()))
	}
	return "", ""
}

// refused is the event of a reply none of whose calls may run.
func refused(reply events.ToolCallReply) events.Payload {
	r := events.RefusedReply{MessageID: reply.MessageID, Content: reply.Content, Model: reply.Model, Usage: reply.Usage, Facts: reply.Facts}
	blacklisted := true
	for _, refusal := range reply.Refused {
		r.Calls = append(r.Calls, refusal.Call)
		r.Results = append(r.Results, events.Answer{ID: refusal.ID, Observation: refusal.Observation, Code: refusal.Code})
		blacklisted = blacklisted && refusal.Code == codeBlacklisted
	}
	if blacklisted {
		return &events.ToolBlacklisted{RefusedReply: r}
	}
	return &events.ReplyInvalid{RefusedReply: r}
}

// accept lets the calls run. If the policy requires approval of one of them, the entire reply
// waits.
func (ch *replyChecker) accept(reply *events.ToolCallReply) events.Payload {
	requests := ch.requests(reply.Calls)
	switch {
	case len(requests) > 0:
		return &events.HumanApprovalRequired{ToolCallReply: *reply, Requests: requests, Deadline: ch.policy.Deadline(ch.clock())}
	case len(reply.Calls) > 1:
		return &events.LLMParallelToolCalls{ToolCallReply: *reply}
	}
	return &events.LLMToolCall{ToolCallReply: *reply}
}

func (ch *replyChecker) requests(calls []events.Call) []events.Request {
	var requests []events.Request
	for _, call := range calls {
		info := ch.tools[call.Name]
		reason, required, err := ch.approval.Required(ch.policy, call, info, ch.run)
		if err != nil {
			reason, required = "the approval policy cannot be evaluated: "+clean(err.Error()), true
		}
		if required {
			requests = append(requests, events.Request{
				CallID: call.ID, Tool: call.Name, Arguments: call.Arguments, Risk: risk(info.Risk), Reason: reason, Asks: info.Asks,
			})
		}
	}
	return requests
}

func risk(r string) string {
	if r == "" {
		return string(tool.Low)
	}
	return r
}

// facts returns what the log keeps of a reply without calls.
func (ch *replyChecker) facts(m llm.Meta) events.Facts { return ch.factsOf(m, false) }

func (ch *replyChecker) factsOf(m llm.Meta, calls bool) events.Facts {
	f := factsOf(m, ch.asked, calls)
	if ch.kept != nil && len(f.Reasoning) > 0 {
		f.Reasoning, f.ReasoningRef = ch.kept.parts, ch.kept.ref
	}
	return f
}

// usage returns a reply's usage as it is logged. A cost that is not a number is omitted,
// since it cannot be written as JSON.
func usage(u llm.Usage) events.Usage {
	if c := u.CostUSD; c != nil && (!(*c >= 0) || math.IsInf(*c, 1)) {
		u.CostUSD = nil
	}
	return events.Usage{Input: u.Input, Output: u.Output, Cached: u.Cached, Total: u.Total, CostUSD: u.CostUSD}
}

// ofAnswer rewrites a validator's message about arguments for an answer.
func ofAnswer(problem string) string {
	return strings.NewReplacer("the arguments do not match the tool's schema", "the answer does not match it", "the arguments are", "the answer is",
		"the arguments cannot", "the answer cannot").Replace(problem)
}

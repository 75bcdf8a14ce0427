package events

import (
	"slices"
	"strconv"
)

// roomFor guesses how long an event's data gets.
func roomFor(e *Event) int {
	if e.raw != nil {
		return len(e.raw)
	}
	const frame = 128
	switch p := e.Data.(type) {
	case *LLMToolCall:
		return p.room() + frame
	case *LLMParallelToolCalls:
		return p.room() + frame
	case *ToolSuccess:
		return p.Outcome.room() + frame
	case *ToolFailure:
		return p.Outcome.room() + frame
	case *ToolCallResult:
		return p.room() + frame
	case *LLMFinalAnswer:
		return len(p.Content) + len(p.Content)/8 + frame
	case *LLMMessageComplete:
		return len(p.Content) + len(p.Content)/8 + frame
	}
	return frame
}

func (r *ToolCallReply) room() int {
	n := len(r.Content) + len(r.Content)/8 + len(r.Reasoning)
	for _, c := range r.Calls {
		n += 64 + len(c.Arguments) + len(c.Arguments)/4
	}
	return n
}

func (o *ToolOutcome) room() int {
	if o == nil {
		return 0
	}
	return len(o.Observation) + len(o.Observation)/8
}

// PayloadSize is the length of a payload as it stands in an event's body, in bytes;
// 0 for one that has no JSON, which [Codec.Encode] refuses.
func PayloadSize(p Payload) int {
	const frame = 128
	data, err := appendPayload(make([]byte, 0, roomFor(&Event{Data: p})+frame), p)
	if err != nil {
		return 0
	}
	return len(data)
}

// appendPayload appends a payload as marshalPayload writes it, the types that runs
// consist of mostly without package json. Its own errors say that the payload has
// no JSON; marshalPayload says why.
func appendPayload(b []byte, p Payload) ([]byte, error) {
	switch p := p.(type) {
	case *LLMToolCall:
		return appendToolCallReply(b, &p.ToolCallReply)
	case *LLMParallelToolCalls:
		return appendToolCallReply(b, &p.ToolCallReply)
	case *ToolSuccess:
		return appendOutcomeOrNone(b, p.Outcome)
	case *ToolFailure:
		return appendOutcomeOrNone(b, p.Outcome)
	case *ToolCallResult:
		return appendOutcome(b, &p.ToolOutcome)
	case *ToolCallDispatched:
		return append(appendString(append(b, `{"call_id":`...), p.CallID), '}'), nil
	case *ToolCallStarted:
		return append(appendString(append(b, `{"call_id":`...), p.CallID), '}'), nil
	case *LLMFinalAnswer:
		return appendAnswer(b, p.MessageID, &p.Reply)
	case *LLMMessageComplete:
		return appendAnswer(b, p.MessageID, &p.Reply)
	case *LLMThought:
		return appendThought(b, p)
	case *UserMessage:
		b = appendString(append(b, `{"message_id":`...), p.MessageID)
		b = appendString(append(b, `,"content":`...), p.Content)
		return append(b, '}'), nil
	case *Continue, *NeedsReflection, *NeedsPaging:
		return append(b, "{}"...), nil
	}
	data, err := marshalPayload(p)
	return append(slices.Grow(b, len(data)+1), data...), err // and the brace that ends the body
}

func appendToolCallReply(b []byte, r *ToolCallReply) ([]byte, error) {
	b = appendString(append(b, `{"content":`...), r.Content)
	b = appendOptional(b, `,"message_id":`, r.MessageID)
	b = appendCalls(append(b, `,"calls":`...), r.Calls)
	if len(r.Refused) > 0 {
		b = appendRefused(append(b, `,"refused":`...), r.Refused)
	}
	if len(r.Queued) > 0 {
		b = appendCalls(append(b, `,"queued":`...), r.Queued)
	}
	b, err := appendFloat(append(b, `,"confidence":`...), r.Confidence)
	if err != nil {
		return b, err
	}
	b = appendString(append(b, `,"model":`...), r.Model)
	if b, err = appendUsage(append(b, `,"usage":`...), &r.Usage); err != nil {
		return b, err
	}
	if len(r.Reasoning) > 0 {
		if b, err = appendRaw(append(b, `,"reasoning":`...), r.Reasoning); err != nil {
			return b, err
		}
	}
	return append(appendChunks(b, r.Chunks), '}'), nil
}

// appendCall appends a call's members, without the braces.
func appendCall(b []byte, c *Call) []byte {
	b = appendString(append(b, `"id":`...), c.ID)
	b = appendString(append(b, `,"name":`...), c.Name)
	b = appendString(append(b, `,"arguments":`...), c.Arguments)
	return appendOptional(b, `,"provider_id":`, c.ProviderID)
}

func appendCalls(b []byte, calls []Call) []byte {
	if calls == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i := range calls {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendCall(append(b, '{'), &calls[i]), '}')
	}
	return append(b, ']')
}

// appendRefused appends the refused calls, of which there is one at least.
func appendRefused(b []byte, refused []Refusal) []byte {
	for i := range refused {
		if i == 0 {
			b = append(b, '[')
		} else {
			b = append(b, ',')
		}
		r := &refused[i]
		b = appendCall(append(b, '{'), &r.Call)
		b = appendString(append(b, `,"observation":`...), r.Observation)
		b = appendString(append(b, `,"code":`...), r.Code)
		if r.Place != 0 {
			b = strconv.AppendInt(append(b, `,"place":`...), int64(r.Place), 10)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendUsage(b []byte, u *Usage) (out []byte, err error) {
	b = strconv.AppendInt(append(b, `{"input":`...), int64(u.Input), 10)
	b = strconv.AppendInt(append(b, `,"output":`...), int64(u.Output), 10)
	b = strconv.AppendInt(append(b, `,"cached":`...), int64(u.Cached), 10)
	b = strconv.AppendInt(append(b, `,"total":`...), int64(u.Total), 10)
	if u.CostUSD != nil {
		if b, err = appendFloat(append(b, `,"cost_usd":`...), *u.CostUSD); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

// appendChunks appends the member chunks, if there are any.
func appendChunks(b []byte, chunks Chunks) []byte {
	for i, c := range chunks {
		if i == 0 {
			b = append(b, `,"chunks":[`...)
		} else {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, '['), c[0], 10)
		b = strconv.AppendInt(append(b, ','), c[1], 10)
		b = append(b, ']')
	}
	if len(chunks) > 0 {
		b = append(b, ']')
	}
	return b
}

// appendReply appends a reply's members, without the braces.
func appendReply(b []byte, r *Reply) ([]byte, error) {
	b = appendString(append(b, `"content":`...), r.Content)
	b = appendString(append(b, `,"model":`...), r.Model)
	b, err := appendUsage(append(b, `,"usage":`...), &r.Usage)
	return appendChunks(b, r.Chunks), err
}

func appendAnswer(b []byte, messageID string, r *Reply) ([]byte, error) {
	b = appendString(append(b, `{"message_id":`...), messageID)
	b, err := appendReply(append(b, ','), r)
	return append(b, '}'), err
}

func appendThought(b []byte, p *LLMThought) ([]byte, error) {
	b, err := appendReply(append(b, '{'), &p.Reply)
	b = appendOptional(b, `,"next_state":`, p.NextState)
	return append(appendOptional(b, `,"note":`, p.Note), '}'), err
}

func appendOutcomeOrNone(b []byte, o *ToolOutcome) ([]byte, error) {
	if o == nil {
		return append(b, "{}"...), nil
	}
	return appendOutcome(b, o)
}

func appendOutcome(b []byte, o *ToolOutcome) (out []byte, err error) {
	b = appendString(append(b, `{"call_id":`...), o.CallID)
	b = strconv.AppendBool(append(b, `,"success":`...), o.Success)
	b = appendString(append(b, `,"observation":`...), o.Observation)
	b = appendString(append(b, `,"code":`...), o.Code)
	b = strconv.AppendInt(append(b, `,"latency_ms":`...), o.LatencyMS, 10)
	if o.Ref != nil {
		b = appendRef(append(b, `,"ref":`...), o.Ref)
	}
	for i := range o.Attachments {
		if i == 0 {
			b = append(b, `,"attachments":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendRef(b, &o.Attachments[i])
	}
	if len(o.Attachments) > 0 {
		b = append(b, ']')
	}
	b = appendOptional(b, `,"run":`, o.Run)
	if o.Usage != nil {
		if b, err = appendUsage(append(b, `,"usage":`...), o.Usage); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

func appendRef(b []byte, r *Ref) []byte {
	b = appendString(append(b, `{"bucket":`...), r.Bucket)
	b = appendString(append(b, `,"key":`...), r.Key)
	b = strconv.AppendInt(append(b, `,"size":`...), int64(r.Size), 10)
	b = appendString(append(b, `,"sha256":`...), r.SHA256)
	return append(b, '}')
}

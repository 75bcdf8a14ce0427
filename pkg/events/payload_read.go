package events

// The least that stands around the strings of a payload; what is longer than that
// is mostly strings.
const (
	toolCallFrame = len(`{"content":"","calls":[{"id":"","name":"","arguments":""}],"confidence":1,"model":"","usage":` + usageFrame + `}`)
	answerFrame   = len(`{"message_id":"","content":"","model":"","usage":` + usageFrame + `}`)
	outcomeFrame  = len(`{"call_id":"","success":true,"observation":"","code":"","latency_ms":1}`)
	startWords    = 1 << 10
	messageFrame  = len(`{"message_id":"","content":""}`)
	usageFrame    = `{"input":1,"output":1,"cached":0,"total":1}`
)

// wordsOf returns how much room the strings of a type's data need, given its size.
// A Start is mostly schemas and scripts, which are no strings; and the types that
// have no reader need none.
func wordsOf(t Type, size int) int {
	switch t {
	case TypeLLMToolCall, TypeLLMParallelToolCalls:
		size -= toolCallFrame
	case TypeLLMFinalAnswer, TypeLLMMessageComplete, TypeLLMThought:
		size -= answerFrame
	case TypeToolSuccess, TypeToolFailure, TypeToolCallResult:
		size -= outcomeFrame
	case TypeUserMessage:
		size -= messageFrame
	case TypeStart:
		size = min(size, startWords)
	default:
		size = 0
	}
	return max(0, size)
}

// readPayload reads the data of the types that runs consist of mostly, in the form
// in which appendPayload writes it; nil for every other type. Whether the data was
// good is the scanner's to say.
func readPayload(s *scanner, t Type) Payload {
	switch t {
	case TypeLLMToolCall:
		p := new(LLMToolCall)
		s.toolCallReply(&p.ToolCallReply)
		return p
	case TypeLLMParallelToolCalls:
		p := new(LLMParallelToolCalls)
		s.toolCallReply(&p.ToolCallReply)
		return p
	case TypeToolSuccess:
		return &ToolSuccess{Outcome: s.outcomeOrNone()}
	case TypeToolFailure:
		return &ToolFailure{Outcome: s.outcomeOrNone()}
	case TypeToolCallResult:
		p := new(ToolCallResult)
		s.outcome(&p.ToolOutcome)
		return p
	case TypeToolCallDispatched:
		return &ToolCallDispatched{CallID: s.callID()}
	case TypeToolCallStarted:
		return &ToolCallStarted{CallID: s.callID()}
	case TypeLLMFinalAnswer:
		p := new(LLMFinalAnswer)
		s.answer(&p.MessageID, &p.Reply)
		return p
	case TypeLLMMessageComplete:
		p := new(LLMMessageComplete)
		s.answer(&p.MessageID, &p.Reply)
		return p
	case TypeLLMThought:
		return s.thought()
	case TypeUserMessage:
		return s.userMessage()
	case TypeStart:
		return s.start()
	case TypeContinue:
		s.want("{}")
		return new(Continue)
	case TypeNeedsReflection:
		s.want("{}")
		return new(NeedsReflection)
	case TypeNeedsPaging:
		s.want("{}")
		return new(NeedsPaging)
	}
	return nil
}

func (s *scanner) toolCallReply(r *ToolCallReply) {
	s.want(`{"content":`)
	r.Content = s.string()
	if s.has(`,"message_id":`) {
		r.MessageID = s.string()
	}
	s.want(`,"calls":`)
	r.Calls = s.calls()
	if s.has(`,"refused":`) {
		r.Refused = s.refused()
	}
	if s.has(`,"queued":`) {
		r.Queued = s.calls()
	}
	s.want(`,"confidence":`)
	r.Confidence = s.float()
	s.want(`,"model":`)
	r.Model = s.string()
	s.want(`,"usage":`)
	s.usage(&r.Usage)
	if s.has(`,"reasoning":`) {
		r.Reasoning = s.raw()
	}
	if s.has(`,"chunks":`) {
		r.Chunks = s.chunks()
	}
	s.want("}")
}

// call reads a call's members, without the braces.
func (s *scanner) call(c *Call) {
	s.want(`"id":`)
	c.ID = s.string()
	s.want(`,"name":`)
	c.Name = s.string()
	s.want(`,"arguments":`)
	c.Arguments = s.string()
	if s.has(`,"provider_id":`) {
		c.ProviderID = s.string()
	}
}

func (s *scanner) calls() []Call {
	var calls []Call
	n := s.list(func() {
		var c Call
		s.want("{")
		s.call(&c)
		s.want("}")
		calls = append(calls, c)
	})
	if n == 0 {
		return []Call{}
	}
	return calls
}

func (s *scanner) refused() []Refusal {
	var refused []Refusal
	n := s.list(func() {
		var r Refusal
		s.want("{")
		s.call(&r.Call)
		s.want(`,"observation":`)
		r.Observation = s.string()
		s.want(`,"code":`)
		r.Code = s.string()
		if s.has(`,"place":`) {
			r.Place = s.small()
		}
		s.want("}")
		refused = append(refused, r)
	})
	if n == 0 {
		return []Refusal{}
	}
	return refused
}

func (s *scanner) usage(u *Usage) {
	s.want(`{"input":`)
	u.Input = s.small()
	s.want(`,"output":`)
	u.Output = s.small()
	s.want(`,"cached":`)
	u.Cached = s.small()
	s.want(`,"total":`)
	u.Total = s.small()
	if s.has(`,"cost_usd":`) {
		cost := s.float()
		u.CostUSD = &cost
	}
	s.want("}")
}

func (s *scanner) chunks() Chunks {
	var chunks Chunks
	n := s.list(func() {
		var c [2]int64
		s.want("[")
		c[0] = s.integer()
		s.want(",")
		c[1] = s.integer()
		s.want("]")
		chunks = append(chunks, c)
	})
	if n == 0 {
		return Chunks{}
	}
	return chunks
}

// reply reads a reply's members, without the braces.
func (s *scanner) reply(r *Reply) {
	s.want(`"content":`)
	r.Content = s.string()
	s.want(`,"model":`)
	r.Model = s.string()
	s.want(`,"usage":`)
	s.usage(&r.Usage)
	if s.has(`,"chunks":`) {
		r.Chunks = s.chunks()
	}
}

func (s *scanner) answer(messageID *string, r *Reply) {
	s.want(`{"message_id":`)
	*messageID = s.string()
	s.want(",")
	s.reply(r)
	s.want("}")
}

func (s *scanner) thought() *LLMThought {
	p := new(LLMThought)
	s.want("{")
	s.reply(&p.Reply)
	if s.has(`,"next_state":`) {
		p.NextState = s.string()
	}
	if s.has(`,"note":`) {
		p.Note = s.string()
	}
	s.want("}")
	return p
}

func (s *scanner) userMessage() *UserMessage {
	p := new(UserMessage)
	s.want(`{"message_id":`)
	p.MessageID = s.string()
	s.want(`,"content":`)
	p.Content = s.string()
	s.want("}")
	return p
}

func (s *scanner) callID() string {
	s.want(`{"call_id":`)
	id := s.string()
	s.want("}")
	return id
}

// outcomeOrNone reads the end of a single call, or that of a batch, which has no
// outcome.
func (s *scanner) outcomeOrNone() *ToolOutcome {
	if s.has("{}") {
		return nil
	}
	o := new(ToolOutcome)
	if s.outcome(o); o.CallID == "" && o.Code == "" {
		return nil
	}
	return o
}

func (s *scanner) outcome(o *ToolOutcome) {
	s.want(`{"call_id":`)
	o.CallID = s.string()
	s.want(`,"success":`)
	o.Success = s.bool()
	s.want(`,"observation":`)
	o.Observation = s.string()
	s.want(`,"code":`)
	o.Code = s.string()
	s.want(`,"latency_ms":`)
	o.LatencyMS = s.integer()
	if s.has(`,"ref":`) {
		o.Ref = new(Ref)
		s.ref(o.Ref)
	}
	if s.has(`,"attachments":`) {
		o.Attachments = s.refs()
	}
	if s.has(`,"run":`) {
		o.Run = s.string()
	}
	if s.has(`,"usage":`) {
		o.Usage = new(Usage)
		s.usage(o.Usage)
	}
	s.want("}")
}

func (s *scanner) ref(r *Ref) {
	s.want(`{"bucket":`)
	r.Bucket = s.string()
	s.want(`,"key":`)
	r.Key = s.string()
	s.want(`,"size":`)
	r.Size = s.small()
	s.want(`,"sha256":`)
	r.SHA256 = s.string()
	s.want("}")
}

func (s *scanner) refs() []Ref {
	var refs []Ref
	n := s.list(func() {
		var r Ref
		s.ref(&r)
		refs = append(refs, r)
	})
	if n == 0 {
		return []Ref{}
	}
	return refs
}

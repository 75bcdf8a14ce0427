package events

// Billed returns where a payload holds the usage of a model's reply or of an
// attempt at one, for whoever settles what it cost; nil where it holds none.
func Billed(p Payload) *Usage {
	switch p := p.(type) {
	case *LLMToolCall:
		return &p.Usage
	case *LLMParallelToolCalls:
		return &p.Usage
	case *HumanApprovalRequired:
		return &p.Usage
	case *LLMFinalAnswer:
		return &p.Usage
	case *LLMMessageComplete:
		return &p.Usage
	case *LLMThought:
		return &p.Usage
	case *LowConfidence:
		return &p.Usage
	case *AnswerTooShort:
		return &p.Usage
	case *ToolBlacklisted:
		return &p.Usage
	case *ReplyInvalid:
		return &p.Usage
	case *ReflectDone:
		return p.Usage
	case *LLMAttemptFailed:
		return p.Usage
	case *FatalError:
		return p.Usage
	}
	if r := ReplyOf(p); r != nil {
		return &r.Usage
	}
	return nil
}

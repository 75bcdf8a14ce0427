package events

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/codec"
)

// builtin maps every built-in type to a maker of its empty payload. It is the
// closed set: a type that is not here and was not registered is unknown.
var builtin = map[Type]func() Payload{
	TypeStart:                   func() Payload { return new(Start) },
	TypeForked:                  func() Payload { return new(Forked) },
	TypeLLMToolCall:             func() Payload { return new(LLMToolCall) },
	TypeLLMParallelToolCalls:    func() Payload { return new(LLMParallelToolCalls) },
	TypeLLMFinalAnswer:          func() Payload { return new(LLMFinalAnswer) },
	TypeLLMMessageComplete:      func() Payload { return new(LLMMessageComplete) },
	TypeLLMThought:              func() Payload { return new(LLMThought) },
	TypeMaxSteps:                func() Payload { return new(MaxSteps) },
	TypeLowConfidence:           func() Payload { return new(LowConfidence) },
	TypeAnswerTooShort:          func() Payload { return new(AnswerTooShort) },
	TypeToolBlacklisted:         func() Payload { return new(ToolBlacklisted) },
	TypeReplyInvalid:            func() Payload { return new(ReplyInvalid) },
	TypeHumanApprovalRequired:   func() Payload { return new(HumanApprovalRequired) },
	TypeHumanApproved:           func() Payload { return new(HumanApproved) },
	TypeHumanModified:           func() Payload { return new(HumanModified) },
	TypeHumanApprovedParallel:   func() Payload { return new(HumanApprovedParallel) },
	TypeHumanRejected:           func() Payload { return new(HumanRejected) },
	TypeApprovalExpired:         func() Payload { return new(ApprovalExpired) },
	TypeClosed:                  func() Payload { return new(Closed) },
	TypeToolSuccess:             func() Payload { return new(ToolSuccess) },
	TypeToolFailure:             func() Payload { return new(ToolFailure) },
	TypeContinue:                func() Payload { return new(Continue) },
	TypeNeedsReflection:         func() Payload { return new(NeedsReflection) },
	TypeNeedsPaging:             func() Payload { return new(NeedsPaging) },
	TypeReflectDone:             func() Payload { return new(ReflectDone) },
	TypePageDone:                func() Payload { return new(PageDone) },
	TypeFatalError:              func() Payload { return new(FatalError) },
	TypeBudgetExceeded:          func() Payload { return new(BudgetExceeded) },
	TypeCancelled:               func() Payload { return new(CancelledRun) },
	TypeUserMessage:             func() Payload { return new(UserMessage) },
	TypeLLMAttemptFailed:        func() Payload { return new(LLMAttemptFailed) },
	TypeToolCallDispatched:      func() Payload { return new(ToolCallDispatched) },
	TypeToolCallStarted:         func() Payload { return new(ToolCallStarted) },
	TypeToolCallResult:          func() Payload { return new(ToolCallResult) },
	TypeHumanDecision:           func() Payload { return new(HumanDecision) },
	TypeContextWindowExpanded:   func() Payload { return new(ContextWindowExpanded) },
	TypeToolCallsAddedToContext: func() Payload { return new(ToolCallsAddedToContext) },
	TypeWorkingMemoryAdded:      func() Payload { return new(WorkingMemoryAdded) },
	TypeWorkingMemoryRemoved:    func() Payload { return new(WorkingMemoryRemoved) },
	TypeStorageSaved:            func() Payload { return new(StorageSaved) },
	TypeStorageLoaded:           func() Payload { return new(StorageLoaded) },
	TypePaused:                  func() Payload { return new(Paused) },
	TypeResumed:                 func() Payload { return new(Resumed) },
	TypeBudgetRaised:            func() Payload { return new(BudgetRaised) },
	TypeHandedOff:               func() Payload { return new(HandedOff) },
}

// Types lists every built-in event type in no particular order.
func Types() []Type {
	types := make([]Type, 0, len(builtin))
	for t := range builtin {
		types = append(types, t)
	}
	return types
}

// Type returns [TypeStart].
func (*Start) Type() Type { return TypeStart }

// Type returns [TypeForked].
func (*Forked) Type() Type { return TypeForked }

// Type returns [TypeLLMToolCall].
func (*LLMToolCall) Type() Type { return TypeLLMToolCall }

// Type returns [TypeLLMParallelToolCalls].
func (*LLMParallelToolCalls) Type() Type { return TypeLLMParallelToolCalls }

// Type returns [TypeLLMFinalAnswer].
func (*LLMFinalAnswer) Type() Type { return TypeLLMFinalAnswer }

// Type returns [TypeLLMMessageComplete].
func (*LLMMessageComplete) Type() Type { return TypeLLMMessageComplete }

// Type returns [TypeLLMThought].
func (*LLMThought) Type() Type { return TypeLLMThought }

// Type returns [TypeMaxSteps].
func (*MaxSteps) Type() Type { return TypeMaxSteps }

// Type returns [TypeLowConfidence].
func (*LowConfidence) Type() Type { return TypeLowConfidence }

// Type returns [TypeAnswerTooShort].
func (*AnswerTooShort) Type() Type { return TypeAnswerTooShort }

// Type returns [TypeToolBlacklisted].
func (*ToolBlacklisted) Type() Type { return TypeToolBlacklisted }

// Type returns [TypeReplyInvalid].
func (*ReplyInvalid) Type() Type { return TypeReplyInvalid }

// Type returns [TypeHumanApprovalRequired].
func (*HumanApprovalRequired) Type() Type { return TypeHumanApprovalRequired }

// Type returns [TypeHumanApproved].
func (*HumanApproved) Type() Type { return TypeHumanApproved }

// Type returns [TypeHumanModified].
func (*HumanModified) Type() Type { return TypeHumanModified }

// Type returns [TypeHumanApprovedParallel].
func (*HumanApprovedParallel) Type() Type { return TypeHumanApprovedParallel }

// Type returns [TypeHumanRejected].
func (*HumanRejected) Type() Type { return TypeHumanRejected }

// Type returns [TypeApprovalExpired].
func (*ApprovalExpired) Type() Type { return TypeApprovalExpired }

// Type returns [TypeClosed].
func (*Closed) Type() Type { return TypeClosed }

// Type returns [TypeToolSuccess].
func (*ToolSuccess) Type() Type { return TypeToolSuccess }

// Type returns [TypeToolFailure].
func (*ToolFailure) Type() Type { return TypeToolFailure }

// Type returns [TypeContinue].
func (*Continue) Type() Type { return TypeContinue }

// Type returns [TypeNeedsReflection].
func (*NeedsReflection) Type() Type { return TypeNeedsReflection }

// Type returns [TypeNeedsPaging].
func (*NeedsPaging) Type() Type { return TypeNeedsPaging }

// Type returns [TypeReflectDone].
func (*ReflectDone) Type() Type { return TypeReflectDone }

// Type returns [TypePageDone].
func (*PageDone) Type() Type { return TypePageDone }

// Type returns [TypeFatalError].
func (*FatalError) Type() Type { return TypeFatalError }

// Type returns [TypeBudgetExceeded].
func (*BudgetExceeded) Type() Type { return TypeBudgetExceeded }

// Type returns [TypeCancelled].
func (*CancelledRun) Type() Type { return TypeCancelled }

// Type returns [TypeUserMessage].
func (*UserMessage) Type() Type { return TypeUserMessage }

// Type returns [TypeLLMAttemptFailed].
func (*LLMAttemptFailed) Type() Type { return TypeLLMAttemptFailed }

// Type returns [TypeToolCallDispatched].
func (*ToolCallDispatched) Type() Type { return TypeToolCallDispatched }

// Type returns [TypeToolCallStarted].
func (*ToolCallStarted) Type() Type { return TypeToolCallStarted }

// Type returns [TypeToolCallResult].
func (*ToolCallResult) Type() Type { return TypeToolCallResult }

// Type returns [TypeHumanDecision].
func (*HumanDecision) Type() Type { return TypeHumanDecision }

// Type returns [TypeContextWindowExpanded].
func (*ContextWindowExpanded) Type() Type { return TypeContextWindowExpanded }

// Type returns [TypeToolCallsAddedToContext].
func (*ToolCallsAddedToContext) Type() Type { return TypeToolCallsAddedToContext }

// Type returns [TypeWorkingMemoryAdded].
func (*WorkingMemoryAdded) Type() Type { return TypeWorkingMemoryAdded }

// Type returns [TypeWorkingMemoryRemoved].
func (*WorkingMemoryRemoved) Type() Type { return TypeWorkingMemoryRemoved }

// Type returns [TypeStorageSaved].
func (*StorageSaved) Type() Type { return TypeStorageSaved }

// Type returns [TypeStorageLoaded].
func (*StorageLoaded) Type() Type { return TypeStorageLoaded }

// Type returns [TypePaused].
func (*Paused) Type() Type { return TypePaused }

// Type returns [TypeResumed].
func (*Resumed) Type() Type { return TypeResumed }

// Type returns [TypeBudgetRaised].
func (*BudgetRaised) Type() Type { return TypeBudgetRaised }

// Type returns the registered name.
func (c *Custom) Type() Type { return c.Name }

func (*Start) isPayload()                   {}
func (*Forked) isPayload()                  {}
func (*LLMToolCall) isPayload()             {}
func (*LLMParallelToolCalls) isPayload()    {}
func (*LLMFinalAnswer) isPayload()          {}
func (*LLMMessageComplete) isPayload()      {}
func (*LLMThought) isPayload()              {}
func (*MaxSteps) isPayload()                {}
func (*LowConfidence) isPayload()           {}
func (*AnswerTooShort) isPayload()          {}
func (*ToolBlacklisted) isPayload()         {}
func (*ReplyInvalid) isPayload()            {}
func (*HumanApprovalRequired) isPayload()   {}
func (*HumanApproved) isPayload()           {}
func (*HumanModified) isPayload()           {}
func (*HumanApprovedParallel) isPayload()   {}
func (*HumanRejected) isPayload()           {}
func (*ApprovalExpired) isPayload()         {}
func (*Closed) isPayload()                  {}
func (*ToolSuccess) isPayload()             {}
func (*ToolFailure) isPayload()             {}
func (*Continue) isPayload()                {}
func (*NeedsReflection) isPayload()         {}
func (*NeedsPaging) isPayload()             {}
func (*ReflectDone) isPayload()             {}
func (*PageDone) isPayload()                {}
func (*FatalError) isPayload()              {}
func (*BudgetExceeded) isPayload()          {}
func (*CancelledRun) isPayload()            {}
func (*UserMessage) isPayload()             {}
func (*LLMAttemptFailed) isPayload()        {}
func (*ToolCallDispatched) isPayload()      {}
func (*ToolCallStarted) isPayload()         {}
func (*ToolCallResult) isPayload()          {}
func (*HumanDecision) isPayload()           {}
func (*ContextWindowExpanded) isPayload()   {}
func (*ToolCallsAddedToContext) isPayload() {}
func (*WorkingMemoryAdded) isPayload()      {}
func (*WorkingMemoryRemoved) isPayload()    {}
func (*StorageSaved) isPayload()            {}
func (*StorageLoaded) isPayload()           {}
func (*Paused) isPayload()                  {}
func (*Resumed) isPayload()                 {}
func (*BudgetRaised) isPayload()            {}
func (*Custom) isPayload()                  {}

// MarshalJSON writes the registered event's data as it is.
func (c *Custom) MarshalJSON() ([]byte, error) { return rawOrEmpty(c.Data), nil }

// UnmarshalJSON keeps the data as it is.
func (c *Custom) UnmarshalJSON(data []byte) error {
	c.Data = append(json.RawMessage(nil), data...)
	return nil
}

// MarshalJSON writes the single call's outcome, or `{}` after a batch.
func (p *ToolSuccess) MarshalJSON() ([]byte, error) { return appendOutcome(nil, p.Outcome) }

// UnmarshalJSON reads either form.
func (p *ToolSuccess) UnmarshalJSON(data []byte) (err error) {
	p.Outcome, err = unmarshalOutcome(data)
	return err
}

// MarshalJSON writes the single call's outcome, or `{}` after a batch.
func (p *ToolFailure) MarshalJSON() ([]byte, error) { return appendOutcome(nil, p.Outcome) }

// UnmarshalJSON reads either form.
func (p *ToolFailure) UnmarshalJSON(data []byte) (err error) {
	p.Outcome, err = unmarshalOutcome(data)
	return err
}

// appendPayload and unmarshalPayload spare the payloads that have a form of their
// own the second pass that package json makes over it.

func appendPayload(b []byte, p Payload) ([]byte, error) {
	switch p := p.(type) {
	case *ToolSuccess:
		return appendOutcome(b, p.Outcome)
	case *ToolFailure:
		return appendOutcome(b, p.Outcome)
	}
	return codec.Append(b, p)
}

func unmarshalPayload(data []byte, p Payload) error {
	switch p := p.(type) {
	case *ToolSuccess:
		return p.UnmarshalJSON(data)
	case *ToolFailure:
		return p.UnmarshalJSON(data)
	case *Custom:
		return json.Unmarshal(data, p)
	}
	return codec.Unmarshal(data, p)
}

// PayloadSize is the length of a payload as it stands in an event's body, in bytes;
// 0 for one that has no JSON, which [Codec.Encode] refuses.
func PayloadSize(p Payload) int {
	data, err := appendPayload(nil, p)
	if err != nil {
		return 0
	}
	return len(data)
}

func appendOutcome(b []byte, o *ToolOutcome) ([]byte, error) {
	if o == nil {
		return append(b, "{}"...), nil
	}
	return codec.Append(b, o)
}

func unmarshalOutcome(data []byte) (*ToolOutcome, error) {
	var o ToolOutcome
	if err := codec.Unmarshal(data, &o); err != nil {
		return nil, err
	}
	if o.CallID == "" && o.Code == "" {
		return nil, nil
	}
	return &o, nil
}

func rawOrEmpty(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	return raw
}

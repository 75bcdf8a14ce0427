package events

// Type is the type of an event as it stands on the wire.
type Type string

// The events that take a run from one state to another.
const (
	TypeStart                 Type = "Start"
	TypeForked                Type = "Forked"
	TypeLLMToolCall           Type = "LlmToolCall"
	TypeLLMParallelToolCalls  Type = "LlmParallelToolCalls"
	TypeLLMFinalAnswer        Type = "LlmFinalAnswer"
	TypeLLMMessageComplete    Type = "LlmMessageComplete"
	TypeLLMThought            Type = "LlmThought"
	TypeMaxSteps              Type = "MaxSteps"
	TypeLowConfidence         Type = "LowConfidence"
	TypeAnswerTooShort        Type = "AnswerTooShort"
	TypeToolBlacklisted       Type = "ToolBlacklisted"
	TypeReplyInvalid          Type = "ReplyInvalid"
	TypeHumanApprovalRequired Type = "HumanApprovalRequired"
	TypeHumanApproved         Type = "HumanApproved"
	TypeHumanModified         Type = "HumanModified"
	TypeHumanApprovedParallel Type = "HumanApprovedParallel"
	TypeHumanRejected         Type = "HumanRejected"
	TypeApprovalExpired       Type = "ApprovalExpired"
	TypeClosed                Type = "Closed"
	TypeToolSuccess           Type = "ToolSuccess"
	TypeToolFailure           Type = "ToolFailure"
	TypeContinue              Type = "Continue"
	TypeNeedsReflection       Type = "NeedsReflection"
	TypeNeedsPaging           Type = "NeedsPaging"
	TypeReflectDone           Type = "ReflectDone"
	TypePageDone              Type = "PageDone"
	TypeFatalError            Type = "FatalError"
	TypeBudgetExceeded        Type = "BudgetExceeded"
	TypeCancelled             Type = "Cancelled"
)

// The events that change memory and, but for a user's message, leave the state
// as it is.
const (
	TypeUserMessage             Type = "UserMessage"
	TypeLLMAttemptFailed        Type = "LlmAttemptFailed"
	TypeToolCallDispatched      Type = "ToolCallDispatched"
	TypeToolCallStarted         Type = "ToolCallStarted"
	TypeToolCallResult          Type = "ToolCallResult"
	TypeHumanDecision           Type = "HumanDecision"
	TypeContextWindowExpanded   Type = "ContextWindowExpanded"
	TypeToolCallsAddedToContext Type = "ToolCallsAddedToContext"
	TypeWorkingMemoryAdded      Type = "WorkingMemoryAdded"
	TypeWorkingMemoryRemoved    Type = "WorkingMemoryRemoved"
	TypeStorageSaved            Type = "StorageSaved"
	TypeStorageLoaded           Type = "StorageLoaded"
	TypePaused                  Type = "Paused"
	TypeResumed                 Type = "Resumed"
	TypeBudgetRaised            Type = "BudgetRaised"
	TypeHandedOff               Type = "HandedOff"
)

// Version is the version of a payload's form. Every built-in payload is at
// version 1 unless the table in payload.go says otherwise.
type Version int

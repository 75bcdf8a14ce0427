package reducer

import "github.com/moorebus/moorebus/pkg/events"

// DefaultSpec returns the built-in table, as SPEC section 2 has it.
func DefaultSpec() TableSpec {
	return TableSpec{
		Initial:  events.Idle,
		Terminal: []events.State{events.Done, events.Errored, events.Cancelled},
		Rows: []Row{
			{events.Idle, events.TypeStart, events.Planning},

			{events.Planning, events.TypeLLMToolCall, events.Acting},
			{events.Planning, events.TypeLLMParallelToolCalls, events.ParallelActing},
			{events.Planning, events.TypeLLMFinalAnswer, events.Done},
			{events.Planning, events.TypeLLMMessageComplete, events.WaitingForUser},
			{events.Planning, events.TypeUserMessage, events.Planning},
			{events.Planning, events.TypeLLMThought, events.Planning},
			{events.Planning, events.TypeMaxSteps, events.Errored},
			{events.Planning, events.TypeLowConfidence, events.Reflecting},
			{events.Planning, events.TypeAnswerTooShort, events.Planning},
			{events.Planning, events.TypeToolBlacklisted, events.Planning},
			{events.Planning, events.TypeReplyInvalid, events.Planning},
			{events.Planning, events.TypeHumanApprovalRequired, events.WaitingForHuman},

			{events.WaitingForHuman, events.TypeHumanApproved, events.Acting},
			{events.WaitingForHuman, events.TypeHumanModified, events.Acting},
			{events.WaitingForHuman, events.TypeHumanApprovedParallel, events.ParallelActing},
			{events.WaitingForHuman, events.TypeHumanRejected, events.Observing},
			{events.WaitingForHuman, events.TypeApprovalExpired, events.Observing},

			{events.WaitingForUser, events.TypeUserMessage, events.Planning},
			{events.WaitingForUser, events.TypeClosed, events.Done},

			{events.Acting, events.TypeToolSuccess, events.Observing},
			{events.Acting, events.TypeToolFailure, events.Observing},
			{events.Acting, events.TypeHumanApprovalRequired, events.WaitingForHuman},
			{events.ParallelActing, events.TypeToolSuccess, events.Observing},
			{events.ParallelActing, events.TypeToolFailure, events.Observing},

			{events.Observing, events.TypeContinue, events.Planning},
			{events.Observing, events.TypeNeedsReflection, events.Reflecting},
			{events.Observing, events.TypeNeedsPaging, events.Paging},

			{events.Reflecting, events.TypeReflectDone, events.Planning},
			{events.Paging, events.TypePageDone, events.Planning},

			{"", events.TypeFatalError, events.Errored},
			{"", events.TypeBudgetExceeded, events.Errored},
			{"", events.TypeCancelled, events.Cancelled},
		},
		Stay: []events.Type{
			events.TypeUserMessage, events.TypeLLMAttemptFailed, events.TypeToolCallDispatched,
			events.TypeToolCallStarted, events.TypeToolCallResult, events.TypeHumanDecision,
			events.TypeContextWindowExpanded, events.TypeToolCallsAddedToContext,
			events.TypeWorkingMemoryAdded, events.TypeWorkingMemoryRemoved,
			events.TypeStorageSaved, events.TypeStorageLoaded,
			events.TypePaused, events.TypeResumed, events.TypeBudgetRaised, events.TypeHandedOff,
		},
	}
}

// DefaultTable returns the built-in table.
func DefaultTable() *Table {
	t, err := NewTable(DefaultSpec())
	if err != nil {
		panic("the built-in transition table is wrong: " + err.Error())
	}
	return t
}

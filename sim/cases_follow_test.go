package sim

import (
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
)

const (
	rowFollowed  = "ToolSuccess, ToolFailure, ToolCallResult, in a process with every role or an actor that observes"
	rowFollowing = "Continue, NeedsReflection, NeedsPaging, and the end of a batch, in a process with every role or an actor that observes"
)

// stored are the points around an append. The delivery of the event before, which only
// finds that all is done, may go to the other process.
var stored = []string{simtest.BeforeAppend, simtest.AfterAppend}

// followedCases are about a process that decides at once what follows from its own event.
var followedCases = []*livenessCase{
	{row: rowFollowed, name: "before Continue", event: events.TypeToolSuccess, from: events.Acting, script: script(calls("look")), then: itself,
		follows: effects.KindObserve},
	{row: rowFollowed, name: "before Continue", event: events.TypeToolFailure, from: events.Acting, script: script(calls("broken")), then: itself,
		follows: effects.KindObserve},
	{row: rowFollowed, name: "before the join", event: events.TypeToolCallResult, from: events.ParallelActing, nth: 2,
		script: script(calls("look", "sum")), then: itself, follows: effects.KindJoin},
	{row: rowFollowing, name: "of one process", event: events.TypeContinue, from: events.Observing, script: script(calls("look")), then: itself,
		follows: effects.KindObserve, points: stored},
	{row: rowFollowing, name: "of one process", event: events.TypeNeedsReflection, from: events.Observing, script: script(calls("look")), agent: reflecting,
		then: itself, follows: effects.KindObserve, points: stored},
	{row: rowFollowing, name: "of one process", event: events.TypeNeedsPaging, from: events.Observing, script: script(adding), then: itself,
		agent: small, follows: effects.KindObserve, points: stored},
	{row: rowFollowing, name: "of a batch in one process", event: events.TypeToolSuccess, from: events.ParallelActing,
		script: script(calls("look", "sum")), then: itself, follows: effects.KindJoin, points: stored},
}

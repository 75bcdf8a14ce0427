package sim

import (
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
)

const (
	rowQuiet     = "ToolSuccess, ToolFailure, in a process with every role that keeps an earlier delivery to Observing"
	rowFollowed  = "ToolSuccess, ToolFailure, ToolCallResult, in a process with every role"
	rowFollowing = "Continue, NeedsReflection, NeedsPaging, and the end of a batch, in a process with every role"
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
	{row: rowQuiet, name: "that wakes nobody", event: events.TypeToolSuccess, from: events.Acting, script: steps("look"), then: earlier,
		follows: effects.KindObserve, change: alone, quiet: true},
	{row: rowQuiet, name: "that wakes nobody", event: events.TypeToolFailure, from: events.Acting, script: steps("broken"), then: earlier,
		follows: effects.KindObserve, change: alone, quiet: true},
	{row: rowQuiet, name: "of a batch that wakes nobody", event: events.TypeToolSuccess, from: events.ParallelActing, script: steps("look", "sum"),
		then: earlier, follows: effects.KindObserve, change: alone, quiet: true},
	{row: rowQuiet, name: "that wakes nobody, before other processes take over", event: events.TypeToolSuccess, from: events.Acting,
		script: steps("look"), then: earlier, follows: effects.KindObserve, change: takenOver, quiet: true},
	{row: rowFollowing, name: "behind an event that woke nobody", event: events.TypeContinue, from: events.Observing, nth: 2, script: steps("look"),
		then: itself, follows: effects.KindObserve, change: alone, points: []string{simtest.AfterAppend}},
}

// earlier are the events one of whose deliveries is kept.
const earlier = "ToolSuccess, ToolFailure"

// steps calls the tools in each of several replies: the first result wakes the observer, and its
// delivery is kept.
func steps(tools ...string) []scriptEntry {
	return script(calls(tools...), calls(tools...), calls(tools...))
}

// alone leaves one process, which comes back when it died.
func alone(s *scenario) { s.Processes = s.Processes[:1] }

// takenOver starts a process for each role after the one with every role has died.
func takenOver(s *scenario) {
	every := s.Processes[0]
	every.Down = time.Hour
	s.Processes = []processSpec{every}
	for i, role := range every.Roles {
		s.Processes = append(s.Processes, processSpec{Roles: []string{role}, Concurrency: 4, Down: time.Minute})
		s.Kills = append(s.Kills, killSpec{Process: i + 1, For: 20 * time.Second})
	}
}

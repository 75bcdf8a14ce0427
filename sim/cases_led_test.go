package sim

import (
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
)

const rowLed = "LlmToolCall, ToolSuccess, ToolFailure, Continue, NeedsReflection, NeedsPaging, ReflectDone, PageDone, LlmThought, " +
	"AnswerTooShort, ToolBlacklisted, ReplyInvalid, LowConfidence, in a process that leads the run"

// ledCases are about a process that goes on with a run under one delivery to Planning. The
// acknowledgement of that delivery is the one of the run's first event.
var ledCases = led(
	&livenessCase{event: events.TypeLLMToolCall, from: events.Planning, script: script(calls("look")), points: points},
	&livenessCase{name: "second", event: events.TypeLLMToolCall, from: events.Planning, nth: 2, script: script(calls("look"), calls("look"))},
	&livenessCase{event: events.TypeToolSuccess, from: events.Acting, script: script(calls("look"))},
	&livenessCase{event: events.TypeToolFailure, from: events.Acting, script: script(calls("broken"))},
	&livenessCase{event: events.TypeContinue, from: events.Observing, script: script(calls("look"))},
	&livenessCase{event: events.TypeNeedsReflection, from: events.Observing, script: script(calls("look")), agent: reflecting},
	&livenessCase{event: events.TypeReflectDone, from: events.Reflecting, script: script(calls("look")), agent: reflecting},
	&livenessCase{event: events.TypeNeedsPaging, from: events.Observing, script: script(calls("look"), adding), agent: small},
	&livenessCase{event: events.TypePageDone, from: events.Paging, script: script(calls("look"), adding), agent: small},
	&livenessCase{event: events.TypeLLMThought, from: events.Planning, agent: thinks},
	&livenessCase{event: events.TypeAnswerTooShort, from: events.Planning, script: script(calls("look"), scriptEntry{"text": "no"}),
		agent: func(a *events.Agent) { a.Config.MinAnswerLength = 5 }},
	&livenessCase{event: events.TypeToolBlacklisted, from: events.Planning, script: script(calls("look"), calls("forbidden"))},
	&livenessCase{event: events.TypeReplyInvalid, from: events.Planning, script: script(calls("look"), calls("unheard_of"))},
	&livenessCase{event: events.TypeLowConfidence, from: events.Planning,
		script: script(calls("look"), scriptEntry{"calls": calls("look")["calls"], "confidence": 0.1})},
	&livenessCase{name: "by a process that is replaced by one role each", event: events.TypeLLMToolCall, from: events.Planning, script: script(calls("look")),
		points: []string{simtest.AfterAppend}, then: people, change: replaced},
	&livenessCase{name: "by a process that is replaced by one role each", event: events.TypeToolSuccess, from: events.Acting, script: script(calls("look")),
		points: []string{simtest.AfterAppend}, then: people, change: replaced},
)

// replaced has one process of each role beside the one that leads runs and does not come back.
func replaced(s *scenario) {
	s.Processes[0].Down = patience
	s.Kills = []killSpec{{Process: 1, Gently: true, For: time.Minute}} // the planner leaves it the run's beginning
	s.Processes = s.Processes[:1]
	for _, role := range []string{rolePlanner, roleActor, roleObserver, roleGateway, roleSubagent} {
		s.Processes = append(s.Processes, processSpec{Roles: []string{role}, Concurrency: 4, Down: time.Minute})
	}
}

func led(cases ...*livenessCase) []*livenessCase {
	for _, c := range cases {
		c.row, c.name, c.led, c.follows = rowLed, strings.TrimSpace(c.name+" led"), true, effects.KindObserve
		if c.then == "" {
			c.then = itself
		}
		if c.points == nil {
			c.points = stored
		}
	}
	return cases
}

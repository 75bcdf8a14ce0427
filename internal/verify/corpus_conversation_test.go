package verify_test

import (
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// conversationRuns are chats whose users come in between.
var conversationRuns = []recording{
	{"chat_interrupted", func(r *recorder) {
		r.start("Tell me a story", chat)
		r.on(events.Control, &events.UserMessage{MessageID: "m-2", Content: "A short one"})
		r.on(events.Planning, &events.LLMAttemptFailed{
			Kind: events.KindInterrupted, Message: "a message came before the reply was complete", Key: "plan/1",
			MessageID: "m-1", Content: "Once upon a ti", Before: "m-2",
		})
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-3", Reply: said("Once.")})
		r.on(events.Planning, &events.LLMAttemptFailed{ // of another planner's call, which ended late
			Kind: events.KindInterrupted, Message: "a message came before the reply was complete", Key: "plan/1",
			MessageID: "m-4", Content: "There was a", Before: "m-2",
		})
		r.on(events.WaitingForUser, &events.Closed{By: events.By{By: "user"}})
	}},
	{"chat_edited_while_waiting", func(r *recorder) {
		r.start("Hello", func(p *events.Start) { p.Mode, p.Agent.Config.ContextWindowSize = events.ModeChat, 1 })
		r.on(events.Planning, one("call_1", "search"))
		r.on(events.Acting, success("call_1", "found"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-2", Reply: said("Found it.")})
		r.on(events.Control, &events.ContextWindowExpanded{Increment: 1, NextTurn: true})
		r.on(events.Control, &events.ToolCallsAddedToContext{CallIDs: []string{"call_1"}, NextTurn: true})
		r.on(events.WaitingForUser, &events.UserMessage{MessageID: "m-3", Content: "What was it?"})
	}},
	{"call_id_of_a_hash", func(r *recorder) {
		r.start("Look twice", chat)
		for _, text := range []string{"found", "found again"} {
			p := one(reducer.NameCall(r.mem.Control.CallOrder, "two\nlines"), "search")
			p.Calls[0].ProviderID = "two\nlines"
			r.on(events.Planning, p)
			r.on(events.Acting, success(p.Calls[0].ID, text))
			r.on(events.Observing, &events.Continue{})
		}
	}},
}

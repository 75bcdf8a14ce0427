package verify_test

import (
	"bytes"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// brokenRuns are the runs of the corpus that are not as they should be.
var brokenRuns = []recording{
	{"broken_body_changed", func(r *recorder) {
		good(r)
		// The third event was changed after it was written.
		r.records[2].Body = bytes.Replace(r.records[2].Body, []byte("found"), []byte("faked"), 1)
	}},
	{"broken_wrong_hash", func(r *recorder) {
		r.start("Search", nil)
		r.forge(events.Planning, events.Acting, one("call_1", "search"), func(e *events.Event) {
			e.Step, e.Prev = 1, events.Hash([]byte("something else"))
		})
	}},
	{"broken_event_missing", func(r *recorder) {
		good(r)
		r.records = append(r.records[:3:3], r.records[4:]...)
	}},
	{"broken_events_swapped", func(r *recorder) {
		good(r)
		a, b := &r.records[2], &r.records[3]
		a.Seq, b.Seq = b.Seq, a.Seq
	}},
	{"broken_event_twice", func(r *recorder) {
		good(r)
		again := r.records[3]
		r.records = append(r.records[:4:4], append([]journal.Record{again}, r.records[4:]...)...)
	}},
	{"broken_illegal_transition_accepted", func(r *recorder) {
		// Somebody took an event for legal that the table does not have.
		r.start("Search", nil)
		r.forge(events.Planning, events.Observing, success("call_1", "found"), nil)
		r.forge(events.Observing, events.Planning, &events.Continue{}, func(e *events.Event) { e.From = events.Observing })
	}},
	{"broken_after_end", func(r *recorder) {
		good(r)
		r.forge(events.Planning, events.Done, answer("And another one."), nil)
	}},
	{"broken_ended_for_another_reason", func(r *recorder) {
		r.start("Search", nil)
		r.forge(events.Planning, events.Observing, success("call_1", "found"), nil)
		r.on(events.Planning, &events.FatalError{Outcome: events.Outcome{Code: "llm_error", Message: "auth: no key"}})
	}},
	{"broken_cancelled_after_change", func(r *recorder) {
		r.start("Hello", nil)
		r.on(events.Planning, &events.LLMThought{Reply: said("Let me see.")})
		r.on(events.Planning, &events.LLMThought{Reply: said("Hm.")})
		r.on(events.Control, &events.CancelledRun{})
		r.records[1].Body = bytes.Replace(r.records[1].Body, []byte("Let me see"), []byte("Let me lie"), 1)
	}},
	{"poison_illegal_transition", func(r *recorder) {
		r.start("Search", nil)
		r.forge(events.Planning, events.Observing, success("call_1", "found"), nil)
		r.end()
	}},
	{"poison_forged_origin", func(r *recorder) {
		// An actor that approves its own call.
		r.askToPay()
		r.forge(events.Acting, events.Acting, &events.HumanApproved{Decision: decision("call_1", events.DecisionApproved)}, nil)
		r.end()
	}},
	{"poison_not_json", func(r *recorder) {
		r.start("Search", nil)
		r.append(r.subject(events.Planning, events.Acting), []byte("not JSON\n\xff"))
		r.end()
	}},
	{"poison_not_json_twice", func(r *recorder) {
		r.start("Search", nil)
		r.append(r.subject(events.Planning, events.Acting), []byte("{"))
		r.append(r.subject(events.Planning, events.Acting), []byte("{}"))
		r.end()
	}},
	{"poison_at_the_start", func(r *recorder) {
		r.append(r.subject(events.Idle, events.Planning), []byte("[]"))
		r.end()
	}},
	{"poison_not_ended_yet", func(r *recorder) {
		r.start("Search", nil)
		r.append(r.subject(events.Planning, events.Acting), []byte(`{"type":"LlmToolCall"}`))
	}},
	{"poison_foreign_run", func(r *recorder) {
		r.start("Search", nil)
		r.forge(events.Planning, events.Acting, one("call_1", "search"), func(e *events.Event) { e.Run, e.Step = runID(0xfffe), 1 })
		r.end()
	}},
	{"poison_unknown_type", func(r *recorder) {
		r.start("Search", nil)
		r.on(events.Planning, &events.LLMThought{Reply: said("Let me see.")})
		body := bytes.ReplaceAll(r.records[1].Body, []byte("LlmThought"), []byte("LlmDreamed"))
		r.append(r.subject(events.Planning, events.Planning), body)
		r.end()
	}},
	{"poison_newer_version", func(r *recorder) {
		// Only of runs that builds of revision 2 began: later ones are left to newer builds.
		r.start("Search", func(p *events.Start) { p.TableHash = r.machine.Table().Identities()[1] })
		r.on(events.Planning, &events.LLMThought{Reply: said("Let me see.")})
		body := bytes.ReplaceAll(r.records[1].Body, []byte("LlmThought/1"), []byte("LlmThought/2"))
		r.append(r.subject(events.Planning, events.Planning), body)
		r.end()
	}},
	{"poison_cancelled", func(r *recorder) {
		r.start("Search", nil)
		r.forge(events.Acting, events.Observing, success("call_1", "found"), nil)
		r.on(events.Control, &events.CancelledRun{By: events.By{By: "operator"}})
	}},
	{"poison_after_end", func(r *recorder) {
		good(r)
		r.append(r.subject(events.Control, events.Nobody), []byte("late"))
	}},
	{"stray_messages", func(r *recorder) {
		// What belongs to no run leaves the run alone.
		r.start("Search", nil)
		stray := func(subject string) {
			r.records = append(r.records, journal.Record{Subject: subject, Seq: uint64(len(r.records) + 1), Body: []byte("{}")})
		}
		stray("moore.0.default.Planning.acting.default." + r.run.ID)
		stray("moore.0.default.planning.acting.default.no-run")
		r.on(events.Planning, answer("Nothing happened."))
	}},
}

// good is a short run that ends well.
func good(r *recorder) {
	r.start("Search", nil)
	r.step("call_1", "search", "found")
	r.on(events.Planning, answer("It was found."))
}

func (r *recorder) subject(from, to events.State) string {
	return events.Subject{Run: r.run, From: from, To: to, Pool: events.DefaultPool}.String()
}

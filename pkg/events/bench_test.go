package events_test

import (
	"strings"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
)

// benchmarked are the events that a run consists of mostly, and two that are
// rarer and larger.
func benchmarked() []*events.Event {
	usage := events.Usage{Input: 812, Output: 64, Total: 876}
	observation := "SUCCESS: " + strings.Repeat(`{"flight":"HAT001","price":120.5} `, 4)
	start := &events.Start{
		AgentHash: prevHash, Task: "Find me the cheapest flight.", Mode: events.ModeTask, TaskType: "default", TableHash: prevHash,
		Tools: []events.ToolSpec{{Name: "search", Description: "finds flights", Schema: []byte(`{"type":"object","properties":{"q":{"type":"string"}}}`)}},
	}
	start.Agent.Name, start.Agent.SystemPrompt = "booker", strings.Repeat("You book flights. ", 10)
	return []*events.Event{
		event(toolCall()),
		event(&events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "call_1", Success: true, Observation: observation, Code: "ok", LatencyMS: 42}}),
		event(&events.Continue{}),
		event(&events.LLMFinalAnswer{MessageID: causeID, Reply: events.Reply{Content: "The cheapest flight is HAT001, at 120.50.", Model: "gpt-4o", Usage: usage}}),
		event(&events.UserMessage{MessageID: causeID, Content: "And the one after that?"}),
		event(&events.LLMThought{Reply: events.Reply{Content: "I have to look.", Model: "gpt-4o", Usage: usage}}),
		event(start),
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, e := range benchmarked() {
		b.Run(string(e.Type()), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := new(events.Codec).Encode(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, e := range benchmarked() {
		body, err := new(events.Codec).Encode(e)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(e.Type()), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := new(events.Codec).Decode(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHash(b *testing.B) {
	body := []byte(golden)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		_ = events.Hash(body)
	}
}

func BenchmarkSubject(b *testing.B) {
	s := events.Subject{Run: events.NewRun("default", runID, 8), From: events.Planning, To: events.Acting, Pool: "web"}
	text := s.String()
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = s.String()
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := events.ParseSubject(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("run", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = events.NewRun("default", runID, 8)
		}
	})
}

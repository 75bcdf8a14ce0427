package events_test

import (
	"strings"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
)

func benchmarked() map[string]*events.Event {
	success := &events.ToolSuccess{Outcome: &events.ToolOutcome{
		CallID: "call_1", Success: true, Observation: "SUCCESS: " + strings.Repeat(`{"flight":"HAT001","price":120.5} `, 12), Code: "ok", LatencyMS: 42,
	}}
	return map[string]*events.Event{"LlmToolCall": event(toolCall()), "ToolSuccess": event(success)}
}

func BenchmarkEncode(b *testing.B) {
	for name, e := range benchmarked() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := events.DefaultCodec().Encode(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, e := range benchmarked() {
		body, err := events.DefaultCodec().Encode(e)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := events.DefaultCodec().Decode(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

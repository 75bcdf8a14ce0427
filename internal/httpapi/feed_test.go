package httpapi

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// A stream with a filter decodes no record that cannot match, and skips none that does, however
// its body is written.
func TestFilterBeforeDecoding(t *testing.T) {
	t.Parallel()
	codec, err := events.NewCodec()
	require.NoError(t, err)
	run := events.NewRun("default", "01890a5d-ac96-774b-bcce-b302099a8057", 1)
	subject := func(from, to events.State) string {
		return events.Subject{Run: run, From: from, To: to, Pool: events.DefaultPool}.String()
	}
	answer, err := codec.Encode(&events.Event{
		ID: run.ID, Source: "moorebus/planner/1", Run: run.ID, Time: time.Unix(1, 0), N: 5, From: events.Planning, To: events.Done, Step: 2,
		Prev: events.Hash(nil), Cause: run.ID, Data: &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "42"}},
	})
	require.NoError(t, err)
	replaced := func(old, new string) []byte {
		require.Contains(t, string(answer), old)
		return bytes.ReplaceAll(answer, []byte(old), []byte(new))
	}
	bodies := map[string][]byte{
		"as it is written":      answer,
		"with white space":      replaced(`"type":"LlmFinalAnswer"`, "\"type\" :\n \"LlmFinalAnswer\""),
		"with an escaped type":  replaced(`"type":"LlmFinalAnswer"`, `"type":"LlmFinal\u0041nswer"`),
		"with an escaped state": replaced(`"to":"done"`, `"\u0074o":"d\u006fne"`),
		"no event":              []byte("no event"),
	}
	decodes := map[bool]int{}
	for _, typ := range []events.Type{"", events.TypeLLMFinalAnswer, events.TypeLLMToolCall} {
		for _, state := range []events.State{"", events.Done, events.Acting} {
			want := wanted{table: reducer.DefaultTable(), typ: typ, state: state}
			for name, body := range bodies {
				for _, at := range []string{subject(events.Planning, events.Done), subject(events.Control, events.Nobody), "feed"} {
					rec := journal.Record{Subject: at, Seq: 1, Body: body}
					matches := want.match(newFrame(codec, rec))
					may := want.mayMatch(&rec)
					require.False(t, matches && !may, "%s %q %q %s", name, typ, state, at)
					decodes[may]++
				}
			}
			if typ == events.TypeLLMToolCall || state == events.Acting {
				require.False(t, want.mayMatch(&journal.Record{Subject: subject(events.Planning, events.Done), Body: answer}), "%q %q", typ, state)
			}
		}
	}
	require.Positive(t, decodes[true])
	require.Positive(t, decodes[false])
	escaped := wanted{table: reducer.DefaultTable(), typ: events.TypeLLMFinalAnswer, state: events.Done}
	for _, name := range []string{"with an escaped type", "with an escaped state"} {
		require.True(t, escaped.match(newFrame(codec, journal.Record{Subject: subject(events.Planning, events.Done), Body: bodies[name]})), name)
	}
}

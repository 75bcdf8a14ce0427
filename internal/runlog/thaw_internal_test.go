package runlog

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// both reads a text in both ways.
func both(t require.TestingT, text []byte) (fast, slow *reducer.Memory) {
	slow = new(reducer.Memory)
	require.NoError(t, json.Unmarshal(text, slow))
	return thawed(text), slow
}

// Every memory is read like package json reads it, and in the fast way.
func TestThawedMemoriesAreTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		run := reducertest.NewRun(reducer.NewMachine(reducer.MachineOptions{}))
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			e := reducertest.Next(t, run)
			if e.Payload == nil {
				break
			}
			run.Append(e.Origin, e.Payload)
		}
		text, err := json.Marshal(run.Mem)
		require.NoError(t, err)
		fast, slow := both(t, text)
		require.NotNil(t, fast)
		require.Equal(t, slow, fast)
	})
}

// Texts that package json reads and that nobody writes so are left to it.
func TestThawLeavesOtherTexts(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(&reducer.Memory{RunID: "r", Task: "a \"task\" <b>\u2028\n", History: []reducer.HistoryEntry{{Step: 1}}})
	require.NoError(t, err)
	fast, slow := both(t, text)
	require.Equal(t, slow, fast)
	for name, other := range map[string]string{
		"white space":     " " + string(text),
		"another order":   strings.Replace(string(text), `{"run_id":"r",`, `{"task":"x","run_id":"r",`, 1),
		"an unknown one":  strings.Replace(string(text), `{`, `{"more":1,`, 1),
		"a pair":          strings.Replace(string(text), `"run_id":"r"`, `"run_id":"\ud83d\ude00"`, 1),
		"a missing one":   strings.Replace(string(text), `"run_id":"r",`, ``, 1),
		"letters of case": strings.Replace(string(text), `"run_id"`, `"RUN_ID"`, 1),
	} {
		fast, slow := both(t, []byte(other))
		require.Nil(t, fast, name)
		got, err := unmarshal([]byte(other))
		require.NoError(t, err)
		require.Equal(t, slow, got, name)
	}
}

// steps is a memory with a little of everything that texts are made of.
func steps(t testing.TB) []byte {
	text, err := json.Marshal(&reducer.Memory{RunID: "r", Task: "<\"\\\n>", History: []reducer.HistoryEntry{{Step: 1}, {Step: -2}}})
	require.NoError(t, err)
	return text
}

// A text that ends too early, wherever that is, is not taken for a memory.
func TestThawOfTextsThatEndEarly(t *testing.T) {
	t.Parallel()
	text := steps(t)
	for i := range text {
		require.Nil(t, thawed(text[:i]), "%d of %d bytes", i, len(text))
	}
	require.NotNil(t, thawed(text))
}

// Times and an application's own values are the same in both ways, or left to package
// json.
func TestThawTimesAndValues(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(&reducer.Memory{RunID: "r", Custom: map[string]json.RawMessage{"k": json.RawMessage(`"HERE"`)}})
	require.NoError(t, err)
	const never = `"started":"0001-01-01T00:00:00Z"`
	require.Contains(t, string(text), never)
	for at, fast := range map[string]bool{
		"2026-11-20T18:40:50Z": true, "2026-11-20T18:40:50.5Z": true, "2024-02-29T00:00:00.000000001Z": true, "9999-12-31T23:59:59.999999999Z": true,
		"2026-11-20T18:40:50.1234567891Z": true, "2026-11-20T18:40:50.000Z": true, "2026-11-20T18:40:50+01:00": true,
		"2026-02-29T00:00:00Z": false, "2026-13-01T00:00:00Z": false, "2026-00-01T00:00:00Z": false, "2026-11-00T00:00:00Z": false, "2026-11-20T24:00:00Z": false,
		"2026-11-20T18:60:00Z": false, "2026-11-20T18:40:60Z": false, "2026-11-20T18:40:50.Z": false, "2026-11-2xT18:40:50Z": false, "x": false, "": false,
		`2026-11-20T18:40:50\u005a`: false,
	} {
		requireSame(t, strings.Replace(string(text), never, `"started":"`+at+`"`, 1), fast)
	}
	for value, fast := range map[string]bool{
		`{"a":["}","\"]",{}],"b":1}`: true, `[]`: true, `-1.5e3`: true, `"a\\"`: true, `null`: true, `{"a" : 1}`: true, ` 1`: true, `1 `: true,
		`{"a":1`: false, `[1}`: false, `01`: false, `"a`: false, `{]`: false, ``: false,
	} {
		requireSame(t, strings.Replace(string(text), `"HERE"`, value, 1), fast)
	}
}

// requireSame reads a text in both ways, of which the fast one may leave it to the
// other if that takes it, and has to if that does not.
func requireSame(t *testing.T, text string, readable bool) {
	t.Helper()
	slow := new(reducer.Memory)
	err := json.Unmarshal([]byte(text), slow)
	require.Equal(t, readable, err == nil, "%s: %v", text, err)
	fast := thawed([]byte(text))
	if !readable {
		require.Nil(t, fast, text)
	} else if fast != nil {
		require.Equal(t, slow, fast, text)
	}
}

// Strings that had escapes keep no more than themselves, however long they are.
func TestThawedStringsKeepLittle(t *testing.T) {
	t.Parallel()
	const n, lines = 100, 10_000
	text, err := json.Marshal(slices.Repeat([]string{strings.Repeat("a line\n", lines)}, n))
	require.NoError(t, err)
	th := thawing{text: string(text), at: 1}
	for range n {
		words := th.string()
		require.False(t, th.bad)
		require.Less(t, th.words.Cap(), 2*len(words))
		th.at++ // the comma
	}
}

// FuzzThaw holds what is taken in the fast way to package json.
func FuzzThaw(f *testing.F) {
	text := steps(f)
	f.Add(text)
	for i := 0; i < len(text); i += 100 { // each seed is run by each process that fuzzes, before it begins
		f.Add(text[:i])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fast := thawed(text)
		if fast == nil {
			return
		}
		slow := new(reducer.Memory)
		require.NoError(t, json.Unmarshal(text, slow))
		require.Equal(t, slow, fast)
	})
}

// BenchmarkSnapshotMemory writes and reads the memory of a run of 10,000 events.
func BenchmarkSnapshotMemory(b *testing.B) {
	mem := &reducer.Memory{RunID: "r", ToolCalls: map[string]*reducer.ToolCallRecord{}}
	for i := range 10_000 {
		mem.Trace = append(mem.Trace, reducer.TraceEntry{Step: i, State: "Acting", Event: "ToolSuccess", Data: `{"text":"this is a step"}`})
		if i%3 == 0 {
			mem.History = append(mem.History, reducer.HistoryEntry{
				Step: i, Tool: reducer.ToolCall{ID: "c", Name: "echo", Arguments: `{"text":"this is a step"}`}, Observation: "this is a step", Success: true,
			})
		}
	}
	text, err := json.Marshal(mem)
	require.NoError(b, err)
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := json.Marshal(mem)
			require.NoError(b, err)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			_, err := unmarshal(text)
			require.NoError(b, err)
		}
	})
	b.Run("read by package json", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			require.NoError(b, json.Unmarshal(text, new(reducer.Memory)))
		}
	})
}

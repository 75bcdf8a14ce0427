package runlog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/reducer/reducertest"
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

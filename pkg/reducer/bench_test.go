package reducer_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// longRun is a run of about the given number of events, in Planning.
func longRun(b *testing.B, length int) *reducertest.Run {
	b.Helper()
	r := reducertest.NewRun(nil)
	start := reducertest.StartOf("find it", events.ModeTask)
	start.Agent.Config.MaxSteps = length
	add := func(p events.Payload) {
		if _, _, err := r.Append(origin(r.Mem, p), p); err != nil {
			b.Fatal(err)
		}
	}
	add(start)
	for i := 0; r.Mem.N+3 <= uint64(length); i++ {
		id := fmt.Sprint("call_", i)
		add(single(id, "alpha"))
		add(success(id, `{"flight":"HAT001","price":120.5}`))
		add(&events.Continue{})
	}
	return r
}

// BenchmarkFold folds one decoded event after another; the time of one must not
// depend on how long the run is. Three events are a step.
func BenchmarkFold(b *testing.B) {
	for _, length := range []int{10, 10_000} {
		b.Run(fmt.Sprint("history=", length), func(b *testing.B) {
			r := longRun(b, length)
			var decoded []*events.Event
			var subjects []events.Subject
			var hashes []string
			for _, id := range []string{"x", "y", "z"} {
				for _, p := range []events.Payload{single(id, "alpha"), success(id, "1"), &events.Continue{}} {
					s, e, err := r.Append(r.Mem.State, p)
					if err != nil {
						b.Fatal(err)
					}
					decoded, subjects = append(decoded, e), append(subjects, s)
					hashes = append(hashes, events.Hash(r.Records[len(r.Records)-1].Body))
				}
			}
			base := rewind(b, r, len(r.Records)-len(decoded))
			b.ReportAllocs()
			i := 0
			mem := *base
			for b.Loop() {
				if i == len(decoded) {
					i, mem = 0, *base // a shallow copy: what the folds add lies behind what base sees
					for _, id := range []string{"x", "y", "z"} {
						delete(mem.ToolCalls, id)
					}
					mem.ReactContext.ToolCallIDs = mem.ReactContext.ToolCallIDs[:len(mem.ReactContext.ToolCallIDs)-3]
				}
				if err := r.Machine.ApplyEvent(&mem, subjects[i], decoded[i], hashes[i]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

func rewind(b *testing.B, r *reducertest.Run, n int) *reducer.Memory {
	b.Helper()
	mem := r.Machine.Initial(r.ID.ID)
	for _, rec := range r.Records[:n] {
		if _, err := r.Machine.Apply(mem, rec.Subject, rec.Body); err != nil {
			b.Fatal(err)
		}
	}
	// Room for what is added, as a growing run has it nearly always.
	c := &mem.Control
	mem.Trace, mem.History, mem.Messages = slices.Grow(mem.Trace, 99), slices.Grow(mem.History, 99), slices.Grow(mem.Messages, 99)
	c.Turns, c.CallOrder = slices.Grow(c.Turns, 99), slices.Grow(c.CallOrder, 99)
	mem.ReactContext.ToolCallIDs = slices.Grow(mem.ReactContext.ToolCallIDs, 99)
	return mem
}

// BenchmarkApplyRun folds the bodies of runs of ten steps and an answer, from the
// first event of each to the last; one operation is one event.
func BenchmarkApplyRun(b *testing.B) {
	r := longRun(b, 1+3*10)
	if _, _, err := r.Append(events.Planning, finalAnswer("HAT001 is the cheapest.")); err != nil {
		b.Fatal(err)
	}
	bytes := 0
	for _, rec := range r.Records {
		bytes += len(rec.Body)
	}
	b.SetBytes(int64(bytes / len(r.Records)))
	b.ReportAllocs()
	i := 0
	mem := r.Machine.Initial(r.ID.ID)
	for b.Loop() {
		if i == len(r.Records) {
			i, mem = 0, r.Machine.Initial(r.ID.ID)
		}
		if _, err := r.Machine.Apply(mem, r.Records[i].Subject, r.Records[i].Body); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func BenchmarkDraft(b *testing.B) {
	r := longRun(b, 10_000)
	p := single("next", "alpha")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := r.Machine.Draft(r.Mem, r.ID, events.Planning, p, reducer.Stamp{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEffects(b *testing.B) {
	for _, length := range []int{10, 10_000} {
		b.Run(fmt.Sprint("history=", length), func(b *testing.B) {
			r := longRun(b, length)
			if _, _, err := r.Append(events.Planning, threeBatch()); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if len(r.Effects()) != 3 {
					b.Fatal("three calls are to be dispatched")
				}
			}
		})
	}
}

func BenchmarkView(b *testing.B) {
	for _, length := range []int{30, 3000} {
		b.Run(fmt.Sprint("history=", length), func(b *testing.B) {
			r := longRun(b, length)
			b.ReportAllocs()
			for b.Loop() {
				if len(reducer.View(nil, r.Mem)) < length/3 {
					b.Fatal("the view is too short")
				}
			}
		})
	}
}

// conversation is a chat of so many turns on a window of ten messages, each with a
// call. It waits for its user.
func conversation(t testing.TB, turns int) *reducertest.Run {
	t.Helper()
	r := reducertest.NewRun(nil)
	start := reducertest.StartOf("q0", events.ModeChat)
	chat(start)
	add := func(p events.Payload) {
		_, _, err := r.Append(origin(r.Mem, p), p)
		require.NoError(t, err)
	}
	add(start)
	for i := range turns {
		if i > 0 {
			add(user(fmt.Sprint("m", i), fmt.Sprint("q", i)))
		}
		id := fmt.Sprint("call_", i)
		add(single(id, "alpha"))
		add(success(id, `{"flight":"HAT001","price":120.5}`))
		add(&events.Continue{})
		add(turnAnswer(fmt.Sprint("a", i)))
	}
	return r
}

// decodedEvent is an event as a reader folds it.
type decodedEvent struct {
	subject events.Subject
	event   *events.Event
	hash    string
}

// BenchmarkConversationFold folds one decoded event after another, those of fifty
// turns: the first ones of a conversation, and those after 400 and 600 messages. The time
// of one must not depend on which.
func BenchmarkConversationFold(b *testing.B) {
	const more, long = 50, 5
	// Within the fifty turns after 200 the maps of calls and of message ids double
	// once each, within those after 300 neither does.
	for _, turns := range []int{2, 200, 300} {
		b.Run(fmt.Sprint("turn=", turns), func(b *testing.B) {
			r := conversation(b, turns+more)
			base := r.At(uint64(len(r.Records) - more*long))
			var decoded []decodedEvent
			for _, rec := range r.Records[len(r.Records)-more*long:] {
				s, err := events.ParseSubject(rec.Subject)
				require.NoError(b, err)
				e, err := r.Machine.Codec().Decode(rec.Body)
				require.NoError(b, err)
				decoded = append(decoded, decodedEvent{s, e, events.Hash(rec.Body)})
			}
			b.ReportAllocs()
			mem, i := base, len(decoded)
			for b.Loop() {
				if i == len(decoded) {
					b.StopTimer()
					mem, i = roomy(base.Clone()), 0
					mem.Knows("") // a run in memory has its messages indexed
					b.StartTimer()
				}
				if err := r.Machine.ApplyEvent(mem, decoded[i].subject, decoded[i].event, decoded[i].hash); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// roomy is a memory with room for what is added, as that of a growing run has it
// nearly always.
func roomy(mem *reducer.Memory) *reducer.Memory {
	const more = 999
	c := &mem.Control
	mem.Trace, mem.History, mem.Messages = slices.Grow(mem.Trace, more), slices.Grow(mem.History, more), slices.Grow(mem.Messages, more)
	c.Turns, c.CallOrder = slices.Grow(c.Turns, more), slices.Grow(c.CallOrder, more)
	return mem
}

// asked is the memory of a conversation whose model is about to be asked.
func asked(t testing.TB, turns int) *reducer.Memory {
	t.Helper()
	r := conversation(t, turns)
	_, _, err := r.Append(events.WaitingForUser, user("last", "and?"))
	require.NoError(t, err)
	return r.Mem
}

// TestAViewCostsWhatItShows: the same at turn 400 as at turn 20.
func TestAViewCostsWhatItShows(t *testing.T) {
	early, late := asked(t, 20), asked(t, 400)
	require.Len(t, reducer.View(nil, late), len(reducer.View(nil, early)))
	allocated := func(mem *reducer.Memory) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 1000 {
			_ = reducer.View(nil, mem)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	require.InEpsilon(t, allocated(early), allocated(late), 0.1)
}

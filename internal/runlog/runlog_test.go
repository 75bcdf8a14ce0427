package runlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	goleak.VerifyTestMain(m)
}

var stamp = runlog.Stamp{Source: "moorebus/test/2"}

// open returns a held and locked run of a store, read to the head.
func open(t *testing.T, s *runlog.Store, id events.Run) *runlog.Run {
	t.Helper()
	r := s.Acquire(id)
	t.Cleanup(func() { s.Release(r) })
	r.Lock()
	t.Cleanup(r.Unlock)
	require.NoError(t, r.Refresh(t.Context()))
	return r
}

func start() *events.Start { return reducertest.StartOf("find it", events.ModeTask) }

func message(id string) *events.UserMessage { return &events.UserMessage{MessageID: id, Content: id} }

// appending decides for the payloads, all from control, whatever the memory is.
func appending(payloads ...events.Payload) runlog.Decide {
	return func(*reducer.Memory) ([]runlog.Draft, error) { return drafts(payloads...), nil }
}

func drafts(payloads ...events.Payload) []runlog.Draft {
	all := make([]runlog.Draft, len(payloads))
	for i, p := range payloads {
		all[i] = runlog.Draft{Origin: events.Control, Payload: p}
	}
	return all
}

func TestTwoStoresRaceForOneRun(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	const each = 40
	var writers sync.WaitGroup
	for w := range 4 {
		store := bench.NewStore(bench.Journal.NewProcess())
		writers.Go(func() {
			for i := range each {
				r := store.Acquire(id)
				r.Lock()
				if err := r.Refresh(t.Context()); err != nil {
					t.Error(err)
				}
				appended, err := r.Commit(t.Context(), stamp, appending(message(fmt.Sprintf("w%d-%d", w, i))))
				r.Unlock()
				store.Release(r)
				if err != nil || !appended {
					t.Errorf("writer %d: appended %v, %v", w, appended, err)
				}
			}
		})
	}
	writers.Wait()
	mem := bench.Memory(id) // every record is legal, so n and prev are too
	require.EqualValues(t, 1+4*each, mem.N)
	seen := map[string]bool{}
	for i, e := range bench.Events(id) {
		require.EqualValues(t, i+1, e.N)
		require.False(t, seen[e.ID], "event id twice")
		seen[e.ID] = true
	}
	require.Len(t, mem.Messages, 1+4*each)
}

func TestDecideSeesTheNewerMemory(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	r := open(t, bench.NewStore(bench.Journal), id)
	bench.Append(id, events.Control, message("first"))
	var seen []uint64
	appended, err := r.Commit(t.Context(), stamp, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		seen = append(seen, mem.N)
		if mem.Knows("first") {
			return nil, nil // somebody else said it
		}
		return drafts(message("first")), nil
	})
	require.NoError(t, err)
	require.False(t, appended)
	require.Equal(t, []uint64{1, 2}, seen)
	require.Len(t, bench.Records(id), 2)

	refused := errors.New("no")
	_, err = r.Commit(t.Context(), stamp, func(*reducer.Memory) ([]runlog.Draft, error) { return nil, refused })
	require.ErrorIs(t, err, refused)
}

// doubtful stores an append, or not, and says that its outcome is unknown.
func doubtful(log journal.Log, times int, stored bool) *workertest.Log {
	l := &workertest.Log{Log: log}
	l.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
		if times--; times < 0 {
			return log.Append(ctx, run, last, entries...)
		}
		if stored {
			if _, err := log.Append(ctx, run, last, entries...); err != nil {
				return 0, err
			}
		}
		return 0, journal.ErrUnknownOutcome
	}
	return l
}

func TestUnknownOutcome(t *testing.T) {
	for _, stored := range []bool{true, false} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			bench := workertest.New(t, simtest.Options{}, nil)
			id := bench.Start(start())
			log := doubtful(bench.Journal, 3, stored)
			r := open(t, bench.NewStore(log), id)
			decided := 0
			appended, err := r.Commit(t.Context(), stamp, func(*reducer.Memory) ([]runlog.Draft, error) {
				decided++
				return drafts(message("a"), message("b")), nil
			})
			require.NoError(t, err)
			require.True(t, appended)
			if stored {
				require.Equal(t, 1, decided, "it stands in the log, so nobody is asked again")
			} else {
				require.Equal(t, 4, decided)
			}
			require.Equal(t, []string{"Start", "UserMessage", "UserMessage"}, bench.Types(id))
			require.EqualValues(t, 3, r.Memory().N)
			require.Equal(t, reducertest.Canonical(bench.Memory(id)), reducertest.Canonical(r.Memory()))
		})
	}
}

// early says once that it has an append, and then that nobody knows whether it is on the disk.
type early struct {
	journal.Log
	stored, doubted bool
}

func (l *early) AppendThen(ctx context.Context, run events.Run, last uint64, then func(uint64), entries ...journal.Entry) (uint64, error) {
	if l.stored || l.doubted {
		if _, err := l.Append(ctx, run, last, entries...); err != nil {
			return 0, err
		}
	}
	then(last + uint64(len(entries)))
	if !l.doubted {
		l.doubted = true
		return 0, journal.ErrUnknownOutcome
	}
	return last + uint64(len(entries)), nil
}

// What is folded before it is on the disk is read again if the disk may not have it.
func TestUnknownFlush(t *testing.T) {
	for _, stored := range []bool{true, false} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			bench := workertest.New(t, simtest.Options{}, nil)
			id := bench.Start(start())
			told := 0
			r := open(t, runlog.New(runlog.Options{
				Log: &early{Log: bench.Journal, stored: stored}, Machine: bench.Machine,
				Appended: func(*reducer.Memory, *events.Event) { told++ },
			}), id)
			then := stamp
			var seen []uint64
			then.Then = func() { seen = append(seen, r.Memory().N, r.Written().N) }
			appended, err := r.Commit(t.Context(), then, appending(message("a")))
			require.NoError(t, err)
			require.True(t, appended)
			require.Equal(t, map[bool][]uint64{true: {2, 2}, false: {2, 2, 2, 2}}[stored], seen)
			require.Equal(t, 1, told)
			require.False(t, r.Doubtful())
			require.Equal(t, []string{"Start", "UserMessage"}, bench.Types(id))
			require.Equal(t, reducertest.Canonical(bench.Memory(id)), reducertest.Canonical(r.Memory()))
		})
	}
}

// A batch that shrinks after a lost race and then has an unknown outcome is found by what
// it holds, not by what the first try held.
func TestUnknownOutcomeAfterTheBatchShrank(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	tries := 0
	log := &workertest.Log{Log: bench.Journal}
	log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
		tries++
		switch tries {
		case 1:
			bench.Append(id, events.Control, message("a")) // another client says a meanwhile
		case 2:
			_, err := bench.Journal.Append(ctx, run, last, entries...)
			require.NoError(t, err)
			return 0, journal.ErrUnknownOutcome
		}
		return bench.Journal.Append(ctx, run, last, entries...)
	}
	r := open(t, bench.NewStore(log), id)
	appended, err := r.Commit(t.Context(), stamp, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		var fresh []events.Payload
		for _, m := range []string{"a", "b"} {
			if !mem.Knows(m) {
				fresh = append(fresh, message(m))
			}
		}
		return drafts(fresh...), nil
	})
	require.NoError(t, err)
	require.True(t, appended)
	require.Equal(t, 2, tries)
	require.Equal(t, []string{"Start", "UserMessage", "UserMessage"}, bench.Types(id))
}

// An append of unknown outcome may be stored late, after the next try was sent.
func TestUnknownOutcomeIsStoredLate(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	tries := 0
	log := &workertest.Log{Log: bench.Journal}
	var late func()
	log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
		if tries++; tries == 1 {
			late = func() {
				_, err := bench.Journal.Append(ctx, run, last, entries...)
				require.NoError(t, err)
			}
			return 0, journal.ErrUnknownOutcome
		}
		late()
		return bench.Journal.Append(ctx, run, last, entries...)
	}
	r := open(t, bench.NewStore(log), id)
	appended, err := r.Commit(t.Context(), stamp, appending(message("a")))
	require.NoError(t, err)
	require.True(t, appended)
	require.Len(t, bench.Records(id), 2)
}

// A refusal after a try of unknown outcome does not say that nothing was stored, unless another
// event stands where that try belongs.
func TestRefusedAfterUnknownOutcome(t *testing.T) {
	for _, overtaken := range []bool{false, true} {
		bench := workertest.New(t, simtest.Options{}, nil)
		id := bench.Start(start())
		log := &workertest.Log{Log: bench.Journal}
		tries := 0
		log.OnAppend = func(context.Context, events.Run, uint64, []journal.Entry) (uint64, error) {
			if tries++; tries > 1 {
				return 0, journal.ErrDiskFull
			}
			if overtaken {
				bench.Append(id, events.Control, message("other"))
			}
			return 0, journal.ErrUnknownOutcome
		}
		_, err := open(t, bench.NewStore(log), id).Commit(t.Context(), stamp, appending(message("a")))
		require.ErrorIs(t, err, journal.ErrDiskFull)
		require.Equal(t, 2, tries)
		require.Equal(t, !overtaken, errors.Is(err, journal.ErrUnknownOutcome))
	}
}

func TestCommitErrors(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	log := &workertest.Log{Log: bench.Journal}
	r := open(t, bench.NewStore(log), id)
	before := reducertest.Canonical(r.Memory())

	_, err := r.Commit(t.Context(), stamp, appending(&events.Continue{}))
	var draft *runlog.DraftError
	require.ErrorAs(t, err, &draft)
	var illegal *reducer.TransitionError
	require.ErrorAs(t, err, &illegal, "no row of the table")

	_, err = r.Commit(t.Context(), stamp, appending(message("ok"), &events.ReflectDone{}))
	require.ErrorAs(t, err, &draft, "a batch is refused altogether")

	_, err = r.Commit(t.Context(), stamp, appending(&events.UserMessage{MessageID: "x", Content: strings.Repeat("x", journal.MaxBody)}))
	require.ErrorIs(t, err, journal.ErrTooLarge)
	require.NotErrorAs(t, err, &draft)

	gone := errors.New("the bus is away")
	log.OnAppend = func(context.Context, events.Run, uint64, []journal.Entry) (uint64, error) { return 0, gone }
	_, err = r.Commit(t.Context(), stamp, appending(message("y")))
	require.ErrorIs(t, err, gone)

	log.OnAppend = func(context.Context, events.Run, uint64, []journal.Entry) (uint64, error) {
		return 0, journal.ErrUnknownOutcome
	}
	log.OnRead = func(events.Run) error { return gone }
	_, err = r.Commit(t.Context(), stamp, appending(message("y")))
	require.ErrorIs(t, err, journal.ErrUnknownOutcome)
	require.ErrorIs(t, err, gone)

	require.Equal(t, before, reducertest.Canonical(r.Memory()), "what is not in the log is not in memory")
	require.Len(t, bench.Records(id), 1)
}

func TestBatchWakesOnce(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	s := start()
	s.Mode, s.Agent.Mode = events.ModeChat, events.ModeChat
	id := bench.Start(s)
	bench.Append(id, events.Planning, &events.LLMMessageComplete{MessageID: "m", Reply: events.Reply{Content: "Hello."}})
	bench.Append(id, events.Control, message("a"), message("b"), message("c"))
	var wakes []string
	for _, rec := range bench.Records(id) {
		subject, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		wakes = append(wakes, string(subject.To))
	}
	require.Equal(t, []string{"planning", "waiting_for_user", "none", "none", "planning"}, wakes)
	mem := bench.Memory(id)
	require.Equal(t, events.Planning, mem.State)
	wants := effects.Of(bench.Machine.Table(), mem)
	require.Len(t, wants, 1)
	require.EqualValues(t, 5, wants[0].Wake, "the last one's delivery does the work")
}

// pick is a client's tool.
var pick = events.ClientTool{
	Name: "pick", Description: "Picks.", Schema: json.RawMessage(`{"type":"object"}`), Timeout: events.Duration(time.Minute),
}

// TestBatchCarriesTheWake: whatever inputs a client sends in one request, in every order and in
// every state in which it may, the work that follows has a delivery: that of the batch's last
// event, on an edge for which there are permissions.
func TestBatchCarriesTheWake(t *testing.T) {
	call := func(tool, id string) events.Call { return events.Call{ID: id, Name: tool, Arguments: `{}`} }
	reply := func(calls ...events.Call) events.ToolCallReply {
		return events.ToolCallReply{Calls: calls, Confidence: 1}
	}
	one := func(id string) events.Payload {
		return &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: id, Success: true, Code: "ok"}}
	}
	many := func(id string) events.Payload {
		return &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: id, Success: true, Code: "ok"}}
	}
	asides := func() []events.Payload {
		return []events.Payload{
			message("said"), &events.ContextWindowExpanded{Increment: 1}, &events.ToolCallsAddedToContext{},
			&events.CustomMemorySet{Key: "mine", Value: []byte("1")}, &events.BudgetRaised{Budget: events.Budget{MaxTotalTokens: 9}},
		}
	}
	type made struct {
		origin  events.State
		payload events.Payload
	}
	single := []made{{events.Planning, &events.LLMToolCall{ToolCallReply: reply(call("pick", "a"))}}}
	alone := []made{{events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply(call("pick", "a"), call("pick", "b"))}}}
	mixed := []made{
		{events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply(call("alpha", "a"), call("pick", "b"))}},
		{events.Planning, &events.ToolCallDispatched{CallID: "a"}}, {events.Planning, &events.ToolCallDispatched{CallID: "b"}},
		{events.ParallelActing, many("a")},
	}
	for name, c := range map[string]struct {
		before []made
		// owes are the inputs after which there is work; none: there is work as it is.
		owes []events.Payload
	}{
		"planning":                    {nil, []events.Payload{message("asked")}},
		"planning, an edit":           {nil, []events.Payload{&events.ContextWindowExpanded{Increment: 2}}},
		"acting":                      {single, []events.Payload{one("a")}},
		"acting, begun":               {single, []events.Payload{&events.ToolCallStarted{CallID: "a"}, one("a")}},
		"parallel_acting, all":        {alone, []events.Payload{many("a"), many("b")}},
		"parallel_acting, the last":   {mixed, []events.Payload{many("b")}},
		"waiting_for_user, a message": {[]made{{events.Planning, &events.LLMMessageComplete{MessageID: "m"}}}, []events.Payload{message("asked")}},
	} {
		t.Run(name, func(t *testing.T) {
			bench := workertest.New(t, simtest.Options{}, nil)
			// Each aside, and each two of them, in every place around what owes the wake.
			for _, batch := range mixes(c.owes, asides()) {
				s := start()
				s.Mode, s.Agent.Mode = events.ModeChat, events.ModeChat
				s.Tools = append(s.Tools, pick.Spec())
				id := bench.Start(s)
				for _, m := range c.before {
					bench.Append(id, m.origin, m.payload)
				}
				require.NoError(t, bench.TryAppend(id, events.Control, batch...), "%v", typesOf(batch))
				requireCarried(t, bench, id, len(batch))
			}
		})
	}
}

// mixes returns the payloads in their order with one or two of the others among them.
func mixes(payloads, others []events.Payload) (all [][]events.Payload) {
	for at := range len(payloads) + 1 {
		for i, first := range others {
			one := slices.Insert(slices.Clone(payloads), at, first)
			all = append(all, one)
			for then := at + 1; then <= len(one); then++ {
				for k, second := range others {
					if k != i {
						all = append(all, slices.Insert(slices.Clone(one), then, second))
					}
				}
			}
		}
	}
	return all
}

func typesOf(payloads []events.Payload) (types []events.Type) {
	for _, p := range payloads {
		types = append(types, events.TypeOf(p))
	}
	return types
}

// requireCarried requires that of the last events, which one append stored, the last one alone
// wakes a worker, and that this is the worker of all that is due.
func requireCarried(t *testing.T, bench *workertest.Bench, id events.Run, appended int) {
	t.Helper()
	mem, records, types := bench.Memory(id), bench.Records(id), bench.Types(id)
	for _, rec := range records[len(records)-appended : len(records)-1] {
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		require.Equal(t, events.Nobody, s.To, "%v", types)
	}
	last, err := events.ParseSubject(records[len(records)-1].Subject)
	require.NoError(t, err)
	wants := effects.Of(bench.Machine.Table(), mem)
	require.Len(t, wants, 1, "%v", types)
	require.EqualValues(t, len(records), wants[0].Wake, "%s has no delivery after %v", wants[0].Key, types)
	require.Equal(t, wants[0].State, last.To, "%v", types)
	require.True(t, slices.ContainsFunc(reducer.Edges(bench.Machine.Table()), func(e reducer.Edge) bool {
		return e.From == last.From && e.To == last.To && (e.Pool == last.Pool || e.Pool == events.Wildcard)
	}), "%+v is no edge", last)
	if wants[0].Kind == effects.KindJoin {
		require.Equal(t, mem.Control.LastResult, last.Pool, "the pool whose worker ends the batch")
	}
}

// Half a batch is never seen, also not where it loses a race in between.
func TestBatchIsAllOrNothing(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	var writers sync.WaitGroup
	for w := range 3 {
		store := bench.NewStore(bench.Journal.NewProcess())
		writers.Go(func() {
			for i := range 20 {
				r := store.Acquire(id)
				r.Lock()
				if err := r.Refresh(t.Context()); err != nil {
					t.Error(err)
				}
				name := fmt.Sprintf("%d-%d", w, i)
				if ok, err := r.Commit(t.Context(), stamp, appending(message(name+"a"), message(name+"b"))); !ok || err != nil {
					t.Errorf("appended %v, %v", ok, err)
				}
				r.Unlock()
				store.Release(r)
			}
		})
	}
	writers.Wait()
	messages := bench.Memory(id).Messages
	require.Len(t, messages, 1+2*60)
	for pair := range slices.Chunk(messages[1:], 2) {
		require.Equal(t, strings.TrimSuffix(pair[0].ID, "a"), strings.TrimSuffix(pair[1].ID, "b"))
	}
}

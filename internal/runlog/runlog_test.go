package runlog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

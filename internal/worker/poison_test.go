package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// poisons are records that are no legal event where they are stored.
func poisons(t *testing.T, r *rig, run events.Run) map[string][]byte {
	t.Helper()
	other := reducertest.NewRun(nil)
	_, _, foreign, err := other.Draft(events.Idle, reducertest.StartOf("foreign", events.ModeTask))
	require.NoError(t, err)
	return map[string][]byte{
		"not JSON": []byte("\x00not JSON"),
		"empty":    {},
		"illegal":  r.Records(run)[0].Body,
		"foreign":  foreign,
	}
}

func subject(run events.Run, from, to events.State) string {
	return events.Subject{Run: run, From: from, To: to, Pool: events.DefaultPool}.String()
}

func TestPoisonEndsItsRunAlone(t *testing.T) {
	for _, to := range []events.State{events.Planning, events.Observing, events.Acting, events.Nobody} {
		from := to
		if to == events.Nobody {
			from = events.Control // seen as it comes
		}
		for _, name := range []string{"not JSON", "empty", "illegal", "foreign"} {
			t.Run(string(to)+" "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					h := newHanging()
					r.spawn(handlers{effects.KindPlan: h})
					run, other := r.start(), r.start()
					<-h.began
					<-h.began
					body := poisons(t, r, run)[name]
					r.Journal.Inject(run.Shard, subject(run, from, to), body)
					require.ErrorIs(t, <-h.ended, context.Canceled, "its work is cancelled")
					settled()
					requirePoisoned(t, r, run, 2)
					h.let <- worker.Done(answer("It is done."))
					require.Equal(t, events.Done, r.AwaitEnd(other).State)
					r.Memory(other)
				})
			})
		}
	}
}

// requirePoisoned checks that the run ended by one FatalError right after the
// poison at n, made out of a state that the worker owns.
func requirePoisoned(t *testing.T, r *rig, run events.Run, n uint64) {
	t.Helper()
	mem, err := r.Fold(run)
	var illegal *reducer.IllegalError
	require.ErrorAs(t, err, &illegal)
	require.Equal(t, n, illegal.N)
	require.Equal(t, events.Errored, mem.State)
	require.Equal(t, codes.Poison, mem.Error.Code)
	require.Equal(t, n+1, mem.N, "one end, and nothing after it")
	recs := r.Records(run)
	last, err := r.Machine.Codec().Decode(recs[len(recs)-1].Body)
	require.NoError(t, err)
	fatal, ok := last.Data.(*events.FatalError)
	require.True(t, ok)
	require.Equal(t, n, fatal.N)
	require.NotEmpty(t, fatal.Reason)
	s, err := events.ParseSubject(recs[len(recs)-1].Subject)
	require.NoError(t, err)
	require.NotEqual(t, events.Control, s.From)
	require.Equal(t, events.Errored, s.To)
}

// Poison that wakes no worker is found by the next append.
func TestPoisonThatWakesNobody(t *testing.T) {
	for _, name := range []string{"not JSON", "illegal", "foreign"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := newHanging()
				r.spawn(handlers{effects.KindPlan: h})
				run := r.start()
				<-h.began
				r.Journal.Inject(run.Shard, subject(run, events.Planning, events.Nobody), poisons(t, r, run)[name])
				synctest.Wait()
				h.let <- worker.Done(answer("never stored"))
				settled()
				requirePoisoned(t, r, run, 2)
			})
		})
	}
}

func TestPoisonInPlaceOfTheStart(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn(handlers{effects.KindPlan: always(answer("never"))})
		run := r.Store.Place(events.DefaultNamespace, r.Store.NewID())
		r.Journal.Inject(run.Shard, subject(run, events.Idle, events.Planning), []byte("{}"))
		settled()
		requirePoisoned(t, r, run, 1)
	})
}

// A verbatim copy of the run's first event does not begin it again, not even
// for a worker that knows nothing of it.
func TestCopiedStartIsPoison(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.start()
		r.Append(run, events.Planning, single("a", "alpha"))
		r.Journal.Inject(run.Shard, subject(run, events.Idle, events.Planning), r.Records(run)[0].Body)
		r.spawn(handlers{effects.KindPlan: always(answer("never"))})
		settled()
		requirePoisoned(t, r, run, 3)
	})
}

// Several workers of several processes meet the same poison; it ends the run
// once.
func TestPoisonIsEndedOnce(t *testing.T) {
	o := simtest.Options{Faults: simtest.Faults{Duplicate: 1, MaxDelay: 10}}
	bubbleWith(t, o, func(t *testing.T, r *rig) {
		for range 4 {
			r.spawn(handlers{effects.KindPlan: newHanging()})
		}
		run := r.start()
		for _, to := range []events.State{events.Planning, events.Acting, events.Observing} {
			r.Journal.Inject(run.Shard, subject(run, to, to), []byte("?"))
		}
		settled()
		mem, err := r.Fold(run)
		require.Error(t, err)
		require.Equal(t, codes.Poison, mem.Error.Code)
		// A worker that gets a delivery twice before the poison comes may have counted a lost one.
		ends := 0
		for _, rec := range r.Records(run) {
			if s, err := events.ParseSubject(rec.Subject); err == nil && s.To == events.Errored {
				ends++
			}
		}
		require.Equal(t, 1, ends)
	})
}

func TestMessagesOfNoRunAreIgnored(t *testing.T) {
	o := simtest.Options{Shards: 3}
	bubbleWith(t, o, func(t *testing.T, r *rig) {
		var planned counter
		r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			planned.add()
			return worker.Done(answer("It is done."))
		})})
		run := r.start()
		r.AwaitEnd(run)
		wrong := run
		wrong.Shard = (run.Shard + 1) % 3
		body := r.Records(run)[0].Body
		r.Journal.Inject(wrong.Shard, subject(wrong, events.Idle, events.Planning), body)
		r.Journal.Inject(0, "moore.0.default.idle.planning.default.not-a-run", body)
		r.Journal.Inject(wrong.Shard, "moore.x.default.idle.planning.default."+run.ID, body)
		settled()
		require.Equal(t, 1, planned.get())
		require.Len(t, r.Types(run), 2)
		require.Empty(t, r.waiting(t), "they were acknowledged")
	})
}

// waiting returns the subjects of what planners would be given now.
func (r *rig) waiting(t *testing.T) []string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var subjects []string
	require.NoError(t, r.Journal.Consume(ctx, inboxes()[0], 1, func(d journal.Delivery) {
		subjects = append(subjects, d.Record().Subject)
		_ = d.Ack()
	}))
	return subjects
}

package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moorebus/moorebus/internal/groupcommit"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// script is a shard that stores nothing and says what it is told to. Appends take
// one after another, as on a disk.
type script struct {
	one, batch time.Duration
	// opens is what a batch takes before others may not join it any more.
	opens time.Duration
	disk  chan struct{}
	// refuses and fails are called for each append, and for each batch.
	refuses func(p groupcommit.Pending) error
	fails   func(all []groupcommit.Pending) error

	mu sync.Mutex
	// sent is what was asked for: the number of a batch's members and the names of
	// their runs, or a run alone.
	sent []string
	last uint64
}

func newScript(one, batch time.Duration) *script {
	return &script{one: one, batch: batch, disk: make(chan struct{}, 1)}
}

func (s *script) note(what string, took time.Duration) func() {
	s.disk <- struct{}{}
	s.mu.Lock()
	s.sent = append(s.sent, what)
	s.mu.Unlock()
	time.Sleep(took) // in the bubble
	return func() { <-s.disk }
}

func (s *script) store(all ...groupcommit.Pending) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range all {
		s.last += uint64(len(p.Entries))
	}
	return s.last
}

func (s *script) One(_ context.Context, p groupcommit.Pending) (uint64, error) {
	defer s.note(p.Run.ID, s.one)()
	if s.refuses != nil {
		if err := s.refuses(p); err != nil {
			return 0, err
		}
	}
	return s.store(p), nil
}

func (s *script) Batch(all []groupcommit.Pending, join func() []groupcommit.Pending) (uint64, error) {
	if s.opens > 0 {
		s.disk <- struct{}{}
		time.Sleep(s.opens) // in the bubble
		<-s.disk
		all = join()
	}
	names := ""
	for _, p := range all {
		names += p.Run.ID
	}
	defer s.note(fmt.Sprint(len(all), ":", names), s.batch)()
	if s.fails != nil {
		if err := s.fails(all); err != nil {
			return 0, err
		}
	}
	return s.store(all...), nil
}

// take returns what was asked for since it was last called.
func (s *script) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// pendingOf is an append of the run of that name.
func pendingOf(run string, entries, bytes int) groupcommit.Pending {
	p := groupcommit.Pending{Run: events.Run{Namespace: "default", ID: run}}
	for range entries {
		p.Entries = append(p.Entries, journal.Entry{Subject: events.Subject{Run: p.Run}, Body: make([]byte, bytes)})
	}
	return p
}

// results are what appends came to, by the run's name.
type results struct {
	sync.WaitGroup
	mu   sync.Mutex
	seqs map[string]uint64
	errs map[string]error
}

func newResults() *results { return &results{seqs: map[string]uint64{}, errs: map[string]error{}} }

// add appends in a goroutine of its own and returns when it waits.
func (r *results) add(ctx context.Context, g *groupcommit.Group, name string, p groupcommit.Pending) {
	r.Go(func() {
		seq, err := g.Append(ctx, p)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seqs[name], r.errs[name] = seq, err
	})
	synctest.Wait()
}

// err is what the append of that name came to so far.
func (r *results) err(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errs[name]
}

// crowded lets the runs append while the first one is in flight, and returns when
// all are answered.
func crowded(t *testing.T, g *groupcommit.Group, runs ...string) *results {
	t.Helper()
	r := newResults()
	for _, run := range runs {
		r.add(t.Context(), g, run, pendingOf(run, 1, 10))
	}
	r.Wait()
	return r
}

const ms = time.Millisecond

func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func TestGroupAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		began := time.Now()
		seq, err := g.Append(t.Context(), pendingOf("a", 1, 10))
		require.NoError(t, err)
		require.Equal(t, s.last, seq)
		require.Equal(t, 3*ms, time.Since(began), "it waits for nobody")
		require.Equal(t, []string{"a"}, s.take())
	})
}

func TestGroupGathers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		base := s.last
		began := time.Now()
		r := newResults()
		r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
		r.add(t.Context(), g, "b", pendingOf("b", 1, 10))
		r.add(t.Context(), g, "c", pendingOf("c", 3, 10))
		r.add(t.Context(), g, "d", pendingOf("d", 1, 10))
		require.Equal(t, 3, g.Waiting())
		r.Wait()
		require.Equal(t, []string{"a", "3:bcd"}, s.take())
		require.Equal(t, 7*ms, time.Since(began))
		for name, seq := range map[string]uint64{"a": 1, "b": 2, "c": 5, "d": 6} {
			require.NoError(t, r.errs[name])
			require.Equal(t, base+seq, r.seqs[name], name)
		}
		require.Zero(t, g.Waiting())
	})
}

// Two appends of one run never go together, and not in another order.
func TestGroupOfOneRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		r := newResults()
		for i, run := range []string{"a", "b", "b", "c", "b", "d"} {
			r.add(t.Context(), g, fmt.Sprint(run, i), pendingOf(run, 1, 10))
		}
		r.Wait()
		require.Equal(t, []string{"a", "3:bcd", "b", "b"}, s.take())
		require.Less(t, r.seqs["b1"], r.seqs["b2"])
		require.Less(t, r.seqs["b2"], r.seqs["b4"])
	})
}

// Who comes while a batch is prepared joins it, in order and one append of a run, and
// is answered with it; who comes later waits.
func TestGroupIsJoined(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		s.opens = 2 * ms
		base, began := s.last, time.Now()
		r := newResults()
		r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
		r.add(t.Context(), g, "b", pendingOf("b", 1, 10))
		r.add(t.Context(), g, "c", pendingOf("c", 1, 10))
		time.Sleep(4 * ms) // in the bubble: the batch is being prepared
		r.add(t.Context(), g, "d", pendingOf("d", 2, 10))
		r.add(t.Context(), g, "b2", pendingOf("b", 1, 10))
		r.add(t.Context(), g, "e", pendingOf("e", 1, 10))
		time.Sleep(2 * ms) // in the bubble: it is on its way
		require.Equal(t, 1, g.Waiting(), "of a run there is one append in a batch")
		r.add(t.Context(), g, "f", pendingOf("f", 1, 10))
		r.Wait()
		require.Equal(t, []string{"a", "4:bcde", "2:bf"}, s.take())
		require.Equal(t, 15*ms, time.Since(began))
		for name, seq := range map[string]uint64{"a": 1, "b": 2, "c": 3, "d": 5, "e": 6, "b2": 7, "f": 8} {
			require.NoError(t, r.errs[name])
			require.Equal(t, base+seq, r.seqs[name], name)
		}
	})
}

// Who has joined shares what becomes of the batch, and may leave it.
func TestGroupIsJoinedInVain(t *testing.T) {
	for _, refusal := range []error{journal.ErrConflict, journal.ErrUnknownOutcome} {
		t.Run(refusal.Error(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScript(3*ms, 4*ms)
				g := groupcommit.New(s, 2)
				s.opens = 2 * ms
				s.fails = func([]groupcommit.Pending) error { return refusal }
				short, cancel := context.WithTimeout(t.Context(), 7*ms)
				defer cancel()
				r := newResults()
				r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
				r.add(t.Context(), g, "b", pendingOf("b", 1, 10))
				r.add(t.Context(), g, "c", pendingOf("c", 1, 10))
				time.Sleep(4 * ms) // in the bubble: the batch is being prepared
				r.add(t.Context(), g, "d", pendingOf("d", 1, 10))
				r.add(short, g, "e", pendingOf("e", 1, 10))
				r.Wait()
				require.ErrorIs(t, r.errs["e"], journal.ErrUnknownOutcome)
				sent := s.take()
				require.Equal(t, []string{"a", "4:bcde"}, sent[:2])
				if refusal == journal.ErrUnknownOutcome {
					require.ErrorIs(t, r.errs["d"], journal.ErrUnknownOutcome)
					require.Len(t, sent, 2, "nothing is sent again")
					return
				}
				require.NoError(t, errors.Join(r.errs["b"], r.errs["c"], r.errs["d"]))
				require.ElementsMatch(t, []string{"b", "c", "d"}, sent[2:])
			})
		})
	}
}

// Those who join count for the bounds of a batch.
func TestGroupBoundsWhoJoins(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		s.opens = 2 * ms
		r := newResults()
		r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
		r.add(t.Context(), g, "b", pendingOf("b", 600, 10))
		r.add(t.Context(), g, "c", pendingOf("c", 300, 10))
		time.Sleep(4 * ms) // in the bubble: the batch is being prepared
		r.add(t.Context(), g, "d", pendingOf("d", 101, 10))
		r.add(t.Context(), g, "e", pendingOf("e", 1, 10))
		r.Wait()
		require.Equal(t, []string{"a", "2:bc", "2:de"}, s.take())
	})
}

func TestGroupRefused(t *testing.T) {
	for name, refusal := range map[string]error{
		"one lost its race":  journal.ErrConflict,
		"one is not allowed": journal.ErrDenied,
		"no room for it now": errors.New("too many in flight"),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScript(3*ms, 4*ms)
				g := groupcommit.New(s, 2)
				s.fails = func([]groupcommit.Pending) error { return refusal }
				s.refuses = func(p groupcommit.Pending) error {
					if p.Run.ID == "c" {
						return refusal
					}
					return nil
				}
				r := crowded(t, g, "a", "b", "c", "d")
				sent := s.take()
				require.Equal(t, []string{"a", "3:bcd"}, sent[:2])
				require.ElementsMatch(t, []string{"b", "c", "d"}, sent[2:])
				for run, err := range r.errs {
					if run == "c" {
						require.ErrorIs(t, err, refusal)
						continue
					}
					require.NoError(t, err)
				}
				s.fails = nil
				crowded(t, g, "a", "b", "c", "d")
				require.Equal(t, []string{"a", "3:bcd"}, s.take(), "and it goes on")
			})
		})
	}
}

func TestGroupUnknownOutcome(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		s.fails = func([]groupcommit.Pending) error { return fmt.Errorf("%w: no answer", journal.ErrUnknownOutcome) }
		r := crowded(t, g, "a", "b", "c")
		require.NoError(t, r.errs["a"])
		require.ErrorIs(t, r.errs["b"], journal.ErrUnknownOutcome)
		require.ErrorIs(t, r.errs["c"], journal.ErrUnknownOutcome)
		require.ErrorContains(t, r.errs["c"], "append to run c")
		require.Equal(t, []string{"a", "2:bc"}, s.take(), "nothing is sent again")
	})
}

// Who goes while it waits is not sent; who goes later does not know. The others
// notice neither.
func TestGroupContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		waits, cancelWaiting := context.WithCancel(t.Context())
		goes, cancelSent := context.WithCancel(t.Context())
		defer cancelSent()
		r := newResults()
		r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
		r.add(waits, g, "b", pendingOf("b", 1, 10))
		r.add(goes, g, "c", pendingOf("c", 1, 10))
		r.add(t.Context(), g, "d", pendingOf("d", 1, 10))
		r.add(t.Context(), g, "e", pendingOf("e", 1, 10))
		cancelWaiting()
		synctest.Wait()
		require.ErrorIs(t, r.err("b"), context.Canceled)
		require.NotErrorIs(t, r.err("b"), journal.ErrUnknownOutcome)
		require.Equal(t, 3, g.Waiting())
		time.Sleep(4 * ms) // in the bubble
		cancelSent()
		synctest.Wait()
		require.ErrorIs(t, r.err("c"), journal.ErrUnknownOutcome)
		require.ErrorIs(t, r.err("c"), context.Canceled)
		r.Wait()
		require.Equal(t, []string{"a", "3:cde"}, s.take())
		require.NoError(t, errors.Join(r.errs["a"], r.errs["d"], r.errs["e"]))
	})
}

// Who left a batch that is refused is not sent again, also if that is all of them.
func TestGroupRefusedWithoutMembers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		s.fails = func([]groupcommit.Pending) error { return journal.ErrConflict }
		ctx, cancel := context.WithTimeout(t.Context(), 5*ms)
		defer cancel()
		r := newResults()
		r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
		r.add(ctx, g, "b", pendingOf("b", 1, 10))
		r.add(ctx, g, "c", pendingOf("c", 1, 10))
		r.Wait()
		require.ErrorIs(t, r.errs["b"], journal.ErrUnknownOutcome)
		r.add(t.Context(), g, "d", pendingOf("d", 1, 10))
		r.Wait()
		require.NoError(t, r.errs["d"])
		require.Equal(t, []string{"a", "2:bc", "d"}, s.take())
	})
}

// What does not fit waits for the next round, in order.
func TestGroupBounds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		r := newResults()
		r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
		for i := range 20 {
			name := string(rune('b' + i))
			r.add(t.Context(), g, name, pendingOf(name, 1, 900<<10))
		}
		r.Wait()
		require.Equal(t, []string{"a", "9:bcdefghij", "9:klmnopqrs", "2:tu"}, s.take())
		r.add(t.Context(), g, "a", pendingOf("a", 1, 10))
		r.add(t.Context(), g, "b", pendingOf("b", 600, 10))
		r.add(t.Context(), g, "c", pendingOf("c", 400, 10))
		r.add(t.Context(), g, "d", pendingOf("d", 1, 10))
		r.add(t.Context(), g, "e", pendingOf("e", 1, 10))
		r.Wait()
		require.Equal(t, []string{"a", "2:bc", "2:de"}, s.take())
	})
}

// A few go side by side, since a batch is dear; and together from a number on, or with an
// append that is a batch anyway.
func TestGroupGoesTogetherIfItIsLarge(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 3)
		crowded(t, g, "a", "b", "c")
		require.ElementsMatch(t, []string{"a", "b", "c"}, s.take())
		crowded(t, g, "a", "b", "c", "d")
		require.Equal(t, []string{"a", "3:bcd"}, s.take())
		r := newResults()
		for run, entries := range []int{1, 1, 2} {
			name := string(rune('a' + run))
			r.add(t.Context(), g, name, pendingOf(name, entries, 10))
		}
		r.Wait()
		require.Equal(t, []string{"a", "2:bc"}, s.take())
	})
}

// Everybody gets on: of writers who append again and again none is left behind.
func TestGroupIsFair(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScript(3*ms, 4*ms)
		g := groupcommit.New(s, 2)
		counts := make([]int, 30)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for i := range counts {
			all.Go(func() {
				for ctx.Err() == nil {
					if _, err := g.Append(ctx, pendingOf(fmt.Sprint("run", i), 1, 10)); err == nil {
						counts[i]++
					}
				}
			})
		}
		all.Wait()
		_, err := g.Append(t.Context(), pendingOf("last", 1, 10)) // after the batch that all left
		require.NoError(t, err)
		low, high := counts[0], counts[0]
		for _, n := range counts {
			low, high = min(low, n), max(high, n)
		}
		require.Greater(t, low, 200)
		require.Less(t, high, 2*low)
	})
}

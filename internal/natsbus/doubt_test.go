package natsbus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestStanding looks for appends that are stored, that are not, and where others'
// records are.
func TestStanding(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	pending := func(run events.Run, last uint64, bodies ...string) journal.Pending {
		p := journal.Pending{Run: run, Last: last}
		for _, body := range bodies {
			p.Entries = append(p.Entries, journaltest.Entry(run, events.Acting, "web", body))
		}
		return p
	}
	store := func(p journal.Pending) uint64 {
		last, err := bus.Append(t.Context(), p.Run, p.Last, p.Entries...)
		require.NoError(t, err)
		return last
	}
	run, other := journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)
	one := pending(run, 0, `"one"`)
	_, err := bus.standing(t.Context(), []journal.Pending{one}, true)
	require.ErrorIs(t, err, journal.ErrNotFound)
	first := store(one)
	two := pending(run, first, `"two"`, `"three"`)
	end := store(two)
	beside := pending(other, 0, `"beside"`)
	next := store(beside)
	store(pending(run, end, `"four"`))

	for last, all := range map[uint64][]journal.Pending{first: {one}, end: {two}, next: {two, beside}} {
		found, err := bus.standing(t.Context(), all, true)
		require.NoError(t, err)
		require.Equal(t, last, found)
	}
	for name, all := range map[string][]journal.Pending{
		"another body":       {pending(run, first, `"two"`, `"3"`)},
		"another subject":    {{Run: run, Entries: []journal.Entry{journaltest.Entry(run, events.Acting, "db", `"one"`)}}},
		"not there any more": {pending(run, first, `"four"`)},
		"one of them":        {two, pending(other, 0, `"another"`)},
		"behind what is not": {pending(journaltest.NewRun(t, bus), 0, `"new"`), pending(other, 0, `"another"`)},
		"before what is not": {pending(other, 0, `"another"`), pending(journaltest.NewRun(t, bus), 0, `"new"`)},
		"not together":       {one, beside},
	} {
		_, err := bus.standing(t.Context(), all, true)
		require.ErrorIs(t, err, journal.ErrConflict, name)
	}
	_, err = bus.standing(t.Context(), []journal.Pending{beside, pending(run, end+2, `"five"`)}, true)
	require.ErrorIs(t, err, journal.ErrNotFound)
}

// What an append in doubt comes to is what the log says: it is stored, it never will
// be, or it is to be sent again while there is time.
func TestDoubtSettles(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	bus.replicas = 3 // as far as it knows
	all := batchOf(t, bus, 3)
	d := bus.newDoubt(time.Now().Add(time.Minute))
	require.False(t, d.opens(journal.ErrConflict))
	require.False(t, d.opens(join(errUncommitted, nats.ErrTimeout)), "it was not sent to its end")
	require.True(t, d.opens(nats.ErrTimeout))
	require.True(t, d.opens(journal.ErrConflict), "an earlier try may be stored")

	waited := d.wait
	_, err := d.settle(t.Context(), nats.ErrTimeout, all...)
	require.ErrorIs(t, err, errAgain)
	require.Greater(t, d.wait, waited)
	_, err = d.settle(t.Context(), nats.ErrDisconnected, all...)
	require.ErrorIs(t, err, journal.ErrInDoubt)
	late := bus.newDoubt(time.Now().Add(time.Millisecond))
	_, err = late.settle(t.Context(), nats.ErrTimeout, all...)
	require.ErrorIs(t, err, journal.ErrInDoubt)

	end, err := bus.appenders[0].Batch(all, same(all))
	require.NoError(t, err)
	found, err := d.settle(t.Context(), &apiError{ErrCode: codeWrongLastSequence}, all...)
	require.NoError(t, err)
	require.Equal(t, end, found)
	others := append(batchOf(t, bus, 1), journal.Pending{Run: all[0].Run, Entries: batchOf(t, bus, 1)[0].Entries})
	_, err = d.settle(t.Context(), nats.ErrTimeout, others...)
	require.ErrorIs(t, err, journal.ErrConflict)
}

// counted counts what is written that has both texts in it.
type counted struct {
	text, also string
	times      atomic.Int64
}

func (c *counted) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(c.text)) && bytes.Contains(line, []byte(c.also)) {
		c.times.Add(1)
	}
	return len(line), nil
}

// crowd are writers that append to a run each until they are stopped.
type crowd struct {
	all  sync.WaitGroup
	stop chan struct{}
	// stored gets a word for each append.
	stored chan struct{}
}

func startCrowd(t *testing.T, bus *Bus, n int) *crowd {
	w := &crowd{stop: make(chan struct{}), stored: make(chan struct{})}
	for range n {
		run := journaltest.NewRun(t, bus)
		w.all.Go(func() { w.write(t, bus, run) })
	}
	return w
}

// write appends and compares the log with it at the end.
func (w *crowd) write(t *testing.T, bus *Bus, run events.Run) {
	var last uint64
	var want []string
	for going := true; going; {
		body := fmt.Sprintf("[%q,%d]", run.ID, len(want))
		seq, err := bus.Append(t.Context(), run, last, journaltest.Entry(run, events.Observing, events.DefaultPool, body))
		if err != nil {
			t.Errorf("append %d: %v", len(want), err)
			return
		}
		last, want = seq, append(want, body)
		select {
		case w.stored <- struct{}{}:
		case <-w.stop:
			going = false
		}
	}
	recs, err := journaltest.Collect(bus.Read(t.Context(), run, 0))
	if err != nil {
		t.Errorf("read: %v", err)
		return
	}
	if !slices.EqualFunc(recs, want, func(r journal.Record, body string) bool { return string(r.Body) == body }) {
		t.Errorf("%d records, %d were appended, or not the same", len(recs), len(want))
	}
}

// more waits for some appends.
func (w *crowd) more(t *testing.T, n int) {
	t.Helper()
	enough := time.After(2 * patience)
	for range n {
		select {
		case <-w.stored:
		case <-enough:
			t.Fatal("no append was stored")
		}
	}
}

func (w *crowd) end() {
	close(w.stop)
	w.all.Wait()
}

// leaderOf returns the server that leads the stream, nil if none is known to: an
// election may leave the question without an answer.
func leaderOf(ctx context.Context, bus *Bus, servers []*natstest.Server, stream string) *natstest.Server {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	handle, err := bus.js.Stream(ctx, stream)
	if err != nil {
		return nil
	}
	leader := handle.CachedInfo().Cluster.Leader
	if i := slices.IndexFunc(servers, func(srv *natstest.Server) bool { return srv.Name == leader }); i >= 0 {
		return servers[i]
	}
	return nil
}

// placesOf are the sequence numbers of a run's records, once it can be read: an
// election may leave a read without its answer, for as long as the bus waits for one.
func placesOf(t *testing.T, b *Bus, run events.Run) (places []uint64) {
	t.Helper()
	var recs []journal.Record
	require.Eventually(t, func() (read bool) {
		var err error
		recs, err = journaltest.Collect(b.Read(t.Context(), run, 0))
		return err == nil
	}, patience, 50*time.Millisecond)
	for _, rec := range recs {
		places = append(places, rec.Seq)
	}
	return places
}

// TestAppendsOutliveTheirLeaders has elections while appends are under way, until
// some were not answered, and at last stops the server that leads.
func TestAppendsOutliveTheirLeaders(t *testing.T) {
	t.Parallel()
	servers, bus := openCluster(t, InitOptions{})
	stream := events.StreamName(0)
	stepDown := func(bus *Bus) {
		var answer struct{}
		_ = bus.askWithin(t.Context(), time.Second, "STREAM.LEADER.STEPDOWN."+stream, nil, &answer) // or there is none just now
	}
	for name, group := range map[string]GroupCommit{"alone": GroupCommitOff, "together": GroupCommitOn} {
		t.Run(name, func(t *testing.T) {
			silent := &counted{text: "was not answered"}
			log := slog.New(slog.NewTextHandler(silent, &slog.HandlerOptions{Level: slog.LevelDebug}))
			b, err := Open(t.Context(), bus.Conn(), Options{Logger: log, GroupCommit: group, RequestTimeout: patience})
			require.NoError(t, err)
			w := startCrowd(t, b, 8)
			defer w.end()
			for enough := time.Now().Add(2 * patience); silent.times.Load() == 0; {
				require.True(t, time.Now().Before(enough), "every append was answered")
				stepDown(b)
				w.more(t, 50)
			}
		})
	}
	t.Run("a batch", func(t *testing.T) {
		silent := &counted{text: "was not answered", also: "appends=5"}
		log := slog.New(slog.NewTextHandler(silent, &slog.HandlerOptions{Level: slog.LevelDebug}))
		b, err := Open(t.Context(), bus.Conn(), Options{Logger: log, RequestTimeout: patience})
		require.NoError(t, err)
		for enough := time.Now().Add(2 * patience); silent.times.Load() == 0; {
			require.True(t, time.Now().Before(enough), "every batch was answered")
			all := batchOf(t, b, 5)
			var stepped sync.WaitGroup
			last, err := b.appenders[0].Batch(all, func() []journal.Pending {
				stepped.Go(func() { stepDown(b) })
				return all
			})
			stepped.Wait()
			require.NotErrorIs(t, err, journal.ErrInDoubt)
			for i, p := range all {
				want := []uint64{last - 4 + uint64(i)}
				if err != nil {
					want = nil // a new leader knows of no batch, or there was none
				}
				require.Equal(t, want, placesOf(t, bus, p.Run))
			}
		}
	})
	t.Run("stopped", func(t *testing.T) {
		b := patient(t, bus, GroupCommitAuto)
		var leader *natstest.Server
		require.Eventually(t, func() bool {
			leader = leaderOf(t.Context(), b, servers, stream)
			if leader != nil && leader.Name != b.Conn().ConnectedServerName() {
				return true
			}
			stepDown(b)
			return false
		}, patience, 50*time.Millisecond, "another server than that of the writers is to lead")
		w := startCrowd(t, b, 8)
		defer w.end()
		w.more(t, 50)
		leader.Kill()
		w.more(t, 200)
	})
}

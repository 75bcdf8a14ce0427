package simtest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// fates are what fetches of one record come to, one after the other.
func fates(t *testing.T, seed uint64) (all []bool) {
	j := New(Options{Seed: seed, Faults: Faults{Fetch: 0.5}})
	run := events.NewRun("default", runID+"0", 1)
	seq := journaltest.AppendAll(t, j, run, "1")
	for range 20 {
		rec, err := j.Fetch(t.Context(), run, seq)
		if err != nil {
			require.ErrorIs(t, err, ErrFetchAway)
			require.Zero(t, rec)
		}
		all = append(all, err == nil)
	}
	return all
}

func TestFetchFaults(t *testing.T) {
	first := fates(t, 7)
	require.Contains(t, first, true)
	require.Contains(t, first, false, "one that is repeated meets another fate")
	require.Equal(t, first, fates(t, 7))
	require.NotEqual(t, first, fates(t, 8))
}

// A fetch that takes long ends with its process or its context.
func TestFetchThatTakesLong(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *Process, cancel context.CancelFunc)
		want error
	}{
		"to its end":         {func(*Process, context.CancelFunc) {}, nil},
		"killed meanwhile":   {func(p *Process, _ context.CancelFunc) { p.Kill() }, ErrCrashed},
		"canceled meanwhile": {func(_ *Process, cancel context.CancelFunc) { cancel() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := New(Options{Faults: Faults{Delay: 1, MaxDelay: time.Hour}})
				run, p := events.NewRun("default", runID+"0", 1), j.NewProcess()
				seq := journaltest.AppendAll(t, j, run, "1")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began, ended := time.Now(), make(chan error, 1)
				go func() {
					_, err := p.Fetch(ctx, run, seq)
					ended <- err
				}()
				synctest.Wait()
				require.Empty(t, ended, "it takes its time")
				c.end(p, cancel)
				require.ErrorIs(t, <-ended, c.want)
				require.Equal(t, c.want == nil, time.Since(began) > 0)
				require.LessOrEqual(t, time.Since(began), time.Hour/100)
			})
		})
	}
}

// What was published with other tools says nothing.
func TestInjectedSaysNotAfterWhat(t *testing.T) {
	j := New(Options{})
	run := journaltest.NewRun(t, j)
	first := journaltest.AppendAll(t, j, run, "1")
	seq := j.Inject(run.Shard, journaltest.Entry(run, events.Acting, "web", "").Subject.String(), []byte("x"))
	rec, err := j.Fetch(t.Context(), run, seq)
	require.NoError(t, err)
	require.Zero(t, rec.After)
	_, err = j.Append(t.Context(), run, seq, journaltest.Entry(run, events.Acting, "web", "y"))
	require.NoError(t, err)
	head, err := j.Head(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, seq, head.After)
	require.NotEqual(t, first, head.After)
	p := j.NewProcess()
	p.Kill()
	_, err = p.Fetch(t.Context(), run, seq)
	require.ErrorIs(t, err, ErrCrashed)
	_, err = j.Fetch(t.Context(), run, 0)
	require.ErrorIs(t, err, journal.ErrNotFound)
}

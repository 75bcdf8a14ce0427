package quotas_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/feature/quotas"
	"github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Most of these tests wait for a server or a clock and need no processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// rig is gateways on a bus, and the rest of the world.
type rig struct {
	controltest.World
	bus *natsbus.Bus
	*quotas.Admission
	*control.Controller
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b := controltest.NATS(t, natsbus.InitOptions{Shards: 2})
	require.NoError(t, announce.NewDirectory(b, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
	r := &rig{World: controltest.NewWorld(t, b), bus: b}
	r.Controller, r.Admission, _ = r.gateway()
	return r
}

// gateway runs a gateway until stop is called.
func (r *rig) gateway() (c *control.Controller, a *quotas.Admission, stop func()) {
	r.T.Helper()
	b := r.bus
	c, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Instance: "test"}, Timers: b, KV: b,
		Leases: b,
	})
	require.NoError(r.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	a = quotas.New(c)
	go func() { done <- worker.RunAll(ctx, c.Run, a.Run) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.T, <-done)
	})
	r.T.Cleanup(stop)
	return c, a, stop
}

func (r *rig) put(scope string, q quotas.Quota) {
	r.T.Helper()
	_, err := r.PutQuota(r.T.Context(), scope, q)
	require.NoError(r.T, err)
}

func request(agent string) control.StartRequest {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = agent, "openai"
	return control.StartRequest{Agent: &a, Task: "Do it."}
}

func (r *rig) start(agent string) control.StartResult {
	r.T.Helper()
	started, err := r.Start(r.T.Context(), "", request(agent))
	require.NoError(r.T, err)
	return started
}

// admitted waits until one of the runs is admitted, and returns it.
func (r *rig) admitted(ids ...string) string {
	r.T.Helper()
	ctx, stop := context.WithTimeout(r.T.Context(), controltest.Patience)
	defer stop()
	found := make(chan string, len(ids))
	for _, id := range ids {
		go func() {
			at := r.At(id)
			for rec, err := range r.Bus.Follow(ctx, at.Shard, journal.Filter{Run: id}, 0) {
				if err == nil && controltest.TypeOf(r.T, rec) == string(events.TypeAdmitted) {
					found <- id
				}
				if err != nil {
					return
				}
			}
		}()
	}
	select {
	case id := <-found:
		return id
	case <-ctx.Done():
		require.Fail(r.T, "no run is admitted")
		return ""
	}
}

// TestNoQuota: without a quota a start is as before, and with one for something else too.
func TestNoQuota(t *testing.T) {
	r := newRig(t)
	run := r.start("x")
	require.False(t, run.Queued)
	r.put("other", quotas.Quota{Active: 1})
	r.put("default", quotas.Quota{Weight: 2})
	r.put("default.y", quotas.Quota{Active: 1})
	require.False(t, r.start("x").Queued)
	require.Equal(t, []string{"Start"}, r.Types(run.RunID))
	require.True(t, r.start("y").Queued)
}

// TestAdmission: one run works and the next one is admitted at its end, whatever happens to those
// that wait.
func TestAdmission(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put(quotas.Bus, quotas.Quota{Active: 1})
	first := r.start("x")
	require.True(t, first.Queued)
	require.Equal(t, first.RunID, r.admitted(first.RunID))
	cancelled, paused, third := r.start("x").RunID, r.start("x").RunID, r.start("x").RunID
	page, err := r.Runs(t.Context(), "", list.Query{})
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, true, false}, []bool{page.Runs[0].Queued, page.Runs[1].Queued, page.Runs[2].Queued, page.Runs[3].Queued})
	state, err := r.State(t.Context(), "", third, 0)
	require.NoError(t, err)
	require.True(t, state.Queued)
	require.Equal(t, events.Planning, state.State)
	_, err = r.Cancel(t.Context(), "", cancelled, events.By{})
	require.NoError(t, err)
	_, err = r.Pause(t.Context(), "", paused, events.By{})
	require.NoError(t, err)
	r.Happens(first.RunID, events.Planning, controltest.Answered("done"))
	require.Equal(t, third, r.admitted(paused, third))
	_, err = r.Resume(t.Context(), "", paused, events.By{})
	require.NoError(t, err)
	require.Equal(t, []string{"Start", "Paused", "Resumed"}, r.Types(paused))
	r.Happens(third, events.Planning, controltest.Waiting("", "search", []string{"c"}))
	require.Equal(t, paused, r.admitted(paused), "a run that waits for a person needs no place")
	require.Equal(t, []string{"Start", "Cancelled"}, r.Types(cancelled))
	fourth := r.start("x").RunID
	require.NoError(t, r.RemoveQuota(t.Context(), quotas.Bus))
	require.Equal(t, fourth, r.admitted(fourth), "without the quota nothing waits")
	require.False(t, r.start("x").Queued)
}

// TestOneLeads: of two gateways one admits, and when it ends the other one does, so every run is
// admitted once.
func TestOneLeads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("default", quotas.Quota{Active: 2})
	_, _, stop := r.gateway()
	var ids []string
	for range 12 {
		ids = append(ids, r.start("x").RunID)
	}
	left := ids
	for i := range ids {
		id := r.admitted(left...)
		if i == 4 {
			stop()
			_, _, stop = r.gateway()
		}
		r.Happens(id, events.Planning, controltest.Answered("done"))
		left = without(left, id)
	}
	for _, id := range ids {
		require.Equal(t, []string{"Start", "Admitted", "LlmFinalAnswer"}, r.Types(id))
	}
}

func without(ids []string, id string) (left []string) {
	for _, other := range ids {
		if other != id {
			left = append(left, other)
		}
	}
	return left
}

// TestTooManyQueued: a namespace has no more runs in the queue than it may.
func TestTooManyQueued(t *testing.T) {
	r := newRig(t)
	r.put("default", quotas.Quota{Active: 1, Queued: 2})
	first := r.start("x").RunID
	require.Equal(t, first, r.admitted(first))
	r.start("x")
	last := r.start("x").RunID
	require.Eventually(t, func() bool {
		q, err := r.Quota(t.Context(), "default")
		return err == nil && q.Now != nil && *q.Now == quotas.Now{Active: 1, Queued: 2}
	}, controltest.Patience, time.Millisecond)
	_, err := r.Start(t.Context(), "", request("x"))
	require.True(t, refusal.Is(err, refusal.CodeTooManyQueued), "%v", err)
	_, err = r.Cancel(t.Context(), "", last, events.By{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := r.Start(t.Context(), "", request("x"))
		return err == nil
	}, controltest.Patience, time.Millisecond)
}

// TestBudget: beyond the budget of the day no run starts and none is admitted, until the budget is
// raised.
func TestBudget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("default", quotas.Quota{Active: 1, Daily: &quotas.Daily{Tokens: 100, TimeZone: "Europe/Berlin"}})
	first := r.start("x").RunID
	require.Equal(t, first, r.admitted(first))
	second := r.start("x").RunID
	answer := controltest.Answered("done")
	answer.Usage = events.Usage{Input: 80, Output: 20, Total: 100}
	r.Happens(first, events.Planning, answer)
	var refused *refusal.Error
	require.Eventually(t, func() bool {
		_, err := r.Start(t.Context(), "", request("x"))
		return refusal.Is(err, refusal.CodeBudgetExhausted) && errors.As(err, &refused)
	}, controltest.Patience, 10*time.Millisecond)
	require.Positive(t, refused.RetryAfter)
	require.LessOrEqual(t, refused.RetryAfter, 25*time.Hour)
	require.NotContains(t, r.Types(second), "Admitted")
	r.put("default", quotas.Quota{Active: 1, Daily: &quotas.Daily{Tokens: 101}})
	require.Equal(t, second, r.admitted(second))
}

// TestBudgetWithoutPrices: a budget in dollars lets nothing through while it is not known what the
// tokens of the day cost. A model that is the run's client costs nothing.
func TestBudgetWithoutPrices(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("default", quotas.Quota{Daily: &quotas.Daily{CostUSD: 5}})
	cost := 0.5
	for i, of := range []struct {
		provider string
		cost     *float64
	}{{events.ClientProvider, nil}, {"openai", &cost}, {"openai", nil}} {
		run := r.start("x").RunID
		answer := controltest.Answered("done")
		answer.Usage = events.Usage{Input: 80, Output: 20, Total: 100, CostUSD: of.cost}
		answer.Asked = &events.Asked{Provider: of.provider, Model: "m"}
		r.Happens(run, events.Planning, answer)
		require.Eventually(t, func() bool {
			costs, err := r.Costs(t.Context(), "", "hour", time.Time{})
			return err == nil && costs.Total.Input == int64(80*(i+1))
		}, controltest.Patience, time.Millisecond)
	}
	require.Eventually(t, func() bool {
		_, err := r.Start(t.Context(), "", request("x"))
		return refusal.Is(err, refusal.CodeNoPrice) && strings.Contains(err.Error(), "100 tokens")
	}, controltest.Patience, 10*time.Millisecond)
	r.put("default", quotas.Quota{Daily: &quotas.Daily{Tokens: 1000}})
	r.start("x")
}

// unreadable are quotas that this process reads once, and then no more.
type unreadable struct {
	kv.Store
	reads atomic.Int32
	data  []byte
	err   error
}

func (u *unreadable) Get(ctx context.Context, of kv.Bucket, key string) (kv.Item, error) {
	if of.Name != row.Bucket.Name {
		return u.Store.Get(ctx, of, key)
	}
	if u.reads.Add(1) == 1 {
		return kv.Item{Value: []byte(`{"other": {"active": 1}}`), Revision: 1}, nil
	}
	return kv.Item{Value: u.data, Revision: 2}, u.err
}

// TestUnreadableQuotas: quotas that may not be read, or have a bound that this build does not know,
// let nothing through, also if they could be read before. While the bus is away, what was read last
// holds, and nothing starts where there is none.
func TestUnreadableQuotas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for want, store := range map[string]*unreadable{
		"may not read the quotas":      {err: journal.ErrDenied},
		"deleted with another tool":    {err: journal.ErrNotFound},
		"cannot be read by this build": {data: []byte(`{"default": {"active": 1, "hourly": 7}}`)},
		"":                             {err: errors.New("the bus is away")},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			c := r.reads(store)
			_, err := c.Start(t.Context(), "", request("x"))
			require.NoError(t, err)
			require.Eventually(t, func() bool { // what was read holds for two seconds
				_, err = c.Start(t.Context(), "", request("x"))
				return store.reads.Load() > 1
			}, controltest.Patience, 10*time.Millisecond)
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, want)
			require.True(t, refusal.Is(err, refusal.CodeUnavailable), "%v", err)
		})
	}
	never := &unreadable{err: errors.New("the bus is away")}
	never.reads.Store(1)
	_, err := r.reads(never).Start(t.Context(), "", request("x"))
	require.ErrorContains(t, err, "the bus is away")
}

// reads is a gateway with these quotas.
func (r *rig) reads(store *unreadable) *control.Controller {
	store.Store = r.bus
	c, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: r.bus}), Queue: r.bus, Feed: r.bus, Instance: "other"}, Timers: r.bus, KV: store,
	})
	require.NoError(r.T, err)
	quotas.New(c)
	return c
}

// TestBadQuotas: what is wrong is refused, and says why.
func TestBadQuotas(t *testing.T) {
	r := newRig(t)
	for scope, q := range map[string]quotas.Quota{
		"Team": {Active: 1}, "a.b.c": {Active: 1}, "a": {}, "b": {Weight: -1}, "_": {Weight: 2}, "c.d": {Queued: 1},
		"e": {Daily: &quotas.Daily{}}, "f": {Daily: &quotas.Daily{Tokens: 1, TimeZone: "Mars/Olympus"}},
	} {
		_, err := r.PutQuota(t.Context(), scope, q)
		require.True(t, refusal.Is(err, row.CodeBadQuota), "%s: %v", scope, err)
	}
	require.True(t, refusal.Is(r.RemoveQuota(t.Context(), "a"), refusal.CodeNotFound))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { r.put(fmt.Sprintf("ns%d", i), quotas.Quota{Weight: 2}) })
	}
	all.Wait()
	infos, err := r.Quotas(t.Context())
	require.NoError(t, err)
	require.Len(t, infos, 8, "nobody's quota is lost")
}

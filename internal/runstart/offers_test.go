package runstart_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// forgetful is a bus whose offers cannot be read, and counts how often they are asked for.
type forgetful struct {
	kv.Store
	fail  func(context.Context) error
	asked int
}

func (f *forgetful) Get(ctx context.Context, of kv.Bucket, key string) (kv.Item, error) {
	if of.Name == buckets.Offers.Name {
		f.asked++
		if f.fail != nil {
			if err := f.fail(ctx); err != nil {
				return kv.Item{}, err
			}
		}
	}
	return f.Store.Get(ctx, of, key)
}

// onForgetful is a pad on which the pools attic and payments announce the tool pay with one definition.
func onForgetful(t *testing.T, test func(t *testing.T, p *pad, f *forgetful)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, f := newPad(t), &forgetful{}
		p.launcherOn(t, func(s kv.Store) kv.Store { f.Store = s; return f })
		p.announce(t, "attic", "pay", "pays")
		p.announce(t, "payments", "pay", "pays")
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		test(t, p, f)
	})
}

func (p *pad) remembered(t *testing.T, o announce.Offers) {
	t.Helper()
	require.NoError(t, p.Directory().PutOffers(t.Context(), o))
}

func pays(a *events.Agent) { a.Tools = []string{"pay"} }

// pool pins an agent that pays and returns whose tool it got.
func (p *pad) pool(t *testing.T) string {
	t.Helper()
	start, err := p.Pin(t.Context(), worker(pays), runstart.Task{Text: "Pay."})
	require.NoError(t, err)
	return start.Tools[0].Pool
}

func silent(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// A caller that goes away while the directory is read changes nothing for others.
func TestPinAfterACallerWentAway(t *testing.T) {
	onForgetful(t, func(t *testing.T, p *pad, f *forgetful) {
		p.remembered(t, announce.Offers{First: map[string]string{"pay": "payments", "mail": "post"}})
		ctx, leave := context.WithCancel(t.Context())
		f.fail = func(ctx context.Context) error { leave(); return ctx.Err() }
		_, err := p.Pin(ctx, worker(pays), runstart.Task{Text: "Pay."})
		require.ErrorIs(t, err, context.Canceled)
		f.fail = nil
		require.Equal(t, "payments", p.pool(t))
		require.Equal(t, refusal.CodePending, p.refusal(t, func(a *events.Agent) { a.Tools = []string{"mail"} }).Code)
	})
}

// What was read before holds while the directory does not answer, and nobody waits for it
// long or often.
func TestPinWhileOffersCannotBeRead(t *testing.T) {
	onForgetful(t, func(t *testing.T, p *pad, f *forgetful) {
		p.remembered(t, announce.Offers{First: map[string]string{"pay": "payments"}})
		require.Equal(t, "payments", p.pool(t))
		f.fail, f.asked = silent, 0
		time.Sleep(2 * time.Second) // in the bubble
		began := time.Now()
		for range 4 {
			require.Equal(t, "payments", p.pool(t))
			time.Sleep(time.Second) // in the bubble
		}
		require.Equal(t, 1, f.asked)
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
	})
}

// No pool gets a tool that another one may have announced first.
func TestPinBeforeOffersCouldBeRead(t *testing.T) {
	onForgetful(t, func(t *testing.T, p *pad, f *forgetful) {
		p.announce(t, "default", "work", "works")
		p.remembered(t, announce.Offers{First: map[string]string{"pay": "payments"}})
		f.fail = silent
		refused := p.refusal(t, pays)
		require.Equal(t, refusal.CodePending, refused.Code)
		require.Equal(t, refusal.Unavailable, refused.Kind)
		require.Positive(t, refused.RetryAfter)
		require.Equal(t, "pay", refused.Fields["tool"])
		p.pinned(t, "a tool of one pool is that pool's")
		f.fail = nil
		time.Sleep(6 * time.Second) // in the bubble
		require.Equal(t, "payments", p.pool(t))
	})
}

// On a bus on which nothing can be remembered the first pool by name has the tool.
func TestPinWhereNothingIsRemembered(t *testing.T) {
	for name, err := range map[string]error{"denied": journal.ErrDenied, "no bucket": journal.ErrNotReady} {
		t.Run(name, func(t *testing.T) {
			onForgetful(t, func(t *testing.T, p *pad, f *forgetful) {
				f.fail = func(context.Context) error { return errors.Join(err) }
				require.Equal(t, "attic", p.pool(t))
			})
		})
	}
}

// refusal pins what an agent needs, which has to fail, and returns how.
func (p *pad) refusal(t *testing.T, change func(*events.Agent)) *refusal.Error {
	t.Helper()
	_, err := p.Pin(t.Context(), worker(change), runstart.Task{Text: "Do it."})
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	return refused
}

// passes lets time pass, with a look at the directory every second.
func (p *pad) passes(t *testing.T, d time.Duration) {
	for range d / time.Second {
		time.Sleep(time.Second) // in the bubble
		_, _, _, err := p.ReadDirectory(t.Context())
		require.NoError(t, err)
	}
}

// What lived a moment ago may be announced again in a moment; what stays away, and what
// nobody ever announced, is refused for good.
func TestPinOfWhatIsAnnouncedAgain(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		for code, change := range map[string]func(*events.Agent){
			refusal.CodeUnknownTool:     func(a *events.Agent) { a.Tools = []string{"wrok"} },
			refusal.CodeUnknownProvider: func(a *events.Agent) { a.LLM.Provider = "oracle" },
		} {
			require.Equal(t, code, p.refusal(t, change).Code)
		}
		p.passes(t, buckets.AnnouncementTTL+time.Second) // nothing is announced any more
		for range 2 {
			lapsed := p.refusal(t, nil)
			require.Equal(t, refusal.CodePending, lapsed.Code, lapsed.Message)
			require.Equal(t, refusal.Unavailable, lapsed.Kind)
			require.Positive(t, lapsed.RetryAfter)
			require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		}
		p.announce(t, "default", "work", "works")
		p.pinned(t, "all is back")
		p.passes(t, buckets.AnnouncementTTL+buckets.AnnouncementRefresh*2)
		require.Equal(t, refusal.CodeUnknownProvider, p.refusal(t, nil).Code, "it stays away")
	})
}

// A planner that was not there yet when everything was started.
func TestPinBeforeAnyPlanner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPad(t)
		p.announce(t, "default", "work", "works")
		require.Equal(t, refusal.CodePending, p.refusal(t, nil).Code)
		time.Sleep(buckets.AnnouncementRefresh * 2) // in the bubble
		require.Equal(t, refusal.CodeUnknownProvider, p.refusal(t, nil).Code)
	})
}

// away is a bus that does not answer while it is told so.
type away struct {
	kv.Store
	gone bool
}

func (a *away) Names(ctx context.Context, prefix string) ([]string, error) {
	if a.gone {
		return nil, errors.New("the bus does not answer")
	}
	return a.Store.Names(ctx, prefix)
}

// What a gateway read to watch the pools is what it remembers, too. A start that misses a name reads anew.
func TestPoolsAreReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, bus := newPad(t), &away{}
		p.launcherOn(t, func(s kv.Store) kv.Store { bus.Store = s; return bus })
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		for _, name := range []string{"search", "work"} {
			p.announce(t, "default", name, "works")
			pools, err := p.Pools(t.Context())
			require.NoError(t, err)
			bus.gone = true
			tools, providers, _, err := p.ReadDirectory(t.Context())
			require.NoError(t, err)
			require.Equal(t, pools[0].Tools, tools)
			require.Equal(t, name, tools[0].Name)
			require.Equal(t, []string{"scripted"}, providers)
			time.Sleep(time.Second) // in the bubble
			_, _, _, err = p.ReadDirectory(t.Context())
			require.ErrorContains(t, err, "does not answer", "it is too old")
			bus.gone = false
		}
		_, err := p.Pools(t.Context())
		require.NoError(t, err)
		p.announce(t, "web", "fetch", "gets")
		p.pinned(t, "no name is missing")
		start, err := p.Pin(t.Context(), worker(func(a *events.Agent) { a.Tools = []string{"fetch"} }), runstart.Task{Text: "Do it."})
		require.NoError(t, err)
		require.Equal(t, "web", start.Tools[0].Pool)
	})
}

// While the directory was away nobody could renew an announcement.
func TestPinAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, bus := newPad(t), &away{}
		p.launcherOn(t, func(s kv.Store) kv.Store { bus.Store = s; return bus })
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		time.Sleep(time.Minute) // in the bubble
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		require.Equal(t, refusal.CodeUnknownTool, p.refusal(t, nil).Code)
		time.Sleep(2 * time.Second) // in the bubble
		bus.gone = true
		_, err := p.Pin(t.Context(), worker(nil), runstart.Task{Text: "Do it."})
		require.ErrorContains(t, err, "does not answer")
		bus.gone = false
		require.Equal(t, refusal.CodePending, p.refusal(t, nil).Code)
		time.Sleep(buckets.AnnouncementRefresh * 2) // in the bubble
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		require.Equal(t, refusal.CodeUnknownTool, p.refusal(t, nil).Code)
	})
}

package launch_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// refusal pins what an agent needs, which has to fail, and returns how.
func (p *pad) refusal(t *testing.T, change func(*events.Agent)) *refusal.Error {
	t.Helper()
	_, err := p.Pin(t.Context(), worker(change), launch.Task{Text: "Do it."})
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
		p.passes(t, journal.AnnouncementTTL+time.Second) // nothing is announced any more
		for range 2 {
			lapsed := p.refusal(t, nil)
			require.Equal(t, refusal.CodePending, lapsed.Code, lapsed.Message)
			require.Equal(t, refusal.Unavailable, lapsed.Kind)
			require.Positive(t, lapsed.RetryAfter)
			require.NoError(t, p.bus.AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		}
		p.announce(t, "default", "work", "works")
		p.pinned(t, "all is back")
		p.passes(t, journal.AnnouncementTTL+journal.AnnouncementRefresh*2)
		require.Equal(t, refusal.CodeUnknownProvider, p.refusal(t, nil).Code, "it stays away")
	})
}

// A planner that was not there yet when everything was started.
func TestPinBeforeAnyPlanner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPad(t)
		p.announce(t, "default", "work", "works")
		require.Equal(t, refusal.CodePending, p.refusal(t, nil).Code)
		time.Sleep(journal.AnnouncementRefresh * 2) // in the bubble
		require.Equal(t, refusal.CodeUnknownProvider, p.refusal(t, nil).Code)
	})
}

// away is a directory that does not answer while it is told so.
type away struct {
	journal.Directory
	gone bool
}

func (a *away) Tools(ctx context.Context) ([]events.ToolSpec, error) {
	if a.gone {
		return nil, errors.New("the bus does not answer")
	}
	return a.Directory.Tools(ctx)
}

// While the directory was away nobody could renew an announcement.
func TestPinAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, directory := newPad(t), &away{}
		p.launcherOn(t, func(d journal.Directory) journal.Directory { directory.Directory = d; return directory })
		require.NoError(t, p.bus.AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		time.Sleep(time.Minute) // in the bubble
		require.NoError(t, p.bus.AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		require.Equal(t, refusal.CodeUnknownTool, p.refusal(t, nil).Code)
		time.Sleep(2 * time.Second) // in the bubble
		directory.gone = true
		_, err := p.Pin(t.Context(), worker(nil), launch.Task{Text: "Do it."})
		require.ErrorContains(t, err, "does not answer")
		directory.gone = false
		require.Equal(t, refusal.CodePending, p.refusal(t, nil).Code)
		time.Sleep(journal.AnnouncementRefresh * 2) // in the bubble
		require.NoError(t, p.bus.AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		require.Equal(t, refusal.CodeUnknownTool, p.refusal(t, nil).Code)
	})
}

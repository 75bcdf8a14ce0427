package pools

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// memory is since when the remembered tools and providers have not been announced, as far as this
// process knows.
type memory struct {
	tools, providers map[string]time.Time
}

func newMemory() *memory {
	return &memory{tools: map[string]time.Time{}, providers: map[string]time.Time{}}
}

// rememberFor is how long a name is remembered after its last announcement: the time that a
// process may take to restart.
const rememberFor = 10 * time.Second

// remember stores newly announced names and removes those that have not been announced for a
// while. If another process was faster, the next call reads what that process stored.
func (p *Pools) remember(ctx context.Context, m *memory) error {
	tools, providers, before, err := p.cfg.Launcher.ReadDirectory(ctx)
	if err != nil && !errors.Is(err, journal.ErrNotReady) {
		return err
	}
	after := m.update(before, tools, providers, time.Now())
	if maps.Equal(after.First, before.First) && slices.Equal(after.Providers, before.Providers) {
		return nil
	}
	err = p.cfg.Directory.PutOffers(ctx, after)
	if errors.Is(err, journal.ErrConflict) {
		return nil
	}
	return err
}

// update returns what to remember now.
func (m *memory) update(before journal.Offers, tools []events.ToolSpec, providers []string, now time.Time) journal.Offers {
	after := journal.Offers{First: map[string]string{}, Revision: before.Revision}
	living := map[string][]string{} // pools by tool
	for _, t := range tools {
		living[t.Name] = append(living[t.Name], t.Pool)
	}
	for name, pool := range before.First {
		if keep(m.tools, name, slices.Contains(living[name], pool), now) {
			after.First[name] = pool
		}
	}
	for name, pools := range living {
		if after.First[name] == "" {
			after.First[name] = slices.Min(pools)
		}
	}
	after.Providers = slices.Clone(providers)
	for _, name := range before.Providers {
		living := slices.Contains(providers, name)
		if keep(m.providers, name, living, now) && !living {
			after.Providers = append(after.Providers, name)
		}
	}
	slices.Sort(after.Providers)
	return after
}

// keep reports whether to remember a name: it is announced, or was a short time ago. gone is since
// when names have not been announced.
func keep(gone map[string]time.Time, name string, living bool, now time.Time) bool {
	since, known := gone[name]
	switch {
	case living:
		delete(gone, name)
		return true
	case !known:
		gone[name] = now
		return true
	case now.Sub(since) < rememberFor:
		return true
	}
	delete(gone, name)
	return false
}

package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// memories are what this gateway saw of announcements that have gone: since when nobody
// announces what is remembered. They belong to the goroutine of watchPools.
type memories struct {
	tools, providers map[string]time.Time
}

func newMemories() *memories {
	return &memories{tools: map[string]time.Time{}, providers: map[string]time.Time{}}
}

// rememberFor is how long what nobody announces any more is remembered: as long as a
// process may take to start again.
const rememberFor = 10 * time.Second

// remember writes down what is announced for the first time, and strikes out what was not
// announced for a while. Another gateway may be faster; then the next look sees what that
// one wrote.
func (g *Gateway) remember(ctx context.Context, m *memories) error {
	tools, providers, before, err := g.launcher.Look(ctx)
	if err != nil && !errors.Is(err, journal.ErrNotReady) {
		return err
	}
	after := m.after(before, tools, providers, time.Now())
	if maps.Equal(after.First, before.First) && slices.Equal(after.Providers, before.Providers) {
		return nil
	}
	err = g.cfg.Directory.PutOffers(ctx, after)
	if errors.Is(err, journal.ErrConflict) {
		return nil
	}
	return err
}

// after is what is to be remembered.
func (m *memories) after(before journal.Offers, tools []events.ToolSpec, providers []string, now time.Time) journal.Offers {
	after := journal.Offers{First: map[string]string{}, Revision: before.Revision}
	living := map[string][]string{} // pools by tool
	for _, t := range tools {
		living[t.Name] = append(living[t.Name], t.Pool)
	}
	for name, pool := range before.First {
		if slices.Contains(living[name], pool) {
			delete(m.tools, name)
			after.First[name] = pool
		} else if lately(m.tools, name, now) {
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
		if slices.Contains(providers, name) {
			delete(m.providers, name)
		} else if lately(m.providers, name, now) {
			after.Providers = append(after.Providers, name)
		}
	}
	slices.Sort(after.Providers)
	return after
}

// lately reports whether something that nobody announces was announced until shortly
// before, as far as was seen.
func lately(gone map[string]time.Time, name string, now time.Time) bool {
	since, known := gone[name]
	if !known {
		gone[name] = now
		return true
	}
	if now.Sub(since) < rememberFor {
		return true
	}
	delete(gone, name)
	return false
}

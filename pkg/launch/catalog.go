package launch

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// catalogAge is how long what the directory said is taken for true.
const catalogAge = time.Second

// catalog caches the directory. What is not in it is looked up again, once for
// all who miss something at the same time.
type catalog struct {
	directory journal.Directory
	clock     func() time.Time

	mu   sync.Mutex
	read time.Time
	seen offers
	// silent is until when nobody is asked what was announced before, since that
	// cannot be read.
	silent time.Time
}

// offers are what is announced, and what is remembered of that.
type offers struct {
	tools     []events.ToolSpec
	providers []string
	before    journal.Offers
}

func newCatalog(d journal.Directory, clock func() time.Time) *catalog {
	return &catalog{directory: d, clock: clock}
}

// at returns tools and providers as they were at the given time or later.
func (c *catalog) at(ctx context.Context, t time.Time) (offers, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && !c.read.Before(t) {
		return c.seen, nil
	}
	now := c.clock()
	var seen offers
	var err error
	if seen.tools, err = c.directory.Tools(ctx); err != nil {
		return offers{}, err
	}
	if seen.providers, err = c.directory.Providers(ctx); err != nil {
		return offers{}, err
	}
	if !now.Before(c.silent) {
		// Without it, as on a bus that was set up by an older build, the first pool by
		// name has a tool that several announce alike.
		if seen.before, err = c.directory.Offers(ctx); err != nil {
			c.silent = now.Add(journal.AnnouncementTTL)
		}
	}
	c.read, c.seen = now, seen
	return seen, nil
}

// resolve returns the tools of a definition and checks that its provider lives. pools
// are those of the tools that the run has already, by name.
func (c *catalog) resolve(ctx context.Context, a *events.Agent, pools map[string]string) ([]events.ToolSpec, error) {
	now := c.clock()
	seen, err := c.at(ctx, now.Add(-catalogAge))
	if err != nil {
		return nil, err
	}
	found, missing := seen.pick(a, pools)
	if missing == nil {
		return found, nil
	}
	if seen, err = c.at(ctx, now); err != nil {
		return nil, err
	}
	if found, missing = seen.pick(a, pools); missing != nil {
		return nil, missing
	}
	return found, nil
}

func (o *offers) pick(a *events.Agent, pools map[string]string) ([]events.ToolSpec, *Refusal) {
	if name := a.LLM.Provider; !slices.Contains(o.providers, name) {
		e := refuse(Unusable, CodeUnknownProvider, "no living planner announces the provider %q; living: %s", name, listed(o.providers))
		if slices.Contains(o.before.Providers, name) {
			e = refuse(Away, CodeProviderAway, "the provider %q was announced until just now, and no living planner announces it; try again", name)
		}
		e.Fields = map[string]any{"provider": name}
		return nil, e
	}
	found := make([]events.ToolSpec, 0, len(a.Tools))
	for _, ref := range a.Tools {
		pool, name := events.SplitTool(ref)
		if events.Reserved(name) { // whatever an actor announces
			e := refuse(Unusable, CodeUnknownTool, "the tool %q is Moorebus' own: a model has it where it is of use, leave it out", name)
			e.Fields = map[string]any{"tool": name}
			return nil, e
		}
		if pool == "" {
			pool = pools[name]
		}
		spec, err := o.pickTool(pool, name)
		if err != nil {
			err.Fields = map[string]any{"tool": ref}
			return nil, err
		}
		found = append(found, spec)
	}
	return found, nil
}

// pickTool finds the one tool of a name, in one pool or, where that is empty, in any.
// What several pools announce alike belongs to the one that announced it first.
func (o *offers) pickTool(pool, name string) (events.ToolSpec, *Refusal) {
	var found []events.ToolSpec
	for _, t := range o.tools {
		if t.Name == name && (pool == "" || t.Pool == pool) {
			found = append(found, t)
		}
	}
	first, remembered := o.before.First[name]
	switch {
	case len(found) == 0 && remembered && (pool == "" || pool == first):
		return events.ToolSpec{}, refuse(Away, CodeToolAway, "pool %s announced the tool %q until just now, and no living actor does; try again", first, name)
	case len(found) == 0 && pool != "":
		own := slices.DeleteFunc(slices.Clone(o.tools), func(t events.ToolSpec) bool { return t.Pool != pool })
		return events.ToolSpec{}, refuse(Unusable, CodeUnknownTool, "no living actor of pool %s announces the tool %q, or the operator has assigned it to another pool; living there: %s", pool, name, listed(namesOf(own)))
	case len(found) == 0:
		return events.ToolSpec{}, refuse(Unusable, CodeUnknownTool, "no living actor announces the tool %q; living: %s", name, listed(namesOf(o.tools)))
	}
	for _, other := range found[1:] {
		if other.Pool != found[0].Pool && !sameTool(other, found[0]) {
			return events.ToolSpec{}, refuse(Unusable, CodeAmbiguousTool, "the tool %q is announced by the pools %s and %s with different definitions; name it as %s/%s, "+
				"or have the operator say whose it is (`moorebus init --pool-tools %s=%s`)", name, found[0].Pool, other.Pool, found[0].Pool, name, found[0].Pool, name)
		}
	}
	if i := slices.IndexFunc(found, func(t events.ToolSpec) bool { return t.Pool == first }); i >= 0 {
		return found[i], nil
	}
	return found[0], nil
}

// sameTool reports whether two announcements differ in nothing but the pool.
func sameTool(a, b events.ToolSpec) bool {
	return a.Name == b.Name && a.Description == b.Description && a.Effect == b.Effect && a.Risk == b.Risk && a.Asks == b.Asks &&
		bytes.Equal(a.Schema, b.Schema)
}

func namesOf(tools []events.ToolSpec) []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return slices.Compact(names)
}

// listed writes names for a message, not too many of them.
func listed(names []string) string {
	const most = 20
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

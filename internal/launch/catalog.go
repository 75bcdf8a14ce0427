package launch

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// catalogAge is how long what the directory said is taken for true.
const catalogAge = time.Second

// settling is how long a name may be missing since its announcement is being renewed:
// the bus was away, or who announces it is started anew. It is as long as a living
// process needs to announce itself again, with some time to connect.
const settling = journal.AnnouncementRefresh * 3 / 2

// retryUnsettled is when a start that met with a missing name may be tried again.
const retryUnsettled = 2 * time.Second

// lookEvery is how often the directory is looked at beside starts, at most. It is less
// than catalogAge, so starts that come between two looks need not read.
const lookEvery = catalogAge / 2

// A read of what gateways remember may take recallTime, since starts wait for it. After a
// failure it is tried again after recallPause.
const (
	recallTime  = time.Second
	recallPause = 5 * time.Second
)

// catalog caches the directory. What is not in it is looked up again, once for
// all who miss something at the same time.
type catalog struct {
	directory journal.Directory
	clock     func() time.Time
	began     time.Time

	mu   sync.Mutex
	read time.Time
	now  offers
	// silent is until when what gateways remember is not read again, since that failed.
	silent time.Time
	// seen is when a tool or a provider was last announced, troubled when the directory
	// last did not answer.
	seen     map[string]time.Time
	troubled time.Time
}

// offers are what is announced, and what gateways remember of that.
type offers struct {
	tools     []events.ToolSpec
	providers []string
	before    journal.Offers
	// stale is why before is older than the rest, nil if it is not.
	stale error
}

func newCatalog(d journal.Directory, clock func() time.Time) *catalog {
	return &catalog{directory: d, clock: clock, began: clock(), seen: map[string]time.Time{}}
}

// The keys of [catalog.seen]; pool is empty for a tool of whatever pool.
func toolKey(pool, name string) string { return "tool " + pool + "/" + name }
func providerKey(name string) string   { return "provider " + name }

// at returns tools and providers as they were at the given time or later.
func (c *catalog) at(ctx context.Context, t time.Time) (offers, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && !c.read.Before(t) {
		return c.now, nil
	}
	now := c.clock()
	var found offers
	var err error
	if found.tools, err = c.directory.Tools(ctx); err == nil {
		found.providers, err = c.directory.Providers(ctx)
	}
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) { // the caller went away, not the directory
			c.troubled = c.clock()
		}
		return offers{}, err
	}
	if found.before, found.stale = c.recall(ctx, now); ctx.Err() != nil {
		return offers{}, ctx.Err()
	}
	c.read, c.now = now, found
	c.note(now)
	return found, nil
}

// recall returns what gateways remember, and with an error what they remembered when that
// was last read. A read that the caller gave up says nothing of the directory. The lock is
// held.
func (c *catalog) recall(ctx context.Context, now time.Time) (journal.Offers, error) {
	last := c.now.before
	if now.Before(c.silent) {
		return last, c.now.stale
	}
	asked, stop := context.WithTimeout(ctx, recallTime)
	defer stop()
	found, err := c.directory.Offers(asked)
	switch {
	case err == nil:
		return found, nil
	case ctx.Err() != nil:
	case errors.Is(err, journal.ErrDenied): // permissions of an older build
		c.silent = now.Add(journal.AnnouncementTTL)
	case errors.Is(err, journal.ErrNotReady): // no gateway has made the bucket yet, or it was removed
		last.Revision = 0
	default:
		c.troubled = c.clock()
		c.silent = c.troubled.Add(recallPause)
	}
	return last, err
}

// note remembers what is announced, and forgets what has been missing for long. The lock
// is held.
func (c *catalog) note(now time.Time) {
	maps.DeleteFunc(c.seen, func(_ string, at time.Time) bool { return now.Sub(at) >= settling })
	for i := range c.now.tools {
		t := &c.now.tools[i]
		c.seen[toolKey("", t.Name)], c.seen[toolKey(t.Pool, t.Name)] = now, now
	}
	for _, name := range c.now.providers {
		c.seen[providerKey(name)] = now
	}
}

// remembers reports whether another gateway saw a name announced a moment ago.
func (o *offers) remembers(key string) bool {
	for name, pool := range o.before.First {
		if key == toolKey("", name) || key == toolKey(pool, name) {
			return true
		}
	}
	return slices.ContainsFunc(o.before.Providers, func(name string) bool { return key == providerKey(name) })
}

// unsettled reports whether a name may be missing only since its announcement is being
// renewed: it was there a moment ago, here or at another gateway, the directory was away
// a moment ago, or no planner has come yet since this process was started.
func (c *catalog) unsettled(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	if at, known := c.seen[key]; known && now.Sub(at) < settling || !c.troubled.IsZero() && now.Sub(c.troubled) < settling {
		return true
	}
	return c.now.remembers(key) || len(c.now.providers) == 0 && now.Sub(c.began) < settling
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
	if seen, err = c.at(ctx, now.Add(1)); err != nil {
		return nil, err
	}
	if found, missing = seen.pick(a, pools); missing != nil {
		return nil, c.judged(missing)
	}
	return found, nil
}

// judged makes the refusal of a name that is being announced again one that passes.
func (c *catalog) judged(r *Refusal) *Refusal {
	if r.missing == "" || !c.unsettled(r.missing) {
		return r
	}
	return &Refusal{
		Kind: Unsettled, Code: CodeUnsettled, Fields: r.Fields, RetryAfter: retryUnsettled,
		Message: r.Message + "; announcements are being renewed, so try again",
	}
}

func (o *offers) pick(a *events.Agent, pools map[string]string) ([]events.ToolSpec, *Refusal) {
	if name := a.LLM.Provider; !slices.Contains(o.providers, name) {
		e := refuse(Unusable, CodeUnknownProvider, "no living planner announces the provider %q; living: %s", name, listed(o.providers))
		e.Fields, e.missing = map[string]any{"provider": name}, providerKey(name)
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
			if err.Code == CodeUnknownTool {
				err.missing = toolKey(pool, name)
			}
			return nil, err
		}
		found = append(found, spec)
	}
	return found, nil
}

// pickTool finds the one tool of a name, in one pool or, where that is empty, in any.
// What several pools announce alike belongs to the one that announced it first. While that
// is unknown the start is to be tried again: no pool takes another one's tool meanwhile.
func (o *offers) pickTool(pool, name string) (events.ToolSpec, *Refusal) {
	var found []events.ToolSpec
	for _, t := range o.tools {
		if t.Name == name && (pool == "" || t.Pool == pool) {
			found = append(found, t)
		}
	}
	switch {
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
	first := o.before.First[name]
	if first == "" && found[0].Pool != found[len(found)-1].Pool && o.unknown() {
		e := refuse(Unsettled, CodeUnsettled, "the tool %q is announced by the pools %s and %s, and which of them was first cannot be read now; try again, or name it as %s/%s",
			name, found[0].Pool, found[len(found)-1].Pool, found[0].Pool, name)
		e.RetryAfter = retryUnsettled
		return events.ToolSpec{}, e
	}
	if i := slices.IndexFunc(found, func(t events.ToolSpec) bool { return t.Pool == first }); i >= 0 {
		return found[i], nil
	}
	return found[0], nil
}

// unknown reports whether gateways may remember more than was read. Where nobody may read
// it, or nobody has written it, the first pool by name has a tool that several announce.
func (o *offers) unknown() bool {
	return o.stale != nil && !errors.Is(o.stale, journal.ErrDenied) && !errors.Is(o.stale, journal.ErrNotReady)
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

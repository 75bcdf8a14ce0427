package runstart

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// catalogAge is how long a read of the directory is reused.
const catalogAge = time.Second

// renewal is how long a missing name may be one whose announcement is being renewed: the bus was
// away, or the announcing process restarts. A process needs this long to announce again,
// including some time to connect.
const renewal = buckets.AnnouncementRefresh * 3 / 2

// retryMissing is when a start with a missing name may be retried.
const retryMissing = 2 * time.Second

// readEvery is the shortest interval between reads of [Launcher.ReadDirectory]. It is less than
// catalogAge, so starts between two reads use the cache.
const readEvery = catalogAge / 2

// The remembered announcements are read within rememberedTimeout, because starts wait for them.
// After a failure they are read again after rememberedPause.
const (
	rememberedTimeout = time.Second
	rememberedPause   = 5 * time.Second
)

// catalog caches the directory. A missing name causes one more read for all starts that miss a
// name at the same time.
type catalog struct {
	directory *announce.Directory
	clock     func() time.Time
	began     time.Time

	mu   sync.Mutex
	read time.Time
	now  offers
	// pools are those that Launcher.Pools read last, at walked.
	walked time.Time
	pools  []announce.Pool
	// pausedUntil is when remembered announcements are read again after a failure.
	pausedUntil time.Time
	// seen is when each tool and provider was last announced, failed when a read of the
	// directory last failed.
	seen   map[string]time.Time
	failed time.Time
}

// offers are the current announcements and those that gateways remember.
type offers struct {
	tools     []events.ToolSpec
	providers []string
	before    announce.Offers
	// stale is why before is older than the rest; nil if it is not.
	stale error
}

func newCatalog(d *announce.Directory, clock func() time.Time) *catalog {
	return &catalog{directory: d, clock: clock, began: clock(), seen: map[string]time.Time{}}
}

// The keys of [catalog.seen]; pool is empty for a tool of any pool.
func toolKey(pool, name string) string { return "tool " + pool + "/" + name }
func providerKey(name string) string   { return "provider " + name }

// since returns the directory as it was at time t or later.
func (c *catalog) since(ctx context.Context, t time.Time) (offers, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && !c.read.Before(t) {
		return c.now, nil
	}
	now := c.clock()
	var found offers
	var err error
	if c.walked.IsZero() || c.walked.Before(t) {
		found.tools, err = c.directory.Tools(ctx)
	} else {
		now = c.walked
		found.tools, err = c.directory.ToolsOf(ctx, c.pools)
	}
	if err == nil {
		// An actor of an older build may still be there.
		found.tools = slices.DeleteFunc(found.tools, func(t events.ToolSpec) bool { return t.Pool == events.ClientPool })
		found.providers, err = c.directory.Providers(ctx)
	}
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) { // a cancelled caller is no failure of the directory
			c.failed = c.clock()
		}
		return offers{}, err
	}
	if found.before, found.stale = c.remembered(ctx, now); ctx.Err() != nil {
		return offers{}, ctx.Err()
	}
	c.read, c.now = now, found
	c.markSeen(now)
	return found, nil
}

// walk reads the pools. The next call of since needs not read them again.
func (c *catalog) walk(ctx context.Context) ([]announce.Pool, error) {
	now := c.clock()
	pools, err := c.directory.Pools(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.walked, c.pools = now, pools
	return pools, nil
}

// remembered returns the announcements that gateways remember. With an error it returns those that
// were read last. The caller holds the lock.
func (c *catalog) remembered(ctx context.Context, now time.Time) (announce.Offers, error) {
	last := c.now.before
	if now.Before(c.pausedUntil) {
		return last, c.now.stale
	}
	reading, stop := context.WithTimeout(ctx, rememberedTimeout)
	defer stop()
	found, err := c.directory.Offers(reading)
	switch {
	case err == nil:
		return found, nil
	case ctx.Err() != nil:
	case errors.Is(err, journal.ErrDenied): // permissions of an older build
		c.pausedUntil = now.Add(buckets.AnnouncementTTL)
	case errors.Is(err, journal.ErrNotReady): // the bucket does not exist
		last.Revision = 0
	default:
		c.failed = c.clock()
		c.pausedUntil = c.failed.Add(rememberedPause)
	}
	return last, err
}

// markSeen notes when each name was last announced and drops old names. The caller holds the lock.
func (c *catalog) markSeen(now time.Time) {
	maps.DeleteFunc(c.seen, func(_ string, at time.Time) bool { return now.Sub(at) >= renewal })
	for i := range c.now.tools {
		t := &c.now.tools[i]
		c.seen[toolKey("", t.Name)], c.seen[toolKey(t.Pool, t.Name)] = now, now
	}
	for _, name := range c.now.providers {
		c.seen[providerKey(name)] = now
	}
}

func (o *offers) remembers(key string) bool {
	begin, pattern := strings.CutSuffix(key, "*")
	for name, pool := range o.before.First {
		for _, known := range []string{toolKey("", name), toolKey(pool, name)} {
			if key == known || pattern && strings.HasPrefix(known, begin) {
				return true
			}
		}
	}
	return slices.ContainsFunc(o.before.Providers, func(name string) bool { return key == providerKey(name) })
}

// mayReturn reports whether the announcement of a missing name may be being renewed: a gateway saw
// it a moment ago, the directory failed a moment ago, or no planner has announced itself since
// this process started.
func (c *catalog) mayReturn(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	if at, known := c.seen[key]; known && now.Sub(at) < renewal || !c.failed.IsZero() && now.Sub(c.failed) < renewal {
		return true
	}
	if begin, pattern := strings.CutSuffix(key, "*"); pattern {
		for known, at := range c.seen {
			if strings.HasPrefix(known, begin) && now.Sub(at) < renewal {
				return true
			}
		}
	}
	return c.now.remembers(key) || len(c.now.providers) == 0 && now.Sub(c.began) < renewal
}

// resolve returns the tools of a definition and checks that its providers are announced. pools are
// as in [Task]. The refusal asks for a retry if the announcement of a missing name may be being
// renewed.
func (c *catalog) resolve(ctx context.Context, a *events.Agent, pools map[string]string) ([]events.ToolSpec, error) {
	now := c.clock()
	seen, err := c.since(ctx, now.Add(-catalogAge))
	if err != nil {
		return nil, err
	}
	found, _, refused := seen.pick(a, pools)
	if refused == nil {
		return found, nil
	}
	if seen, err = c.since(ctx, now.Add(1)); err != nil {
		return nil, err
	}
	found, missing, refused := seen.pick(a, pools)
	if refused == nil {
		return found, nil
	}
	if missing != "" && c.mayReturn(missing) {
		return nil, pending(refused.Fields, "%s; announcements are being renewed, so try again", refused.Message)
	}
	return nil, refused
}

// pending returns the refusal of a start that may succeed in a moment.
func pending(fields map[string]any, format string, args ...any) *refusal.Error {
	e := refusal.New(refusal.Unavailable, refusal.CodePending, format, args...).With(fields)
	e.RetryAfter = retryMissing
	return e
}

// pick finds the tools of a definition and checks its providers. With a refusal it also returns the
// key of the missing name, if that is the reason.
func (o *offers) pick(a *events.Agent, pools map[string]string) (found []events.ToolSpec, missing string, refused *refusal.Error) {
	for _, name := range a.Providers() {
		if name != events.ClientProvider && !slices.Contains(o.providers, name) {
			return nil, providerKey(name), refusal.New(refusal.Unprocessable, refusal.CodeUnknownProvider,
				"no planner announces the provider %q%s; announced: %s", name, strict.DidYouMean(name, o.providers), listed(o.providers)).With(map[string]any{"provider": name})
		}
	}
	found = make([]events.ToolSpec, 0, len(a.Tools)+len(a.ClientTools))
	for _, ref := range a.Tools {
		pool, name := events.SplitTool(ref)
		if strings.HasPrefix(name, events.ReservedPrefix) { // actors cannot offer it
			return nil, "", refusal.New(refusal.Unprocessable, refusal.CodeUnknownTool,
				"the tool %q is built into Moorebus and added where it is useful; leave it out", name).With(map[string]any{"tool": name})
		}
		names := []string{name}
		begin, pattern := strings.CutSuffix(name, "*")
		if pattern {
			names = o.matching(pool, begin)
		}
		if len(names) == 0 {
			return nil, toolKey(pool, name), refusal.New(refusal.Unprocessable, refusal.CodeUnknownTool,
				"no announced tool begins with %q; announced: %s", begin, listed(namesOf(o.tools))).With(map[string]any{"tool": ref})
		}
		for _, name := range names {
			if pattern && (slices.ContainsFunc(found, named(name)) || slices.ContainsFunc(a.Tools, bare(name))) {
				continue // it is listed by its name, or another pattern found it
			}
			of := pool
			if of == "" {
				of = pools[name]
			}
			spec, refused := o.pickTool(of, name)
			if refused != nil {
				if refused.Code == refusal.CodeUnknownTool {
					missing = toolKey(of, name)
				}
				return nil, missing, refused.With(map[string]any{"tool": ref})
			}
			found = append(found, spec)
		}
	}
	for _, t := range a.ClientTools {
		if refused := o.checkClientTool(a, t.Name); refused != nil {
			return nil, "", refused
		}
		found = append(found, t.Spec())
	}
	return guided(found), "", nil
}

// matching returns the names of the announced tools that begin so, sorted. pool is empty for
// those of any pool.
func (o *offers) matching(pool, begin string) []string {
	var names []string
	for _, t := range o.tools {
		if strings.HasPrefix(t.Name, begin) && (pool == "" || t.Pool == pool) {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func named(name string) func(events.ToolSpec) bool {
	return func(t events.ToolSpec) bool { return t.Name == name }
}

// bare returns whether a reference names the tool, in whichever pool.
func bare(name string) func(ref string) bool {
	return func(ref string) bool { _, other := events.SplitTool(ref); return other == name }
}

// guided moves each guide of the tools into the description of the first tool that has it. So
// the model reads it once, and the log has what the model read.
func guided(tools []events.ToolSpec) []events.ToolSpec {
	var said []string
	for i := range tools {
		t := &tools[i]
		if t.Guide != "" && !slices.Contains(said, t.Guide) {
			said = append(said, t.Guide)
			t.Description = strings.TrimSpace(t.Description + "\n\n" + t.Guide)
		}
		t.Guide, t.Sandbox = "", nil // announcements alone have them
	}
	return tools
}

// checkClientTool refuses a client's tool that has the name of another one.
func (o *offers) checkClientTool(a *events.Agent, name string) *refusal.Error {
	where := ""
	if i := slices.IndexFunc(o.tools, func(t events.ToolSpec) bool { return t.Name == name }); i >= 0 {
		where = "is also announced by an actor of the pool " + o.tools[i].Pool
	} else if slices.ContainsFunc(a.Tools, func(ref string) bool { _, named := events.SplitTool(ref); return named == name }) {
		where = "stands under tools, too"
	}
	if where == "" {
		return nil
	}
	return refusal.New(refusal.Unprocessable, refusal.CodeAmbiguousTool,
		"client_tools: the name %q %s; give the client's tool another name", name, where).With(map[string]any{"tool": name})
}

// pickTool finds a tool by name, in one pool, or in any if pool is empty. A tool that several pools
// announce with one definition belongs to the pool that announced it first. While that pool is
// unknown the start must be retried, so no other pool can take the tool.
func (o *offers) pickTool(pool, name string) (events.ToolSpec, *refusal.Error) {
	var found []events.ToolSpec
	for _, t := range o.tools {
		if t.Name == name && (pool == "" || t.Pool == pool) {
			found = append(found, t)
		}
	}
	refuse := func(code, format string, args ...any) (events.ToolSpec, *refusal.Error) {
		return events.ToolSpec{}, refusal.New(refusal.Unprocessable, code, format, args...)
	}
	switch {
	case len(found) == 0 && pool != "":
		own := slices.DeleteFunc(slices.Clone(o.tools), func(t events.ToolSpec) bool { return t.Pool != pool })
		return refuse(refusal.CodeUnknownTool, "no actor of pool %s announces the tool %q, or the operator has assigned it to another pool%s; announced there: %s",
			pool, name, strict.DidYouMean(name, namesOf(own)), listed(namesOf(own)))
	case len(found) == 0:
		return refuse(refusal.CodeUnknownTool, "no actor announces the tool %q%s; announced: %s", name, strict.DidYouMean(name, namesOf(o.tools)), listed(namesOf(o.tools)))
	}
	services := servicesOf(found)
	found, unclear := strictest(found)
	if unclear != "" {
		return events.ToolSpec{}, pending(nil, "actors of the pool %s announce the tool %q with different approvals; try again when all of them have one tool file", unclear, name)
	}
	for _, other := range found[1:] {
		if !SameTool(other, found[0]) {
			return refuse(refusal.CodeAmbiguousTool, "the tool %q is announced by the pools %s and %s with different definitions; name it as %s/%s, "+
				"or assign it to one pool (`moorebus init --pool-tools %s=%s`)", name, found[0].Pool, other.Pool, found[0].Pool, name, found[0].Pool, name)
		}
	}
	if len(services) > 1 {
		return refuse(refusal.CodeAmbiguousTool, "the tool %q is offered by the services %s; rename it in all but one of them",
			name, strings.Join(services, ", "))
	}
	first, last := o.before.First[name], found[len(found)-1].Pool
	if first == "" && found[0].Pool != last && o.mayRememberMore() {
		return events.ToolSpec{}, pending(nil, "the tool %q is announced by the pools %s and %s, and it cannot be read now which was first; try again, or name it as %s/%s",
			name, found[0].Pool, last, found[0].Pool, name)
	}
	if i := slices.IndexFunc(found, func(t events.ToolSpec) bool { return t.Pool == first }); i >= 0 {
		return found[i], nil
	}
	return found[0], nil
}

// servicesOf returns the NATS services that have any of the tools, sorted.
func servicesOf(tools []events.ToolSpec) []string {
	var names []string
	for _, t := range tools {
		names = append(names, t.Services...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// mayRememberMore reports whether gateways may remember more than was read. Without permission to
// read it, or before it is written, the first pool by name owns a shared tool.
func (o *offers) mayRememberMore() bool {
	return o.stale != nil && !errors.Is(o.stale, journal.ErrDenied) && !errors.Is(o.stale, journal.ErrNotReady)
}

// SameTool reports whether two announcements are equal except for the pool and the sandbox.
func SameTool(a, b events.ToolSpec) bool {
	return a.Name == b.Name && a.Description == b.Description && a.Effect == b.Effect && a.Risk == b.Risk && a.Asks == b.Asks && a.Guide == b.Guide &&
		bytes.Equal(a.Schema, b.Schema) && slices.Equal(a.Services, b.Services) && reflect.DeepEqual(a.Approval, b.Approval)
}

func namesOf(tools []events.ToolSpec) []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return slices.Compact(names)
}

// listed joins names for a message, up to 20.
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

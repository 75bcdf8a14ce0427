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

	mu        sync.Mutex
	read      time.Time
	tools     []events.ToolSpec
	providers []string
}

func newCatalog(d journal.Directory, clock func() time.Time) *catalog {
	return &catalog{directory: d, clock: clock}
}

// at returns tools and providers as they were at the given time or later.
func (c *catalog) at(ctx context.Context, t time.Time) ([]events.ToolSpec, []string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && !c.read.Before(t) {
		return c.tools, c.providers, nil
	}
	now := c.clock()
	tools, err := c.directory.Tools(ctx)
	if err != nil {
		return nil, nil, err
	}
	providers, err := c.directory.Providers(ctx)
	if err != nil {
		return nil, nil, err
	}
	c.read, c.tools, c.providers = now, tools, providers
	return tools, providers, nil
}

// resolve returns the tools of a definition and checks that its provider lives.
func (c *catalog) resolve(ctx context.Context, a *events.Agent) ([]events.ToolSpec, error) {
	now := c.clock()
	tools, providers, err := c.at(ctx, now.Add(-catalogAge))
	if err != nil {
		return nil, err
	}
	found, missing := pick(a, tools, providers)
	if missing == nil {
		return found, nil
	}
	if tools, providers, err = c.at(ctx, now); err != nil {
		return nil, err
	}
	found, missing = pick(a, tools, providers)
	if missing != nil {
		return nil, missing
	}
	return found, nil
}

func pick(a *events.Agent, tools []events.ToolSpec, providers []string) ([]events.ToolSpec, *Refusal) {
	if !slices.Contains(providers, a.LLM.Provider) {
		e := refuse(Unusable, CodeUnknownProvider, "no living planner announces the provider %q; living: %s", a.LLM.Provider, listed(providers))
		e.Fields = map[string]any{"provider": a.LLM.Provider}
		return nil, e
	}
	found := make([]events.ToolSpec, 0, len(a.Tools))
	for _, name := range a.Tools {
		if events.Reserved(name) { // whatever an actor announces
			e := refuse(Unusable, CodeUnknownTool, "the tool %q is Moorebus' own: a model has it where it is of use, leave it out", name)
			e.Fields = map[string]any{"tool": name}
			return nil, e
		}
		spec, err := pickTool(name, tools)
		if err != nil {
			err.Fields = map[string]any{"tool": name}
			return nil, err
		}
		found = append(found, spec)
	}
	return found, nil
}

func pickTool(name string, tools []events.ToolSpec) (events.ToolSpec, *Refusal) {
	var found []events.ToolSpec
	for _, t := range tools {
		if t.Name == name {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return events.ToolSpec{}, refuse(Unusable, CodeUnknownTool, "no living actor announces the tool %q; living: %s", name, listed(namesOf(tools)))
	}
	for _, other := range found[1:] {
		if other.Pool != found[0].Pool && !sameTool(other, found[0]) {
			return events.ToolSpec{}, refuse(Unusable, CodeAmbiguousTool, "the tool %q is announced by the pools %s and %s with different definitions; rename one, or make them equal", name, found[0].Pool, other.Pool)
		}
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

package backup

import (
	"context"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// holder says which runs come back paused; nil: none.
func (r *restorer) holder() func(context.Context, events.Run, *reducer.Memory) (bool, error) {
	switch r.o.Hold {
	case HoldAll:
		return func(context.Context, events.Run, *reducer.Memory) (bool, error) { return true, nil }
	case HoldOnce:
		known := sync.OnceValues(func() (seen, error) { return r.a.agents() })
		return func(_ context.Context, run events.Run, mem *reducer.Memory) (bool, error) {
			var delegates []string
			for name, t := range mem.Tools {
				switch {
				case t.Pool == events.AgentsPool:
					delegates = append(delegates, name)
				case !tool.Effect(t.Effect).Repeatable():
					return true, nil
				}
			}
			if len(delegates) == 0 {
				return false, nil
			}
			agents, err := known()
			return err != nil || agents.once(run.Namespace, delegates), err
		}
	}
	return nil
}

// agentOf names an agent of a namespace.
type agentOf struct{ namespace, name string }

// seen are the tools that the backup's runs pinned, by the agent.
type seen map[agentOf]map[string]events.ToolSpec

// agents reads what the runs of the backup pinned for their agents. Which agents are called
// by which tools stands in files of the roles alone, so an agent is found by its tool's name.
func (a *Archive) agents() (seen, error) {
	all, codec := seen{}, new(events.Codec)
	for _, run := range a.order {
		rec, err := a.record(a.runs[run].places[0])
		if err != nil {
			return nil, err
		}
		e, err := codec.Decode(rec.Body)
		if err != nil {
			continue // verifying says so
		}
		start, ok := e.Data.(*events.Start)
		if !ok {
			continue
		}
		of := agentOf{run.Namespace, start.Agent.Name}
		if all[of] == nil {
			all[of] = map[string]events.ToolSpec{}
		}
		for _, t := range start.Tools {
			if had, twice := all[of][t.Name]; !twice || tool.Effect(had.Effect).Repeatable() {
				all[of][t.Name] = t
			}
		}
	}
	return all, nil
}

// once reports whether one of the agents that the tools call may have a tool of class once. So
// may an agent of which the backup has no run.
func (s seen) once(namespace string, delegates []string) bool {
	visited := map[agentOf]bool{}
	var may func(delegate string) bool
	may = func(delegate string) bool {
		of := agentOf{namespace, strings.TrimPrefix(delegate, agentfile.HandoffPrefix)}
		if visited[of] {
			return false
		}
		visited[of] = true
		tools, known := s[of]
		if !known {
			return true
		}
		for _, t := range tools {
			if t.Pool == events.AgentsPool && may(t.Name) || t.Pool != events.AgentsPool && !tool.Effect(t.Effect).Repeatable() {
				return true
			}
		}
		return false
	}
	for _, name := range delegates {
		if may(name) {
			return true
		}
	}
	return false
}

package reducer

import (
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// clientTools is the revision that brought tools of the run's own client.
const clientTools = 5

// toolsSince is the revision that brought the form of a run's tools.
func toolsSince(tools []events.ToolSpec) int {
	if slices.ContainsFunc(tools, func(t events.ToolSpec) bool { return t.Client }) {
		return clientTools
	}
	return 1
}

// checkTools refuses tools of the provider that are none, and of the client that are not its
// own. a may be nil.
func checkTools(a *events.Agent, tools []events.ToolSpec) error {
	if a != nil {
		if err := a.CheckProviderTools(); err != nil {
			return err
		}
	}
	return checkClientTools(tools)
}

// checkClientTools refuses tools that claim to be the client's and are not in its pool.
func checkClientTools(tools []events.ToolSpec) error {
	for i := range tools {
		t := &tools[i]
		if t.Client && (t.Pool != events.ClientPool || t.Timeout <= 0 || t.Timeout > events.MaxClientTimeout) {
			return fmt.Errorf("the client's tool %q is not in the pool %q with a timeout above 0 and of at most %s",
				t.Name, events.ClientPool, time.Duration(events.MaxClientTimeout))
		}
	}
	return nil
}

// clientTimeout is how long the client has for a call of a tool.
func (mem *Memory) clientTimeout(tool string) time.Duration {
	if t := mem.Tools[tool].Timeout; t > 0 {
		return time.Duration(t)
	}
	return time.Duration(events.ClientTimeout) // a fork's definition may leave out the tool of an open call
}

// ClientCalls returns the calls that wait for the run's own client, in the order of the
// reply: those that have gone out, and have no result. Each has its [CallState.Deadline].
func (mem *Memory) ClientCalls() []CallState {
	var open []CallState
	for i := range mem.Control.Calls {
		if call := &mem.Control.Calls[i]; call.WaitsForClient() {
			open = append(open, *call)
		}
	}
	return open
}

// WaitsForClient reports whether the call has gone out to the run's own client and has no
// result.
func (c *CallState) WaitsForClient() bool { return c.Client && !c.Answered && c.Deadline != "" }

// Expires returns until when the client may answer the call; false while it has not gone
// out.
func (c *CallState) Expires() (at time.Time, known bool) {
	at, err := time.Parse(time.RFC3339, c.Deadline)
	return at, err == nil
}

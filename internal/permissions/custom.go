package permissions

import (
	"slices"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Custom is the name of the user that serves the states of an application's own graph.
const Custom = "custom"

// custom returns that user, if the table has such states.
func (l Layout) custom() []User {
	builtIn := reducer.DefaultTable().States()
	own := slices.DeleteFunc(l.Table.States(), func(s events.State) bool { return l.Table.Terminal(s) || slices.Contains(builtIn, s) })
	if len(own) == 0 {
		return nil
	}
	return []User{l.user(Custom, func(g *natsbus.Grants) {
		l.worker(g, own, "")
		g.Consume(inbox(events.DefaultPool, own...))
	})}
}

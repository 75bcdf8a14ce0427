package sim

import (
	"context"
	"log/slog"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
	"github.com/moorebus/moorebus/pkg/worker"
)

// Roles that stand in for the real ones where those never append an event that
// the table has. The loop is the real one.

func reflecting(a *events.Agent) { a.Config.ReflectEveryNSteps = 1 }

// standPlanner is a planner that appends the payloads, one after the other, and
// then an answer.
func standPlanner(first ...events.Payload) func(*process, string, *runlog.Store) runner {
	plan := func(_ events.Run, mem *reducer.Memory, _ reducer.Effect) worker.Work {
		var next events.Payload = &events.LLMFinalAnswer{MessageID: "last", Reply: events.Reply{Content: lastWords}}
		for _, p := range slices.Backward(first) {
			if !slices.ContainsFunc(mem.Trace, func(e reducer.TraceEntry) bool { return e.Event == string(p.Type()) }) {
				next = p
			}
		}
		return func(context.Context) worker.Result { return worker.Done(next) }
	}
	return func(p *process, role string, store *runlog.Store) runner {
		if role != rolePlanner {
			return nil
		}
		return p.standIn(role, store, journal.Inbox{States: []events.State{events.Planning}, Pool: events.DefaultPool},
			map[reducer.Kind]worker.Handler{reducer.KindPlan: worker.HandlerFunc(plan)},
			func(ctx context.Context) error {
				return p.sim.AnnounceProviders(ctx, "stand-in", []string{"scripted"})
			})
	}
}

func (p *process) standIn(role string, store *runlog.Store, inbox journal.Inbox, handlers map[reducer.Kind]worker.Handler, announce runner) runner {
	w, err := worker.New(worker.Config{
		Role: role, Instance: "stand-in", Store: store, Queue: p.sim, Feed: p.sim, Inboxes: []journal.Inbox{inbox}, Handlers: handlers,
	})
	p.w.require(err)
	return func(ctx context.Context) error {
		return worker.RunAnnounced(ctx, slog.New(slog.DiscardHandler), announce, w.Run)
	}
}

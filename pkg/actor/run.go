// Package actor runs custom tools for the runs of an installation. A process takes the
// calls of one or more pools, runs them, and appends their results.
//
// An actor needs no model keys and no planner. It announces its tools on the bus, so agents
// can name them. Only the actor has the tools' credentials. A call that needs an approval
// runs only if the log has the approval of that call with those arguments.
package actor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Options configure an actor.
type Options struct {
	// Bus is where the runs are. Required.
	Bus journal.Bus
	// Tools are the tools of this process. Run closes those that have a Close method.
	Tools []tool.Tool
	// Sources provide further tools while the actor runs, such as those of an MCP server.
	Sources []tool.Source
	// Instance names the process in its events and among the actors of the bus.
	// Required. Actors that live at the same time have different names.
	Instance string
	// Pools are the pools to serve. Default: the pools of all tools.
	Pools []string
	// Secrets are texts, such as the tools' credentials, that are replaced wherever
	// they turn up in a result. A text of fewer than 6 bytes is an error. Patterns are
	// regular expressions (RE2) whose matches are replaced.
	Secrets, Patterns []string
	// Concurrency is how many calls of one pool run at once. Default 64.
	Concurrency int
	// Drain is how long calls may continue after the context of [Run] has ended. Default 8 s.
	Drain time.Duration
	// Logger gets the actor's own log. Default: discarded.
	Logger *slog.Logger
}

// Run announces the tools and runs calls until ctx ends. It then waits for the calls in
// flight, at most Drain, and withdraws the announcement. The error is nil if ctx ended it.
// If the process dies, another actor of the pool takes over its calls in flight.
func Run(ctx context.Context, o Options) (err error) {
	if o.Bus == nil || len(o.Tools)+len(o.Sources) == 0 {
		return errors.New("actor: Bus and at least one tool or source are required")
	}
	tools, err := toolset.NewWith(toolset.Options{Breakers: true, Sources: o.Sources}, o.Tools...)
	if err != nil {
		return fmt.Errorf("actor: %w", err)
	}
	defer func() { err = errors.Join(err, tools.Close()) }()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	base := worker.Base{
		Instance: o.Instance, Store: runlog.New(runlog.Options{Log: o.Bus, Logger: o.Logger}), Queue: o.Bus, Feed: o.Bus,
		Concurrency: o.Concurrency, Drain: o.Drain, Logger: o.Logger,
	}
	a, err := actor.New(actor.Config{
		Base: base, KV: o.Bus, Blobs: o.Bus, Tools: tools, Pools: o.Pools,
		Results: toolcall.Results{Secrets: o.Secrets, Patterns: o.Patterns},
	})
	if err != nil {
		return err
	}
	defer tools.Start(ctx, o.Logger)()
	tools.Ready(ctx)
	return a.Run(ctx)
}

// Tools returns every tool that a living actor announces on the bus, sorted by name and pool. The error is
// the bus's.
func Tools(ctx context.Context, bus journal.Bus) ([]events.ToolSpec, error) {
	return announce.NewDirectory(bus, slog.New(slog.DiscardHandler)).Tools(ctx)
}

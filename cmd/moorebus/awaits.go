package main

import (
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
)

// awaitsEvery is how often a command that follows a run asks for which pool it waits. No event
// tells it.
const awaitsEvery = 3 * time.Second

// followAwaits calls say with a line whenever the run begins to wait for a pool, and with an empty
// one when that is over, until stop is called. A question that fails says nothing.
func (c *client) followAwaits(ctx context.Context, id string, say func(line string)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		ticker := time.NewTicker(awaitsEvery)
		defer ticker.Stop()
		for said := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			waits, err := c.awaits(ctx, id)
			line := ""
			if waits != nil {
				line = print.WaitsFor(waits)
			}
			if err == nil && line != said {
				say(line)
				said = line
			}
		}
	})
	return func() { cancel(); asking.Wait() }
}

// awaits returns for which pool the run waits now; nil: for none. A gateway has it in its list,
// without the run's memory.
func (c *client) awaits(ctx context.Context, id string) (*runs.WaitsFor, error) {
	if c.controller != nil {
		state, err := c.state(ctx, id)
		return state.WaitsFor, err
	}
	page, err := requests.ListRuns.Call(ctx, c.API, requests.RunList{Query: list.Query{Filters: list.Filters{"id_prefix": id}, Limit: 1}})
	if err != nil || len(page.Runs) == 0 {
		return nil, err
	}
	return page.Runs[0].WaitsFor, nil
}

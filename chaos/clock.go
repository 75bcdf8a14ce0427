package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// clockwork is the agent that a schedule starts. A quota bounds how many of its runs work at
// once, so each is queued and admitted.
const clockwork = "clockwork"

// clock starts runs by a schedule while there are faults.
type clock struct {
	// runs are those that the gateway said it started.
	runs []string
}

// put stores the quota, and then the schedule.
func (*clock) put(ctx context.Context, c *client) error {
	if err := c.do(ctx, http.MethodPut, "/v1/quotas/default."+clockwork, map[string]any{"active": 2}, nil); err != nil {
		return err
	}
	return c.do(ctx, http.MethodPut, "/v1/schedules/chaos", map[string]any{"every": "1s", "agent": clockwork, "task": "Tick.", "missed": "all"}, nil)
}

// stop waits until the schedule has started a run, for patience at most: the faults of a short
// game can leave it no gateway that leads. Then it ends the firings.
func (k *clock) stop(ctx context.Context, c *client, patience time.Duration) error {
	for until := time.Now().Add(patience); ; {
		if err := k.look(ctx, c); err != nil {
			return err
		}
		if len(k.runs) > 0 || time.Now().After(until) {
			break
		}
		if !pause(ctx, time.Second) {
			return ctx.Err()
		}
	}
	err := c.do(ctx, http.MethodDelete, "/v1/schedules/chaos", nil, nil)
	if r := refused(err); r != nil && r.Code == "schedule_not_found" {
		return nil // the answer to the first try was lost
	}
	return err
}

// look notes which runs the gateway says the schedule started.
func (k *clock) look(ctx context.Context, c *client) error {
	var schedule struct {
		History []struct {
			Run     string `json:"run_id"`
			Outcome string `json:"outcome"`
		} `json:"history"`
	}
	if err := c.do(ctx, http.MethodGet, "/v1/schedules/chaos", nil, &schedule); err != nil {
		return err
	}
	for _, firing := range schedule.History {
		if firing.Outcome == "started" {
			k.runs = append(k.runs, firing.Run)
		}
	}
	return nil
}

// scheduled reports whether the event is the first one of a run that the schedule started.
func (e *event) scheduled() bool {
	var data struct {
		Agent struct{ Name string }
	}
	return e.Type == "Start" && decode(e, &data) == nil && data.Agent.Name == clockwork
}

// check holds the scheduled runs to the log: each firing started one run, and each run was
// admitted once.
func (k *clock) check(a *audit, r *report) {
	for i, run := range k.runs {
		if slices.Contains(k.runs[:i], run) {
			r.found("schedule: two firings started run " + run)
		}
		if a.runs[run] == nil {
			r.found("schedule: run " + run + " was started and is not in the log")
		}
	}
	for _, h := range a.runs {
		if !h.events[0].scheduled() {
			continue
		}
		r.scheduled++
		admitted := 0
		for _, e := range h.events {
			if e.Type == "Admitted" {
				admitted++
			}
		}
		if admitted != 1 {
			r.found(fmt.Sprintf("quota: run %s was admitted %d times\n%s", h.run, admitted, h))
		}
	}
	if r.scheduled == 0 {
		r.found("schedule: it has started no run")
	}
}

// scheduledScenario is the scenario of a run that the schedule started: nobody meddles with it.
func scheduledScenario(run string) *scenario {
	return &scenario{index: -1, run: run, kind: "scheduled", mode: "task", seed: hash(run)}
}

package requests

import (
	"cmp"
	"context"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/schedules"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// scheduleCodes are of requests about one schedule.
var scheduleCodes = []string{refusal.CodeBadSchedule, refusal.CodeScheduleNotFound}

// The inputs and answers of requests about schedules, and the names that the description gives them.
type (
	schedule       schedules.Schedule
	scheduleBody   schedules.Definition
	scheduleFiring schedules.Firing
	// ScheduleList has the schedules of a namespace.
	ScheduleList struct {
		Schedules []schedules.Schedule `json:"schedules"`
	}
	// ScheduleView names a schedule, and how many of its firings are shown.
	ScheduleView struct {
		Named
		Next int `query:"next" doc:"How many next firings to show, 1 to 100. Default: 10."`
	}
	// NewSchedule is a schedule and its name.
	NewSchedule struct {
		Named
		Definition schedules.Definition `body:""`
	}
	// Removed is the answer to the removal of a schedule.
	Removed struct {
		Removed bool `json:"removed"`
	}
)

// The requests about schedules.
var (
	ListSchedules = route.Define(route.Route{
		Pattern: "GET /v1/schedules", Summary: "Lists the schedules of the namespace by name, each with its next firing and the last one.",
	}, func(ctx context.Context, c *control.Controller, in Scope) (ScheduleList, error) {
		all, err := c.Schedules(ctx, in.Namespace)
		return ScheduleList{all}, err
	})
	GetSchedule = route.Define(route.Route{
		Pattern: "GET /v1/schedules/{name}", Summary: "Shows a schedule with its next firings, those that are pending, and the last ones.", Answer: schedule{}, Codes: scheduleCodes,
	}, func(ctx context.Context, c *control.Controller, in ScheduleView) (schedules.Schedule, error) {
		return c.Schedule(ctx, in.Namespace, in.Name, cmp.Or(in.Next, schedules.DefaultNext))
	})
	PutSchedule = route.Define(route.Route{
		Pattern: "PUT /v1/schedules/{name}", Summary: "Stores or replaces a schedule. New times apply from now on.",
		Body: scheduleBody{}, Answer: schedule{}, Codes: []string{refusal.CodeBadSchedule, refusal.CodeAgentNotFound, refusal.CodeBadAgent, refusal.CodeEmptyTask},
		Example: `{"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "agent": "researcher", "task": "What is new?", "missed": "once", "overlap": "skip"}`,
	}, func(ctx context.Context, c *control.Controller, in NewSchedule) (schedules.Schedule, error) {
		return c.PutSchedule(ctx, in.Namespace, in.Name, in.Definition)
	})
	DeleteSchedule = route.Define(route.Route{
		Pattern: "DELETE /v1/schedules/{name}", Summary: "Removes a schedule. Its runs continue.", Codes: scheduleCodes,
	}, func(ctx context.Context, c *control.Controller, in Named) (Removed, error) {
		return Removed{true}, c.RemoveSchedule(ctx, in.Namespace, in.Name)
	})
	PauseSchedule = OfName(route.Route{
		Pattern: "POST /v1/schedules/{name}/pause", Summary: "Stops the firings of a schedule until it is resumed.", Answer: schedule{}, Codes: scheduleCodes,
	}, (*control.Controller).PauseSchedule)
	ResumeSchedule = OfName(route.Route{
		Pattern: "POST /v1/schedules/{name}/resume", Summary: "Resumes a schedule. Firings during the pause do not count as missed.",
		Answer: schedule{}, Codes: scheduleCodes,
	}, (*control.Controller).ResumeSchedule)
	RunSchedule = OfName(route.Route{
		Pattern: "POST /v1/schedules/{name}/run", Summary: "Starts a run of a schedule now, whether the last one has ended or not, and returns its outcome.",
		Answer: scheduleFiring{}, Codes: with(scheduleCodes, refusal.CodeTooManyQueued),
	}, (*control.Controller).RunSchedule)
)

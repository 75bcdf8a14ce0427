package schedules

import (
	"cmp"
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// scheduleCodes are of requests about one schedule.
var scheduleCodes = []string{row.CodeBadSchedule, row.CodeScheduleNotFound}

// The inputs and answers of requests about schedules, and the names that the description gives them.
type (
	schedule       Schedule
	scheduleBody   Definition
	scheduleFiring Firing
	// ScheduleList has the schedules of a namespace.
	ScheduleList struct {
		Schedules []Schedule `json:"schedules"`
	}
	// ScheduleView names a schedule, and how many of its firings are shown.
	ScheduleView struct {
		requests.Named
		Next int `query:"next" doc:"How many next firings to show, 1 to 100. Default: 10."`
	}
	// NewSchedule is a schedule and its name.
	NewSchedule struct {
		requests.Named
		Definition Definition `body:""`
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
	}, func(ctx context.Context, s *Scheduler, in requests.Scope) (ScheduleList, error) {
		all, err := s.Schedules(ctx, in.Namespace)
		return ScheduleList{all}, err
	})
	GetSchedule = route.Define(route.Route{
		Pattern: "GET /v1/schedules/{name}", Summary: "Shows a schedule with its next firings, those that are pending, and the last ones.", Answer: schedule{}, Codes: scheduleCodes,
	}, func(ctx context.Context, s *Scheduler, in ScheduleView) (Schedule, error) {
		return s.Schedule(ctx, in.Namespace, in.Name, cmp.Or(in.Next, DefaultNext))
	})
	PutSchedule = route.Define(route.Route{
		Pattern: "PUT /v1/schedules/{name}", Summary: "Stores or replaces a schedule. New times apply from now on.",
		Body: scheduleBody{}, Answer: schedule{}, Codes: []string{row.CodeBadSchedule, refusal.CodeAgentNotFound, refusal.CodeBadAgent, refusal.CodeEmptyTask},
		Example: `{"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "agent": "researcher", "task": "What is new?", "missed": "once", "overlap": "skip"}`,
	}, func(ctx context.Context, s *Scheduler, in NewSchedule) (Schedule, error) {
		return s.PutSchedule(ctx, in.Namespace, in.Name, in.Definition)
	})
	DeleteSchedule = route.Define(route.Route{
		Pattern: "DELETE /v1/schedules/{name}", Summary: "Removes a schedule. Its runs continue.", Codes: scheduleCodes,
	}, func(ctx context.Context, s *Scheduler, in requests.Named) (Removed, error) {
		return Removed{true}, s.RemoveSchedule(ctx, in.Namespace, in.Name)
	})
	PauseSchedule = requests.OfName(route.Route{
		Pattern: "POST /v1/schedules/{name}/pause", Summary: "Stops the firings of a schedule until it is resumed.", Answer: schedule{}, Codes: scheduleCodes,
	}, (*Scheduler).PauseSchedule)
	ResumeSchedule = requests.OfName(route.Route{
		Pattern: "POST /v1/schedules/{name}/resume", Summary: "Resumes a schedule. Firings during the pause do not count as missed.",
		Answer: schedule{}, Codes: scheduleCodes,
	}, (*Scheduler).ResumeSchedule)
	RunSchedule = requests.OfName(route.Route{
		Pattern: "POST /v1/schedules/{name}/run", Summary: "Starts a run of a schedule now, whether the last one has ended or not, and returns its outcome.",
		Answer: scheduleFiring{}, Codes: slices.Concat(scheduleCodes, []string{refusal.CodeTooManyQueued}),
	}, (*Scheduler).RunSchedule)
)

// rows returns the requests of schedules.
func (s *Scheduler) rows() []route.Route {
	return []route.Route{
		ListSchedules.Row(s), GetSchedule.Row(s), PutSchedule.Row(s), DeleteSchedule.Row(s),
		PauseSchedule.Row(s), ResumeSchedule.Row(s), RunSchedule.Row(s),
	}
}

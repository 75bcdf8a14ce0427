package httpapi

import (
	"context"
	"net/http"
	"slices"

	"github.com/moorebus/moorebus/internal/control/schedules"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// scheduleCodes are of requests about one schedule.
var scheduleCodes = []string{refusal.CodeBadNamespace, refusal.CodeBadSchedule, refusal.CodeScheduleNotFound}

// scheduleList is the answer to GET /v1/schedules.
type scheduleList struct {
	Schedules []schedules.Schedule `json:"schedules"`
}

// Answers and bodies by the names that the description gives them.
type (
	schedule       schedules.Schedule
	scheduleBody   schedules.Definition
	scheduleFiring schedules.Firing
	removed        struct {
		Removed bool `json:"removed"`
	}
)

// scheduleRows are about schedules.
func (s *Server) scheduleRows() []route.Route {
	return []route.Route{
		{
			Pattern: "GET /v1/schedules", Handle: route.JSON(http.StatusOK, s.getSchedules), Answer: scheduleList{}, Codes: []string{refusal.CodeBadNamespace},
			Summary: "Lists the schedules of the namespace by name, each with its next firing and the last one.",
		},
		{
			Pattern: "GET /v1/schedules/{name}", Handle: route.JSON(http.StatusOK, s.getSchedule), Summary: "Shows a schedule with its next firings, those that are pending, and the last ones.",
			Query:  []route.Parameter{{Name: "next", Description: "How many next firings to show, 1 to 100. Default: 10."}},
			Answer: schedule{}, Codes: scheduleCodes,
		},
		{
			Pattern: "PUT /v1/schedules/{name}", Handle: route.JSON(http.StatusOK, s.putSchedule), Summary: "Stores a schedule, in place of one of its name. New times count from now on.",
			Body: scheduleBody{}, Answer: schedule{}, Codes: []string{refusal.CodeBadNamespace, refusal.CodeBadSchedule, refusal.CodeAgentNotFound, refusal.CodeBadAgent, refusal.CodeEmptyTask},
			Example: `{"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "agent": "researcher", "task": "What is new?", "missed": "once", "overlap": "skip"}`,
		},
		{
			Pattern: "DELETE /v1/schedules/{name}", Handle: route.JSON(http.StatusOK, s.deleteSchedule), Summary: "Removes a schedule. Its runs go on.",
			Answer: removed{}, Codes: scheduleCodes,
		},
		{
			Pattern: "POST /v1/schedules/{name}/pause", Handle: route.JSON(http.StatusOK, scheduleCommand(s.control.PauseSchedule)), Summary: "Stops the firings of a schedule until it is resumed.",
			Answer: schedule{}, Codes: scheduleCodes,
		},
		{
			Pattern: "POST /v1/schedules/{name}/resume", Handle: route.JSON(http.StatusOK, scheduleCommand(s.control.ResumeSchedule)), Summary: "Lets a paused schedule fire again. What would have been due meanwhile does not count as missed.",
			Answer: schedule{}, Codes: scheduleCodes,
		},
		{
			Pattern: "POST /v1/schedules/{name}/run", Handle: route.JSON(http.StatusOK, scheduleCommand(s.control.RunSchedule)), Summary: "Starts a run of a schedule now, whether the last one has ended or not, and says what became of it.",
			Answer: scheduleFiring{}, Codes: append(slices.Clone(scheduleCodes), refusal.CodeTooManyQueued),
		},
	}
}

func (s *Server) getSchedules(ctx context.Context, r *route.Request) (any, error) {
	if _, err := route.Parameters(r.Request); err != nil {
		return nil, err
	}
	all, err := s.control.Schedules(ctx, r.Namespace())
	return scheduleList{all}, err
}

func (s *Server) getSchedule(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "next")
	if err != nil {
		return nil, err
	}
	next, err := route.Number(values, "next", schedules.DefaultNext)
	if err != nil {
		return nil, err
	}
	return s.control.Schedule(ctx, r.Namespace(), r.PathValue("name"), int(min(next, schedules.MaxNext+1)))
}

func (s *Server) putSchedule(ctx context.Context, r *route.Request) (any, error) {
	var body scheduleBody
	if err := r.Object(&body); err != nil {
		return nil, err
	}
	return s.control.PutSchedule(ctx, r.Namespace(), r.PathValue("name"), schedules.Definition(body))
}

func (s *Server) deleteSchedule(ctx context.Context, r *route.Request) (any, error) {
	err := s.control.RemoveSchedule(ctx, r.Namespace(), r.PathValue("name"))
	return removed{err == nil}, err
}

// scheduleCommand answers a request that has no body.
func scheduleCommand[T any](do func(ctx context.Context, ns, name string) (T, error)) func(context.Context, *route.Request) (any, error) {
	return func(ctx context.Context, r *route.Request) (any, error) {
		return do(ctx, r.Namespace(), r.PathValue("name"))
	}
}

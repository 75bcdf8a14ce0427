package gatewayclient

import (
	"context"
	"net/http"

	"github.com/moorebus/moorebus/internal/control/schedules"
)

// PutSchedule is [schedules.Scheduler.PutSchedule].
func (c *Client) PutSchedule(ctx context.Context, ns, name string, d schedules.Definition) (schedules.Schedule, error) {
	return post[schedules.Schedule](ctx, c, request{method: http.MethodPut, namespace: ns, path: path("schedules", name)}, d)
}

// Schedule is [schedules.Scheduler.Schedule].
func (c *Client) Schedule(ctx context.Context, ns, name string, n int) (schedules.Schedule, error) {
	return ask[schedules.Schedule](ctx, c, request{namespace: ns, path: path("schedules", name), query: query("next", number(uint64(max(n, 0))))})
}

// Schedules is [schedules.Scheduler.Schedules].
func (c *Client) Schedules(ctx context.Context, ns string) ([]schedules.Schedule, error) {
	all, err := ask[struct{ Schedules []schedules.Schedule }](ctx, c, request{namespace: ns, path: path("schedules")})
	return all.Schedules, err
}

// RemoveSchedule is [schedules.Scheduler.RemoveSchedule].
func (c *Client) RemoveSchedule(ctx context.Context, ns, name string) error {
	return c.call(ctx, request{method: http.MethodDelete, namespace: ns, path: path("schedules", name)}, nil)
}

// PauseSchedule is [schedules.Scheduler.PauseSchedule].
func (c *Client) PauseSchedule(ctx context.Context, ns, name string) (schedules.Schedule, error) {
	return commandSchedule[schedules.Schedule](ctx, c, ns, name, "pause")
}

// ResumeSchedule is [schedules.Scheduler.ResumeSchedule].
func (c *Client) ResumeSchedule(ctx context.Context, ns, name string) (schedules.Schedule, error) {
	return commandSchedule[schedules.Schedule](ctx, c, ns, name, "resume")
}

// RunSchedule is [schedules.Scheduler.RunSchedule].
func (c *Client) RunSchedule(ctx context.Context, ns, name string) (schedules.Firing, error) {
	return commandSchedule[schedules.Firing](ctx, c, ns, name, "run")
}

func commandSchedule[T any](ctx context.Context, c *Client, ns, name, command string) (T, error) {
	return ask[T](ctx, c, request{method: http.MethodPost, namespace: ns, path: path("schedules", name, command)})
}

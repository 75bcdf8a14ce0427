package httpapi

import (
	"context"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/httpapi/route"
)

func (s *Server) getStats(ctx context.Context, r *route.Request) (any, error) {
	if _, err := route.Parameters(r.Request); err != nil {
		return nil, err
	}
	return s.control.Stats(ctx, r.Namespace())
}

func (s *Server) getCosts(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "by", "since")
	if err != nil {
		return nil, err
	}
	since, err := instant(values, "since")
	if err != nil {
		return nil, err
	}
	return s.control.Costs(ctx, r.Namespace(), tally.By(values["by"]), since)
}

func (s *Server) getWaiting(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "limit", "cursor")
	if err != nil {
		return nil, err
	}
	limit, err := route.Number(values, "limit", list.DefaultLimit)
	if err != nil {
		return nil, err
	}
	return s.control.Waiting(ctx, r.Namespace(), int(min(limit, list.MaxPeople+1)), values["cursor"])
}

package httpapi

import (
	"context"

	"github.com/moorebus/moorebus/internal/httpapi/route"
)

func (s *Server) getCompare(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "a", "b")
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"a", "b"} {
		if values[key] == "" {
			return nil, route.BadParameter("%s: is missing; name a run", key)
		}
	}
	return s.control.Compare(ctx, r.Namespace(), values["a"], values["b"])
}

package httpapi

import (
	"context"

	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/httpapi/route"
)

// deadList is the answer to GET /v1/dead.
type deadList struct {
	Dead []dead.Dead `json:"dead"`
}

func (s *Server) getDead(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "all", "dropped")
	if err != nil {
		return nil, err
	}
	for key, value := range values {
		if value != "true" && value != "false" {
			return nil, route.BadParameter("%s: %.100q is neither true nor false", key, value)
		}
	}
	found, err := s.control.Dead(ctx, r.Namespace(), dead.Options{All: values["all"] == "true", Dropped: values["dropped"] == "true"})
	return deadList{found}, err
}

// dropBody is the body of POST /v1/dead/drop.
type dropBody struct {
	Names []string `json:"names" jsonschema:"Runs, and messages as SHARD:SEQ, as the list names them."`
}

// dropped is the answer to it.
type dropped struct {
	Dropped []string `json:"dropped"`
}

func (s *Server) postDrop(ctx context.Context, r *route.Request) (any, error) {
	var body dropBody
	if err := r.Object(&body); err != nil {
		return nil, err
	}
	if len(body.Names) == 0 {
		return nil, route.BadRequest("names: is missing; name runs or messages")
	}
	return dropped{body.Names}, s.control.DropDead(ctx, r.Namespace(), body.Names)
}

func (s *Server) postRetry(ctx context.Context, r *route.Request) (any, error) {
	key, err := keyOf(r)
	if err != nil {
		return nil, err
	}
	result, err := s.control.Retry(ctx, r.Namespace(), r.ID(), key)
	if err == nil {
		r.W.Header().Set("Location", "/v1/runs/"+result.RunID)
	}
	return result, err
}

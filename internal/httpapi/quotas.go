package httpapi

import (
	"context"

	"github.com/moorebus/moorebus/internal/control/quotas"
	"github.com/moorebus/moorebus/internal/httpapi/route"
)

// quotaList is the answer to GET /v1/quotas.
type quotaList struct {
	Quotas []quotas.Info `json:"quotas"`
}

func (s *Server) getQuotas(ctx context.Context, r *route.Request) (any, error) {
	if _, err := route.Parameters(r.Request); err != nil {
		return nil, err
	}
	all, err := s.control.Quotas(ctx)
	return quotaList{all}, err
}

func (s *Server) getQuota(ctx context.Context, r *route.Request) (any, error) {
	return s.control.Quota(ctx, r.PathValue("scope"))
}

func (s *Server) putQuota(ctx context.Context, r *route.Request) (any, error) {
	node, err := r.Node()
	if err != nil {
		return nil, err
	}
	var q quotas.Quota
	if err := route.DecodeObject(node, &q); err != nil {
		return nil, err
	}
	return s.control.PutQuota(ctx, r.PathValue("scope"), q)
}

func (s *Server) deleteQuota(ctx context.Context, r *route.Request) (any, error) {
	err := s.control.RemoveQuota(ctx, r.PathValue("scope"))
	return deleted{err == nil}, err
}

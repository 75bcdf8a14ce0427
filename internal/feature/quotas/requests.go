package quotas

import (
	"context"

	"github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// The inputs and answers of requests about quotas.
type (
	// QuotaScope names the quota of _, NAMESPACE or NAMESPACE.AGENT.
	QuotaScope struct {
		Scope string `path:"scope"`
	}
	// NewQuota is a quota for a scope.
	NewQuota struct {
		QuotaScope
		Quota `body:""`
	}
	// QuotaList has the quotas of all namespaces.
	QuotaList struct {
		Quotas []Info `json:"quotas"`
	}
)

// The requests about quotas.
var (
	ListQuotas = route.Define(route.Route{
		Pattern: "GET /v1/quotas", Summary: "Lists the quotas of all namespaces with their current use.",
	}, func(ctx context.Context, a *Admission, _ requests.None) (QuotaList, error) {
		all, err := a.Quotas(ctx)
		return QuotaList{all}, err
	})
	GetQuota = route.Define(route.Route{
		Pattern: "GET /v1/quotas/{scope}", Summary: "Shows the quota of a scope: _ for the bus, NAMESPACE, or NAMESPACE.AGENT.", Codes: []string{refusal.CodeNotFound},
	}, func(ctx context.Context, a *Admission, in QuotaScope) (Info, error) {
		return a.Quota(ctx, in.Scope)
	})
	PutQuota = route.Define(route.Route{
		Pattern: "PUT /v1/quotas/{scope}", Summary: "Stores or replaces the quota of a scope. Every gateway uses it within two seconds.",
		Codes: []string{row.CodeBadQuota, refusal.CodeTooLarge}, Example: `{"weight": 2, "active": 50, "daily": {"cost_usd": 20, "time_zone": "Europe/Berlin"}}`,
	}, func(ctx context.Context, a *Admission, in NewQuota) (Info, error) {
		return a.PutQuota(ctx, in.Scope, in.Quota)
	})
	DeleteQuota = route.Define(route.Route{
		Pattern: "DELETE /v1/quotas/{scope}", Summary: "Removes a quota. Runs that waited only for this quota are admitted.", Codes: []string{refusal.CodeNotFound},
	}, func(ctx context.Context, a *Admission, in QuotaScope) (requests.Deleted, error) {
		return requests.Deleted{Deleted: true}, a.RemoveQuota(ctx, in.Scope)
	})
)

// rows returns the requests of quotas.
func (a *Admission) rows() []route.Route {
	return []route.Route{ListQuotas.Row(a), GetQuota.Row(a), PutQuota.Row(a), DeleteQuota.Row(a)}
}

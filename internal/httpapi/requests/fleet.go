package requests

import (
	"cmp"
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// The inputs and answers of requests about all runs.
type (
	// CostQuery says which costs are summed up.
	CostQuery struct {
		Scope
		By    tally.By  `query:"by" doc:"agent, model, tool, hour or day. Default: agent."`
		Since time.Time `query:"since" doc:"Only what happened since this time (RFC 3339), rounded down to the hour within the last 48 hours, else to the day (UTC). Default: from the beginning; for hours the last 48."`
	}
	// DeadQuery says which dead runs are listed.
	DeadQuery struct {
		Scope
		dead.Options
	}
	// DeadList has runs that ended because they could not be processed, and messages of no run.
	DeadList struct {
		Dead []dead.Dead `json:"dead"`
	}
	// Drop names what is dropped.
	Drop struct {
		Scope
		Body DropBody `body:""`
	}
	// DropBody names runs and messages.
	DropBody struct {
		Names []string `json:"names" jsonschema:"Runs, and messages as SHARD:SEQ, as the list names them."`
	}
	// Dropped is what was dropped.
	Dropped struct {
		Dropped []string `json:"dropped"`
	}
)

// The requests that show what all runs and workers do.
var (
	Stats = ofNamespace(route.Route{
		Pattern: "GET /v1/stats", Summary: "Counts the runs of the namespace by state, and returns the activity by hour, the backlog and the workers.",
	}, (*control.Controller).Stats)
	Costs = route.Define(route.Route{
		Pattern: "GET /v1/costs", Summary: "Sums up the tokens and costs of the namespace's runs.",
	}, func(ctx context.Context, c *control.Controller, in CostQuery) (tally.Costs, error) {
		return c.Costs(ctx, in.Namespace, in.By, in.Since)
	})
	ListDead = route.Define(route.Route{
		Pattern: "GET /v1/dead", Summary: "Lists the runs that ended because they could not be processed, and the messages of the log that belong to no run, the oldest first.",
	}, func(ctx context.Context, c *control.Controller, in DeadQuery) (DeadList, error) {
		found, err := c.Dead(ctx, in.Namespace, in.Options)
		return DeadList{found}, err
	})
	DropDead = route.Define(route.Route{
		Pattern: "POST /v1/dead/drop", Summary: "Hides runs and messages from the list of the dead, all or none. They stay in the log.",
		Codes: []string{refusal.CodeNotDead}, Example: `{"names": ["0198c5a0-5a6b-7c00-8000-000000000001"]}`,
	}, func(ctx context.Context, c *control.Controller, in Drop) (Dropped, error) {
		if len(in.Body.Names) == 0 {
			return Dropped{}, route.BadRequest("names: is missing; name runs or messages")
		}
		return Dropped{in.Body.Names}, c.DropDead(ctx, in.Namespace, in.Body.Names)
	})
	Waiting = route.Define(route.Route{
		Pattern: "GET /v1/waiting", Summary: "Lists the runs that wait for people, and what they wait for: the soonest deadline first, then the longest wait.",
	}, func(ctx context.Context, c *control.Controller, in Page) (control.WaitingPage, error) {
		return c.Waiting(ctx, in.Namespace, cmp.Or(in.Limit, list.DefaultLimit), in.Cursor)
	})
)

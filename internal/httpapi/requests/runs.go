package requests

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// forkCodes are of requests that fork a run.
var forkCodes = slices.Concat(route.PinCodes, route.ChangeCodes, []string{
	refusal.CodeBadPatch, refusal.CodeBadParameter, refusal.CodeBadKey, refusal.CodeKeyReused, refusal.CodeRunPoisoned, refusal.CodeApprovalOpen, refusal.CodeTooManyForks,
})

// Answers and bodies by the names that the description gives them.
type (
	runPage      list.Page
	newState     runs.Result
	forkBody     forking.Request
	forkState    forking.Result
	modelRequest control.ModelRequest
	runUsage     record.Usage
	// runTree has nodes that the description does not describe further: they hold themselves.
	runTree struct {
		Root      map[string]any `json:"root"`
		Truncated bool           `json:"truncated,omitempty" jsonschema:"There are more runs than the tree shows."`
	}
	// runState has the type of its memory.
	runState struct {
		runs.RunState
		Memory reducer.Memory `json:"memory"`
	}
)

// The inputs of requests about runs.
type (
	// NewRun is what is started.
	NewRun struct {
		Scope
		Body StartBody `body:""`
	}
	// RunList says which runs are listed. After is the cursor of older clients.
	RunList struct {
		Scope
		list.Query
		After string `query:"after" doc:"The older name of cursor."`
	}
	// RunAt names a run after one of its events; 0: the last one.
	RunAt struct {
		Run
		At uint64 `query:"at" doc:"The number of the event. Default: the last one."`
	}
	// ReplyAt names the request for a reply; 0: the one that the run waits for.
	ReplyAt struct {
		Run
		At   uint64 `query:"at" doc:"The number of the reply's event. Default: the reply that the run waits for."`
		Body bool   `query:"body" doc:"true: also the complete body that is sent, byte for byte, in base64."`
	}
	// NewFork says where a run is forked. Keys is at most one.
	NewFork struct {
		Run
		Keys []string        `header:"Idempotency-Key" doc:"Makes the request safe to repeat: it returns the fork of the first one."`
		Body forking.Request `body:""`
	}
	// RetryOf names a dead run. Keys is at most one.
	RetryOf struct {
		Run
		Keys []string `header:"Idempotency-Key" doc:"Makes the request safe to repeat: it returns the fork of the first one."`
	}
)

// CheckParameters is that of [route.Parameterized].
func (*RunList) CheckParameters(values map[string]string) error {
	for key, value := range values {
		if value == "" {
			return route.BadParameter("%s: is empty; leave it out for every run", key)
		}
	}
	if values["cursor"] != "" && values["after"] != "" {
		return route.BadParameter("after: excludes cursor, which replaces it")
	}
	return nil
}

// The requests that start runs and show them.
var (
	Start = route.Define(route.Route{
		Pattern: "POST /v1/runs", Status: http.StatusCreated, Summary: "Starts a run. Without a task, the agent's own task applies.",
		Codes: with(route.PinCodes, refusal.CodeAgentNotFound), Example: `{"agent": "researcher", "task": "What is 1+1?"}`,
	}, start).Locates(func(r control.StartResult) string { return runPath(r.RunID) })
	ListRuns = route.Define(route.Route{
		Pattern: "GET /v1/runs", Summary: "Lists the runs of the namespace, newest first.", Answer: runPage{},
	}, func(ctx context.Context, c *control.Controller, in RunList) (list.Page, error) {
		if in.After != "" {
			in.Cursor = in.After
		}
		return c.Runs(ctx, in.Namespace, in.Query)
	})
	GetRun = route.Define(route.Route{
		Pattern: "GET /v1/runs/{id}", Summary: "Shows a run and its memory, now or after one of its events.", Answer: runState{}, Codes: route.RunCodes,
	}, func(ctx context.Context, c *control.Controller, in RunAt) (runs.RunState, error) {
		return c.State(ctx, in.Namespace, in.ID, in.At)
	})
	Tree = ofRun(route.Route{
		Pattern: "GET /v1/runs/{id}/tree", Summary: "Shows a run's tree: parents, sub-runs and forks.", Answer: runTree{}, Codes: route.RunCodes,
	}, (*control.Controller).Tree)
	Usage = ofRun(route.Route{
		Pattern: "GET /v1/runs/{id}/usage", Summary: "Shows what a run used: tokens, cost and time, by step, tool, model and sub-run.", Answer: runUsage{}, Codes: route.RunCodes,
	}, (*control.Controller).Usage)
	ModelRequest = route.Define(route.Route{
		Pattern: "GET /v1/runs/{id}/request", Summary: "Shows the pending model request, or the request of a reply.",
		Answer: modelRequest{}, Codes: with(route.RunCodes, refusal.CodeNothingPending, refusal.CodeNoRequest),
	}, func(ctx context.Context, c *control.Controller, in ReplyAt) (control.ModelRequest, error) {
		req, err := c.Request(ctx, in.Namespace, in.ID, in.At)
		if !in.Body {
			req.Body = nil
		}
		return req, err
	})
	Fork = route.Define(route.Route{
		Pattern: "POST /v1/runs/{id}/fork", Summary: "Starts a run that continues from an event of this one.",
		Body: forkBody{}, Answer: forkState{}, Example: `{"at": 1, "patch": {"task": "What is 2+2?"}}`, Codes: forkCodes,
	}, func(ctx context.Context, c *control.Controller, in NewFork) (result forking.Result, err error) {
		if in.Body.Key, err = keyOf(in.Keys); err != nil {
			return result, err
		}
		return c.Fork(ctx, in.Namespace, in.ID, in.Body)
	}).Locates(func(r forking.Result) string { return runPath(r.RunID) })
	Retry = route.Define(route.Route{
		Pattern: "POST /v1/runs/{id}/retry", Status: http.StatusCreated, Summary: "Forks a run that ended with a FatalError from just before the event that ended it.", Codes: with(forkCodes, refusal.CodeNotDead),
	}, func(ctx context.Context, c *control.Controller, in RetryOf) (result dead.Retried, err error) {
		key, err := keyOf(in.Keys)
		if err != nil {
			return result, err
		}
		return c.Retry(ctx, in.Namespace, in.ID, key)
	}).Locates(func(r dead.Retried) string { return runPath(r.RunID) })
)

func runPath(id string) string { return "/v1/runs/" + id }

// Key returns the Idempotency-Key of a request; empty: none.
func Key(key string) []string {
	if key == "" {
		return nil
	}
	return []string{key}
}

// keyOf is the inverse of [Key]. The error is the refusal of another header.
func keyOf(keys []string) (string, error) {
	if len(keys) > 1 || len(keys) == 1 && keys[0] == "" {
		return "", refusal.New(refusal.Invalid, refusal.CodeBadKey, "%s: must be given once, with 1 to %d visible ASCII characters", forking.KeyHeader, forking.MaxKey)
	}
	return strings.Join(keys, ""), nil
}

func start(ctx context.Context, c *control.Controller, in NewRun) (result control.StartResult, err error) {
	req := in.Body.parsed
	if in.Body.agent != nil {
		if req.Agent, err = c.DecodeAgent(in.Body.agent); err != nil {
			return result, err
		}
	}
	result, err = c.Start(ctx, in.Namespace, req)
	if errors.Is(err, journal.ErrUnknownOutcome) {
		return result, unknownStart(err, result.RunID)
	}
	return result, err
}

// unknownStart is the refusal of a start that may have happened. With the run's id the request is
// safe to repeat.
func unknownStart(err error, run string) *refusal.Error {
	e := route.RefusalOf(err)
	return refusal.Wrap(err, e.Kind, e.Code, "run %s may or may not have started: send the request again with this run_id; run_exists means that it had (%s)", run, err).
		With(map[string]any{"run": run})
}

package history

import (
	"context"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// The inputs and answers.
type (
	// NewLabels is a change of a run's labels.
	NewLabels struct {
		requests.Run
		Patch LabelPatch `body:""`
	}
	// LabelPatch is a merge patch: a text sets a label, null removes it.
	LabelPatch map[string]*string
	// RunLabels are all labels of a run.
	RunLabels struct {
		Labels events.Labels `json:"labels"`
	}
)

// SetLabels is the request that changes the labels of a run.
var SetLabels = route.Define(route.Route{
	Pattern: "PATCH /v1/runs/{id}/labels", Summary: "Changes the labels that a run is shown with. The run's log stays as it is.",
	Codes: append(route.RunCodes[:len(route.RunCodes):len(route.RunCodes)], refusal.CodeTooManyLabels), Example: `{"env": "prod", "old": null}`,
}, func(ctx context.Context, c *control.Controller, in NewLabels) (RunLabels, error) {
	labels, err := c.SetLabels(ctx, in.Namespace, in.ID, in.Patch)
	return RunLabels{labels}, err
})

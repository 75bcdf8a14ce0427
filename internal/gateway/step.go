package gateway

import "context"

// Step joins the decisions of one delivery, waiting for it if need be: the
// single-step mode, in which Run does not run.
func (g *Gateway) Step(ctx context.Context) error { return g.worker.Step(ctx) }

package main

import (
	"context"

	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"
)

// serveRestate serves the handler that Restate calls, with the steps of [agent].
func serveRestate(ctx context.Context, listen string) error {
	run := restate.NewServiceHandler(func(ctx restate.Context, _ string) (string, error) {
		var results []string
		for {
			r, err := restate.Run(ctx, func(restate.RunContext) (reply, error) { return model(results), nil }, restate.WithName("model"))
			if err != nil || r.Text != "" {
				return r.Text, err
			}
			result, err := restate.Run(ctx, func(restate.RunContext) (string, error) { return calculator(r.Expression) }, restate.WithName("tool"))
			if err != nil {
				return "", err
			}
			results = append(results, result)
		}
	})
	return server.NewRestate().Bind(restate.NewService("agent").Handler("run", run)).Start(ctx, listen)
}

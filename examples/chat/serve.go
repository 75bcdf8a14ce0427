package main

import (
	"context"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// serve runs a server and every role, and returns the gateway's URL. It is what
// `moorebus dev` does.
func serve(ctx context.Context) (url string, stop func(), err error) {
	// Each run has its own definition, which names the provider.
	a, err := agent.New("host").Provider("scripted", scripted.New()).Use("scripted").Build()
	if err != nil {
		return "", nil, err
	}
	server, err := agent.ServeHTTP(ctx, agent.HTTP{}, a)
	if err != nil {
		return "", nil, err
	}
	return server.URL(), func() { _ = server.Close() }, nil
}

package main

import (
	"context"
	"net"

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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server, err := agent.ServeHTTP(ctx, agent.HTTP{Listener: listener}, a)
	if err != nil {
		return "", nil, err
	}
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

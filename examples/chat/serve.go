package main

import (
	"context"
	"net"
	"os"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
)

// serve runs the server and every role, and returns the gateway's URL. It is
// what `moorebus dev` does.
func serve(ctx context.Context) (url string, stop func(), err error) {
	var closing []func()
	stop = func() {
		for i := len(closing) - 1; i >= 0; i-- {
			closing[i]()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	dir, err := os.MkdirTemp("", "moorebus-chat-")
	if err != nil {
		return "", nil, err
	}
	closing = append(closing, func() { _ = os.RemoveAll(dir) })
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir})
	if err != nil {
		return "", nil, err
	}
	closing = append(closing, server.Shutdown)
	conn, err := server.Connect()
	if err != nil {
		return "", nil, err
	}
	closing = append(closing, conn.Close)
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{}); err != nil {
		return "", nil, err
	}
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{})
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	registry, err := tool.NewRegistry()
	if err != nil {
		return "", nil, err
	}
	host, err := agent.NewHost(agent.HostOptions{
		Bus: bus, Tools: registry, Listener: listener, Providers: map[string]llm.Caller{"scripted": scripted.New()},
	})
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- host.Run(ctx) }()
	closing = append(closing, func() { cancel(); <-ended })
	return "http://" + listener.Addr().String(), stop, host.Announce(ctx)
}

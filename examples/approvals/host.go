package main

import (
	"context"
	"fmt"
	"os"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// stand is every role in this process, on a server of its own.
type stand struct {
	bus  *natsbus.Bus
	host *agent.Host
	stop func()
}

type payment struct {
	Crowns int `json:"crowns" jsonschema:"how much to pay"`
}

func start(ctx context.Context, model llm.Caller) (s stand, err error) {
	var closing []func()
	s.stop = func() {
		for i := len(closing) - 1; i >= 0; i-- {
			closing[i]()
		}
	}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	dir, err := os.MkdirTemp("", "moorebus-approvals-")
	if err != nil {
		return s, err
	}
	closing = append(closing, func() { _ = os.RemoveAll(dir) })
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir})
	if err != nil {
		return s, err
	}
	closing = append(closing, server.Shutdown)
	conn, err := server.Connect()
	if err != nil {
		return s, err
	}
	closing = append(closing, conn.Close)
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{}); err != nil {
		return s, err
	}
	if s.bus, err = natsbus.Open(ctx, conn, natsbus.Options{}); err != nil {
		return s, err
	}
	pay, err := typed.New(tool.Definition{Name: "pay", Description: "Pays an amount in crowns.", Risk: tool.High},
		func(_ context.Context, in payment) (string, error) {
			return fmt.Sprintf("paid %d crowns", in.Crowns), nil
		})
	if err != nil {
		return s, err
	}
	registry, err := tool.NewRegistry(pay)
	if err != nil {
		return s, err
	}
	s.host, err = agent.NewHost(agent.HostOptions{Bus: s.bus, Tools: registry, Providers: map[string]llm.Caller{"scripted": model}})
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.host.Run(ctx) }()
	closing = append(closing, func() { cancel(); <-ended })
	return s, s.host.Announce(ctx)
}

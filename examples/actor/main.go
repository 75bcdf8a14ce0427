// Command actor is a custom actor: it serves the tools of one pool, written in Go, to
// the installation that NATS_URL names. Planners and gateways need no configuration for
// it, since it announces its tools on the bus.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/moorebus/moorebus/pkg/actor"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// pool is the queue from which this actor takes calls. Several processes share the
// work. Actors of other pools never see it.
const pool = "gpu"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "actor:", err)
		os.Exit(1)
	}
}

type picture struct {
	Of string `json:"of" jsonschema:"what the picture shows"`
}

// draw represents work that needs the hardware of this machine.
func draw(_ context.Context, in picture) (string, error) {
	return strings.Repeat("*", len(in.Of)) + "\n" + in.Of + "\n" + strings.Repeat("*", len(in.Of)), nil
}

func run(ctx context.Context) error {
	drawTool, err := typed.New(tool.Definition{Name: "draw", Description: "Draws a picture.", Effect: tool.Pure, Pool: pool}, draw)
	if err != nil {
		return err
	}
	server, err := natsbus.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	server.Name, server.Wait = "moorebus/actor/own", true
	conn, err := natsbus.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer conn.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	bus, err := natsbus.Wait(ctx, conn, natsbus.Options{Logger: logger})
	if err != nil {
		return err
	}
	logger.Info("ready", "pool", pool)
	return actor.Run(ctx, actor.Options{Bus: bus, Instance: "own", Tools: []tool.Tool{drawTool}, Logger: logger})
}

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"
)

// service is the NATS service that has the tools which are marked so. Two processes serve it.
const service = "parcels"

// serviceTime bounds a call of the service: a request that a killed or stopped instance has
// is not answered.
const serviceTime = 3 * time.Second

// serviceCommand is one instance of the service, a process that can be killed. It is this
// command again, so that it needs no other program.
func serviceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "service LEDGER", Short: "Run an instance of the NATS service whose tools runs call", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			conn, err := nats.Connect(os.Getenv("NATS_URL"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
			if err != nil {
				return err
			}
			defer conn.Close()
			l, err := openLedger(args[0])
			if err != nil {
				return err
			}
			defer l.close()
			if err := serveTools(conn, l); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
}

// serveTools adds the service with an endpoint for each of its tools.
func serveTools(conn *nats.Conn, l *ledger) error {
	s, err := micro.AddService(conn, micro.Config{Name: service, Version: "1.0.0"})
	if err != nil {
		return err
	}
	for _, t := range tools {
		if !t.service {
			continue
		}
		handle := micro.HandlerFunc(func(r micro.Request) { go serveCall(r, l, t) }) // the instance serves several at once
		err := s.AddEndpoint(t.name, handle, micro.WithEndpointSubject(service+"."+t.name), micro.WithEndpointMetadata(map[string]string{
			"moorebus.tool": t.name, "moorebus.effect": t.effect, "moorebus.risk": t.risk, "moorebus.timeout": serviceTime.String(),
			"moorebus.schema": `{"type":"object","properties":{"amount":{"type":"number"}}}`,
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

// serveCall notes an execution before anything else, and answers after a while.
func serveCall(r micro.Request, l *ledger, t toolKind) {
	key := r.Headers().Get("Idempotency-Key")
	if _, err := l.record(key, t.name, string(r.Data())); err != nil {
		_ = r.Error("500", err.Error(), nil) // without an answer the outcome is unknown
		return
	}
	time.Sleep(rand.N(t.slow))
	_ = r.Respond(fmt.Appendf(nil, "%s did %s", t.name, key)) // the same
}

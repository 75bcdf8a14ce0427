// Package telemetry is the command of the role telemetry.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/role"
	"github.com/moorebus/moorebus/internal/telemetry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Command returns the command of the role telemetry.
func Command() *cobra.Command {
	var content, once bool
	var redact []string
	var from string
	var client otlptrace.Client
	cfg := telemetry.Config{}
	cmd := role.Command("telemetry", "Send the log as traces to an OTLP receiver",
		`Telemetry reads the log and sends its runs as spans, over OTLP with HTTP or gRPC.
OpenTelemetry's variables configure the receiver:

  OTEL_EXPORTER_OTLP_ENDPOINT   the receiver's address, such as http://localhost:4318
  OTEL_EXPORTER_OTLP_PROTOCOL   http/protobuf (default), http/json or grpc
  OTEL_EXPORTER_OTLP_HEADERS    such as Authorization=Bearer%20KEY
  OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES

Without --content, spans have no messages, arguments or results. The position in the log
is stored on the bus and advances only when the receiver has acknowledged. Of several
processes one sends, and the others stand by. A span that is sent again has the same ids.

--from exports older runs too, and leaves the position unchanged. It takes a time
(RFC 3339) or an age (24h). With --once the command ends at the log's current end.`,
		func(flags *pflag.FlagSet) {
			flags.BoolVar(&content, "content", false, "also send messages, arguments and results")
			flags.StringArrayVar(&redact, "redact", nil, "replace what this regular expression (`RE2`) matches in content; may be repeated")
			flags.StringVar(&from, "from", "", "export from this `time` on (RFC 3339, or a duration before now), and leave the position unchanged")
			flags.BoolVar(&once, "once", false, "end at the log's current end")
		},
		func() (err error) {
			if len(redact) > 0 && !content {
				return cli.Usage("--redact needs --content")
			}
			if content {
				cfg.Content = &telemetry.Content{}
			}
			for _, text := range redact {
				re, err := regexp.Compile(text)
				if err != nil {
					return cli.Usage("--redact: %v", err)
				}
				cfg.Content.Redact = append(cfg.Content.Redact, re)
			}
			if cfg.From, err = when(from, time.Now()); err != nil {
				return err
			}
			if client, err = telemetry.NewClient(os.Getenv); err != nil {
				return cli.NotConfigured("%w", err)
			}
			cfg.Resource, err = telemetry.Resource(context.Background())
			return cli.BadConfig(err)
		},
		func(ctx context.Context, p role.Process) error {
			if err := client.Start(ctx); err != nil {
				return cli.BadConfig(err)
			}
			defer func() { _ = client.Stop(context.WithoutCancel(ctx)) }() // nothing is left to send
			cfg.Log, cfg.Leases, cfg.KV, cfg.Sender = p.Bus, p.Bus, p.Bus, client
			cfg.Machine, cfg.Meter, cfg.Logger, cfg.Once = p.Store.Machine(), p.Store.Meter(), p.Logger, once
			p.Ready() // also while another process has the lease
			err := telemetry.New(cfg).Run(ctx)
			if errors.Is(err, journal.ErrDenied) || errors.Is(err, journal.ErrNotReady) {
				err = fmt.Errorf("%w: the role needs its own buckets: run `moorebus init` of this build as the operator", err)
			}
			return err
		})
	return cmd
}

// when reads a time, or a duration before now; zero for an empty text.
func when(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, cli.Usage("--from: %q is neither a time such as 2026-11-22T00:00:00Z nor a duration such as 24h", text)
	}
	return at, nil
}

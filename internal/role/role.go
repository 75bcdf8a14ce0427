// Package role runs a role as a process: its flags, the connection to the bus, logs, metrics and
// probes. The packages below have the command of each role, with only what it needs.
package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tokens/o200k"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Process is what a role's process gets.
type Process struct {
	// Base is what it gives its roles, and Bus what they work on.
	worker.Base
	Bus *natsbus.Bus
	// Estimators are the token estimators that agents may name.
	Estimators tokens.Set
	// Metrics has the numbers of the process.
	Metrics *metrics.Registry
	probe   *cli.Probe
}

// Ready says what makes the process ready while the log has a quorum: that each check returns
// nil. /readyz of --metrics-listen reports it.
func (p *Process) Ready(checks ...func(context.Context) error) {
	p.probe.Set(func(ctx context.Context) error {
		for _, check := range append([]func(context.Context) error{p.Bus.Quorum}, checks...) {
			if err := check(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// Command returns the command of a role's process. It has the flags of every role
// and those that flags adds. It calls check before it opens the bus, so that wrong
// settings are reported at once. It waits for bus and streams without a limit, and
// then calls run.
func Command(name, short, long string, flags func(*pflag.FlagSet), check func() error, run func(context.Context, Process) error) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Long: long, Args: cobra.NoArgs}
	bus := cli.AddServerFlags(cmd.Flags(), os.Getenv)
	role := cli.AddRoleFlags(cmd.Flags())
	log := cli.AddLogFlags(cmd.Flags(), slog.LevelInfo)
	if flags != nil {
		flags(cmd.Flags())
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		logger = logger.With("role", name, "instance", role.Instance)
		slog.SetDefault(logger) // log lines of code without its own logger name the role too
		defer logStop(cmd.Context(), logger)()
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		stopProfiles, err := role.ServePprof(logger)
		if err != nil {
			return err
		}
		defer stopProfiles()
		registry, probe := metrics.New(), &cli.Probe{}
		stopMetrics, err := role.ServeMetrics(registry.Handler(), probe, logger)
		if err != nil {
			return err
		}
		defer stopMetrics()
		conn, err := bus.Dial(cmd.Context(), cli.DialOptions{
			Name: "moorebus/" + name + "/" + role.Instance, Wait: true, Bus: natsbus.Options{Meter: registry}, Logger: logger,
		})
		if err != nil {
			if cmd.Context().Err() != nil {
				return nil // a signal ended the wait
			}
			return err
		}
		defer conn.NATS.Close()
		if err := os.Unsetenv(natsconn.SeedVariable); err != nil { // programs that this one starts do not need it
			return err
		}
		registry.ReadCertificates(func() map[string]time.Time { return certs.EndsOf(conn.Bus.Conn().TLSConnectionState) })
		logger.Info("ready", "bus", conn.Where, "named_by", conn.From, "shards", conn.Bus.Shards())
		base := worker.Base{
			Instance: role.Instance, Store: runlog.New(storeOptions(name, conn.Bus, registry, logger)),
			Concurrency: role.Concurrency, Drain: role.Drain, Logger: logger,
		}
		open, stop := natsconn.WhileOpen(cmd.Context(), conn.Bus.Conn())
		defer stop()
		err = run(open, Process{
			Base: base, Bus: conn.Bus, Estimators: tokens.Set{tokens.O200K: o200k.Estimate}, Metrics: registry, probe: probe,
		})
		if open.Err() != nil && cmd.Context().Err() == nil {
			err = context.Cause(open) // a new start may be accepted
		}
		if errors.Is(err, journal.ErrDenied) {
			err = fmt.Errorf("%w\nthe user of this process lacks permissions that the role %s needs: check whose key NATS_NKEY is, or print the permissions of this build again (`moorebus init --print-permissions`)", err, name)
		}
		return err
	}
	return cmd
}

// logStop logs once ctx ends that the process stops, and by which signal. The function that it
// returns waits until that is logged.
func logStop(ctx context.Context, logger *slog.Logger) (logged func()) {
	done := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(done)
		logger.Info("stopping", "reason", context.Cause(ctx))
	})
	return func() {
		if !unhook() {
			<-done
		}
	}
}

// storeOptions says how a role reads runs. An actor has effects outside the log, so it trusts
// only stored events, and not the observer's snapshots.
func storeOptions(role string, bus *natsbus.Bus, registry *metrics.Registry, logger *slog.Logger) runlog.Options {
	o := runlog.Options{Log: bus, Snapshots: bus, Meter: registry, Appended: registry.Appended, Logger: logger}
	if role == "actor" {
		o.Snapshots = nil
	}
	return o
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/internal/upgrade"
	"github.com/moorebus/moorebus/pkg/journal"
)

func upgradeCommand() *cobra.Command {
	var file, output string
	var check bool
	cmd := &cobra.Command{
		Use:   "upgrade --check",
		Short: "Check what an upgrade of a bus to this build requires",
		Long: `Upgrade checks what a bus needs before roles of this build start on it, and changes
nothing. It lists runs with a table that this build does not know, runs that the previous
release does not know (which matters only for going back), what moorebus init would
change, and, with --permissions, users that lack permissions. It reads the first and the
last event of every run, as the operator or any user who may read the log and the settings
of streams. With --data it checks the data directory of run and dev, whether or not dev
serves it.

The exit code is 0 if nothing is to be done, 7 if something is, and 1 if this build cannot
continue a run that has not ended.`,
		Example: `  moorebus upgrade --check --nats nats://bus.example:4222
  moorebus upgrade --check --data ./moorebus
  moorebus upgrade --check --permissions permissions.conf -o json`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&check, "check", false, "check, and change nothing; required, since upgrade does nothing else")
	bus := cli.AddSetupFlags(flags, os.Getenv)
	flags.StringVar(&file, "permissions", "", "`file` that `moorebus init --print-permissions` wrote and the servers use")
	print.AddOutputFlag(cmd, &output, print.Text, print.JSON)
	log := cli.AddLogFlags(flags, slog.LevelError)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := print.ParseFormat(output, print.Text, print.JSON)
		if err != nil {
			return err
		}
		if !check {
			return cli.Usage("upgrade only checks: use --check, then `moorebus init`, then replace the roles in any order")
		}
		if err := bus.NeedsBus("moorebus upgrade"); err != nil {
			return err
		}
		var text []byte
		if file != "" {
			if text, err = os.ReadFile(file); err != nil {
				return cli.NotConfigured("--permissions: %w", err)
			}
		}
		raw, logger, err := connectRaw(cmd, bus, log, false, false)
		if err != nil {
			return err
		}
		defer raw.Close()
		report, err := upgrade.Check(cmd.Context(), raw.NATS, string(text), raw.Options(logger))
		if errors.Is(err, journal.ErrDenied) {
			return fmt.Errorf("%w: the check needs the operator, or another user who may read the log and the settings of streams", err)
		}
		if err != nil {
			return err
		}
		if err := report.Write(cmd.OutOrStdout(), format, terminal.Stdout.Color(os.Getenv)); err != nil {
			return err
		}
		switch {
		case report.Bad > 0:
			return &cli.ExitError{Code: cli.ExitFailure}
		case report.Warnings > 0:
			return &cli.ExitError{Code: cli.ExitChanges}
		}
		return nil
	}
	return cmd
}

package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/spf13/cobra"
)

func doctorCommand() *cobra.Command {
	var url, data, output string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check bus, streams and keys, and say how to fix them",
		Long: `Doctor checks the bus and its streams, consumers and roles. If no bus is named, it
checks the data directory and the embedded server. It also checks the sandbox of exec
tools, and asks the configured model providers for their lists of models. It changes
nothing, and prints no key. These variables configure providers:
` + providers.Help() + `

Each line is ok, a warning or bad, with what to do below it, or unseen if the user has
no permission to look. It warns of a user that may do more than its role needs, and of
listeners that other machines reach without credentials. The exit code is 1 if any
line is bad.`,
		Example: `  moorebus doctor
  moorebus doctor --nats nats://bus.example:4222 -o json | jq '.findings[] | select(.level != "ok")'`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&url, "nats", "", "servers of the bus, with commas (default NATS_URL and its like)")
	cmd.Flags().StringVar(&data, "data", "", "data directory to look at instead of a bus (default MOOREBUS_DATA, else the one of run and dev)")
	var monitor string
	cmd.Flags().StringVar(&monitor, "monitor", "", "`URL` of the server's monitoring, which says whether it flushes every message (default: port 8222 of the server)")
	addOutputFlag(cmd, &output, console.Text, console.JSON)
	log := cli.AddLogFlags(cmd.Flags(), slog.LevelError)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := console.ParseFormat(output, console.Text, console.JSON)
		if err != nil {
			return err
		}
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		at, err := cli.FindPlace(url, data, os.Getenv)
		if err != nil {
			return err
		}
		var report console.Report
		doctor := console.Doctor{Getenv: os.Getenv, Bus: natsbus.Options{Logger: logger, Monitor: monitor}}
		if at.Note != "" {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), at.Note)
		}
		if at.Remote {
			report.Add(console.AreaBus, natsbus.Finding{Level: natsbus.Good, What: fmt.Sprintf("the bus is %s, named by %s", at.Connect.Server(), at.From)})
			at.Connect.Name, at.Connect.Logger = "moorebus/doctor", logger
			doctor.Remote(cmd.Context(), at.Connect, &report)
		} else {
			doctor.Embedded(cmd.Context(), at.Dir, &report)
		}
		doctor.Listener(&report)
		doctor.Keys(cmd.Context(), &report)
		doctor.Sandbox(cmd.Context(), &report)
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		if err := report.Write(cmd.OutOrStdout(), format, terminal.Stdout.Color(os.Getenv)); err != nil {
			return err
		}
		if report.Bad > 0 {
			return &cli.ExitError{Code: cli.ExitFailure}
		}
		return nil
	}
	return cmd
}

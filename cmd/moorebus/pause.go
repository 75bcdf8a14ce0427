package main

import (
	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/httpapi/requests"
)

func pauseCommand() *cobra.Command {
	return change{
		name: "pause", short: "Pause runs",
		long: `Pause stops runs from starting new model calls and tools. Calls in flight finish, and
their results are kept. It prints the state of each run. See resume.`,
		example: `  moorebus pause 0198c5a0-5a6b-7c00-8000-000000000001`,
		suffix:  " (paused)",
		do:      requests.Pause,
	}.command()
}

package main

import (
	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/httpapi/requests"
)

func cancelCommand() *cobra.Command {
	return change{
		name: "cancel", short: "Cancel runs",
		long: `Cancel ends runs with an event. Their model calls and tools are cancelled in every
process. It prints the state of each run. A run that has already ended stays
unchanged, and the exit code is 1.`,
		example: `  moorebus cancel 0198c5a0-5a6b-7c00-8000-000000000001 --reason "wrong file"
  moorebus runs --state planning -o json | jq -r '.runs[].run_id' | xargs moorebus cancel`,
		do: requests.Cancel,
	}.command()
}

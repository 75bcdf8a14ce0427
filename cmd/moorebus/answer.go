package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

func answerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "answer RUN [CALL] TEXT",
		Short: "Answer a question of a run",
		Long: `Answer answers an agent's question to a human, for example of the builtin tool
ask_human. CALL is optional if only one call of the run waits; show lists waiting
calls with their questions. It prints the run's state.

The first answer to a question is final; a second one fails and shows the first.`,
		Example: `  moorebus answer 0198c5a0-5a6b-7c00-8000-000000000001 "the test account"`,
		Args:    cobra.RangeArgs(2, 3),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text := args[len(args)-1]
		if strings.TrimSpace(text) == "" {
			return cli.Usage("TEXT: is empty; give an answer, or reject the call")
		}
		return flags.decide(cmd, args[0], decision(events.DecisionModified, args[:len(args)-1], by()), answerTo(text))
	}
	return cmd
}

// answerTo returns a function that fills in the answer to a question.
func answerTo(text string) func(events.Request, *events.Decision) error {
	return func(waits events.Request, d *events.Decision) (err error) {
		if waits.Tool != "" && !waits.Asks {
			return fmt.Errorf("call %q of %s is not a question; use approve or reject", waits.CallID, waits.Tool)
		}
		d.Arguments, err = decisions.Answered(waits.Arguments, text)
		return err
	}
}

package main

import (
	"context"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/access"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/spf13/cobra"
)

func sendCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "send RUN MESSAGE",
		Short: "Send a user's message to a run",
		Long: `Send sends a user's message to a run: the next one of a conversation that waits for
it, or one more in the middle of the work. MESSAGE - is read from stdin. It prints the
run's state.

With --id the message has a name, and sending it again changes nothing.`,
		Example: `  moorebus send 0198c5a0-5a6b-7c00-8000-000000000001 "And in euros?"
  moorebus send 0198c5a0-5a6b-7c00-8000-000000000001 --id question-2 - < question.txt`,
		Args: cobra.ExactArgs(2),
	}
	flags := addClientFlags(cmd, console.Text, console.JSON)
	cmd.Flags().StringVar(&id, "id", "", "name of the message, unique in the run (default: a new one)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		inputs, err := message(cmd.InOrStdin(), id, args[1])
		if err != nil {
			return err
		}
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			if _, err := c.control.Inputs(ctx, c.namespace, args[0], inputs); err != nil {
				return err
			}
			state, err := c.control.State(ctx, c.namespace, args[0], 0)
			if err != nil {
				return err
			}
			c.noteOffline()
			return c.writeState(args[0], access.Result{State: state.State, N: state.N}, "")
		})
	}
	return cmd
}

func message(stdin io.Reader, id, text string) ([]control.Input, error) {
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(stdin, journal.MaxBody+1))
		if err != nil {
			return nil, err
		}
		text = strings.TrimSuffix(string(data), "\n")
	}
	switch {
	case strings.TrimSpace(text) == "":
		return nil, cli.Usage("the message is empty")
	case !utf8.ValidString(text) || !utf8.ValidString(id):
		return nil, cli.Usage("the message is not valid UTF-8")
	case len(id) > control.MaxMessageID:
		return nil, cli.Usage("--id: is longer than %d bytes", control.MaxMessageID)
	case len(text) > journal.MaxBody:
		return nil, cli.Usage("the message is larger than %d KiB, the limit for an event", journal.MaxBody>>10)
	}
	return []control.Input{control.UserMessage{MessageID: id, Content: text}}, nil
}

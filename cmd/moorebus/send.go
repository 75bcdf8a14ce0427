package main

import (
	"context"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/journal"
)

// post posts inputs to a run and shows how it stands then.
func (c *client) post(ctx context.Context, arg string, inputs []control.Input) error {
	id, err := c.FindRun(ctx, arg)
	if err != nil {
		return err
	}
	if _, err := requests.PostInputs.Call(ctx, c.API, requests.NewInputs{Run: requests.ID(id), Inputs: inputs}); err != nil {
		return err
	}
	state, err := c.state(ctx, id)
	if err != nil {
		return err
	}
	c.noteOffline()
	return c.writeState(id, runs.Result{State: state.State, N: state.N}, "")
}

func sendCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "send RUN MESSAGE",
		Short: "Send a user's message to a run",
		Long: `Send sends a user's message to a run: the next one of a waiting conversation, or an
additional one during the work. MESSAGE - is read from stdin. It prints the run's state.

--attach adds an image or another file; MESSAGE may then be empty. --id sets the message's
id; sending it again with the same id changes nothing.`,
		Example: `  moorebus send 0198c5a0-5a6b-7c00-8000-000000000001 "And in euros?"
  moorebus send 0198c5a0-5a6b-7c00-8000-000000000001 --id question-2 - < question.txt`,
		Args: cobra.ExactArgs(2),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
	files := addAttachFlag(cmd)
	cmd.Flags().StringVar(&id, "id", "", "id of the message, unique in the run (default: a new one)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		inputs, err := message(cmd.InOrStdin(), id, args[1], *files...)
		if err != nil {
			return err
		}
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			return c.post(ctx, args[0], inputs)
		})
	}
	return cmd
}

func message(stdin io.Reader, id, text string, files ...string) ([]control.Input, error) {
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(stdin, journal.MaxBody+1))
		if err != nil {
			return nil, err
		}
		text = strings.TrimSuffix(string(data), "\n")
	}
	switch {
	case strings.TrimSpace(text) == "" && len(files) == 0:
		return nil, cli.Usage("the message is empty")
	case !utf8.ValidString(text) || !utf8.ValidString(id):
		return nil, cli.Usage("the message is not valid UTF-8")
	case len(id) > control.MaxMessageID:
		return nil, cli.Usage("--id: is longer than %d bytes", control.MaxMessageID)
	case len(text) > journal.MaxBody:
		return nil, cli.Usage("the message is larger than %d KiB, the limit for an event", journal.MaxBody>>10)
	}
	parts, err := attached(text, files)
	if parts != nil {
		text = "" // it is one of the parts
	}
	return []control.Input{control.UserMessage{MessageID: id, Content: text, Parts: parts}}, err
}

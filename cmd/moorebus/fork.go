package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/journal"
)

func forkCommand() *cobra.Command {
	var at uint64
	var patch, key string
	cmd := &cobra.Command{
		Use:   "fork RUN --at N",
		Short: "Start a run that continues from an event of another run",
		Long: `Fork starts a run that continues from event N of another run. The other run does not
change. Work that was in flight at event N starts again in the fork: a model call is
repeated, and a tool without a result runs again. It prints the fork's id.

--patch changes the fork: a JSON merge patch (RFC 7396) over the keys of an agent's
definition and the run's task, task_type and mode.

With --key a repeated command creates no second fork: it prints the first one's id
again.`,
		Example: `  moorebus fork 0198c5a0-5a6b-7c00-8000-000000000001 --at 7
  moorebus fork 0198c5a0-5a6b-7c00-8000-000000000001 --at 1 --patch '{"models": {"default": "gpt-4o"}}'
  moorebus fork 0198c5a0-5a6b-7c00-8000-000000000001 --at 12 --patch @patch.json`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
	cmd.Flags().Uint64Var(&at, "at", 0, "continue from event `n` of the run")
	cmd.Flags().StringVar(&patch, "patch", "", "changes, as `JSON` or @FILE")
	cmd.Flags().StringVar(&key, "key", "", "idempotency `key`: fork the run once under it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if at == 0 {
			return cli.Usage("--at: is required: the event to continue from, counted from 1")
		}
		change, err := readPatch(patch)
		if err != nil {
			return err
		}
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			id, err := c.FindRun(ctx, args[0])
			if err != nil {
				return err
			}
			if err := checkPatch(change); err != nil {
				return err
			}
			fork, err := requests.Fork.Call(ctx, c.API, requests.NewFork{Run: requests.ID(id), Keys: requests.Key(key), Body: forking.Request{At: at, Patch: change}})
			if err != nil {
				return err
			}
			c.noteOffline()
			if c.Format == print.JSON {
				return print.WriteJSON(c.Out, fork)
			}
			_, err = fmt.Fprintln(c.Out, fork.RunID)
			return err
		})
	}
	return cmd
}

// checkPatch refuses a patch that is no JSON, which could be no part of a body.
func checkPatch(patch json.RawMessage) error {
	if len(patch) == 0 {
		return nil
	}
	if _, err := strict.ParseJSON(patch); err != nil {
		return refusal.New(refusal.Invalid, refusal.CodeBadPatch, "patch: %s", err.Error())
	}
	return nil
}

// readPatch returns the patch of a flag: its value, or the content of @FILE.
func readPatch(text string) (json.RawMessage, error) {
	path, file := strings.CutPrefix(text, "@")
	if !file {
		return json.RawMessage(text), nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, cli.Usage("--patch: %w", err)
	}
	if info.Size() > journal.MaxBody {
		return nil, cli.Usage("--patch: %s is larger than %d KiB, the limit for an event", path, journal.MaxBody>>10)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, cli.Usage("--patch: %w", err)
	}
	return data, nil
}

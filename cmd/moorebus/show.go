package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

// addReasoningFlag adds --reasoning.
func addReasoningFlag(cmd *cobra.Command, reasoning *bool) {
	cmd.Flags().BoolVar(reasoning, "reasoning", false, "show the model's full reasoning, not only one line")
}

func showCommand() *cobra.Command {
	var at uint64
	var memory, reasoning, request, usage, tree bool
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run: its steps and events, its answer or error",
		Long: `Show prints a run's state, its steps (the model's replies and the tools' results, with
time, tokens and cost), its events one per line, and its answer, its error, or what it
waits for. --at shows the run after that event. --memory instead prints its memory, in JSON
or YAML. --request prints the model request whose reply is event --at, as the body of the
HTTP request; without --at it prints the pending request. The request is rebuilt from the
log; stderr says if it may differ from the one that was sent.

--usage instead prints tokens, cost and time: in total, by step, tool, model and sub-run.
--tree prints the run's tree with states: parents, sub-runs, hand-offs and forks.`,
		Example: `  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001 --at 7 --memory
  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001 --request --at 4 | jq .messages
  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001 --usage -o json | jq .total
  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001 -o json | jq -r .answer`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON, print.YAML)
	flags.offerRuns(cmd, 1)
	cmd.Flags().Uint64Var(&at, "at", 0, "show the run after its event `n` (default: the last one)")
	cmd.Flags().BoolVar(&memory, "memory", false, "print the memory")
	cmd.Flags().BoolVar(&request, "request", false, "print the request to the model")
	cmd.Flags().BoolVar(&usage, "usage", false, "print tokens, cost and time by step, tool, model and sub-run")
	cmd.Flags().BoolVar(&tree, "tree", false, "print sub-runs, hand-offs and forks with their states")
	cmd.MarkFlagsMutuallyExclusive("memory", "request", "usage", "tree")
	cmd.MarkFlagsMutuallyExclusive("at", "usage")
	cmd.MarkFlagsMutuallyExclusive("at", "tree")
	addReasoningFlag(cmd, &reasoning)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("at") && at == 0 {
			return cli.Usage("--at: events are counted from 1")
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			id, err := c.FindRun(ctx, args[0])
			switch {
			case err != nil:
				return err
			case request:
				return c.showRequest(ctx, id, at)
			case usage:
				return c.showUsage(ctx, id)
			case tree:
				return c.showTree(ctx, id)
			}
			return c.show(ctx, id, at, memory, reasoning)
		})
	}
	return cmd
}

// showRequest prints the body of the request whose reply is event at; 0: the one that waits.
func (c *client) showRequest(ctx context.Context, id string, at uint64) error {
	req, err := c.request(ctx, id, at)
	if err != nil {
		return err
	}
	if req.Exact != nil && !*req.Exact && req.Dialect != providers.Scripted {
		c.Notef("what was sent may differ: its digest is not that of this request; a running planner with the provider knows its settings")
	}
	_, err = fmt.Fprintf(c.Out, "%s\n", req.Body)
	return err
}

// request returns the request whose reply is event at, with its body; 0: the one that waits.
func (c *client) request(ctx context.Context, id string, at uint64) (control.ModelRequest, error) {
	return requests.ModelRequest.Call(ctx, c.API, requests.ReplyAt{Run: requests.ID(id), At: at, Body: true})
}

// state returns how a run stands.
func (c *client) state(ctx context.Context, id string) (runs.RunState, error) {
	return requests.GetRun.Call(ctx, c.API, requests.RunAt{Run: requests.ID(id)})
}

func (c *client) showUsage(ctx context.Context, id string) error {
	u, err := requests.Usage.Call(ctx, c.API, requests.ID(id))
	if err != nil {
		return err
	}
	return print.Usage(c.Out, c.Format, u, c.Color)
}

func (c *client) showTree(ctx context.Context, id string) error {
	tree, err := requests.Tree.Call(ctx, c.API, requests.ID(id))
	if err != nil {
		return err
	}
	return print.Tree(c.Out, c.Format, tree, c.Color)
}

func (c *client) show(ctx context.Context, id string, at uint64, memory, reasoning bool) error {
	records, err := c.events(ctx, c.Namespace, id, 1)
	if err != nil {
		return err
	}
	run, mem, err := print.ReadRun(ctx, runlog.NewFold(c.Log, c.machine, c.run(id)), at, records)
	switch {
	case err != nil:
		return err
	case run.N < at:
		return cli.Usage("--at: the run has %d events, so it is 1 to %d", run.N, run.N)
	case memory:
		return print.Write(c.Out, c.Format, mem)
	}
	run.Reasoning = run.Reasoning || reasoning
	if run.WaitsFor, err = c.waitsFor(ctx, id, run.State, run.N); err != nil {
		return err
	}
	return run.Write(c.Out, c.Format, c.Color)
}

// waitsFor returns which pool the run waits for after its event n, which led to a state; nil: for
// none.
func (c *client) waitsFor(ctx context.Context, id string, at events.State, n uint64) (*runs.WaitsFor, error) {
	if at != events.Acting && at != events.ParallelActing {
		return nil, nil
	}
	state, err := c.state(ctx, id)
	if err != nil || state.N != n {
		return nil, err
	}
	return state.WaitsFor, nil
}

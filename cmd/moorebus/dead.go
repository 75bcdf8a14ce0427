package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/spf13/cobra"
)

func deadCommand() *cobra.Command {
	var o console.DeadOptions
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List runs that failed and messages that belong to no run",
		Long: `Dead lists the namespace's runs that ended in error through no fault of their model:
a message was no legal event (poison), all attempts or the time were used up, or no
worker handles a state. --all lists every run that ended by a FatalError. Messages
in the log that belong to no run are listed as SHARD:SEQ.

retry forks a run just before what ended it. drop hides entries of the list.`,
		Example: `  moorebus dead
  moorebus dead -o json | jq -r '.[] | select(.code == "attempts_exhausted") | .run' | xargs moorebus dead retry
  moorebus dead drop 0198c5a0-5a6b-7c00-8000-000000000001 0:17`,
		Args: cobra.NoArgs,
	}
	flags := addClientFlags(cmd, console.Table, console.JSON, console.YAML)
	cmd.Flags().BoolVar(&o.All, "all", false, "every run that ended by a FatalError")
	cmd.Flags().BoolVar(&o.Dropped, "dropped", false, "also what was dropped")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			o.Namespace = c.namespace
			dead, err := console.ReadDead(ctx, c.Bus, c.machine.Codec(), o)
			if err != nil {
				return err
			}
			return console.WriteDead(c.out, c.format, dead)
		})
	}
	cmd.AddCommand(deadDropCommand(), deadRetryCommand())
	return cmd
}

func deadDropCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drop RUN|SHARD:SEQ…",
		Short: "Hide dead runs and messages",
		Long: `Drop hides dead runs and messages from the list. They stay in the log as they are.
dead --dropped lists them.`,
		Args: cobra.MinimumNArgs(1), DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, console.Text)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		keys := make([]string, len(names))
		for i, name := range names {
			var err error
			if keys[i], err = console.DropKey(name); err != nil {
				return cli.Usage("%w", err)
			}
		}
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			dead, err := console.ReadDead(ctx, c.Bus, c.machine.Codec(), console.DeadOptions{Namespace: c.namespace, All: true, Dropped: true})
			if err != nil {
				return err
			}
			var errs error
			for i, key := range keys {
				if !console.IsDead(dead, key) {
					errs = errors.Join(errs, fmt.Errorf("%s is not in the list of dead runs and messages", names[i]))
				} else if err := c.Bus.Drop(ctx, key); err != nil {
					errs = errors.Join(errs, err)
				} else {
					_, _ = fmt.Fprintln(c.out, names[i], "dropped")
				}
			}
			return errs
		})
	}
	return cmd
}

func deadRetryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry RUN…",
		Short: "Fork dead runs just before what ended them",
		Long: `Retry forks each named run just before the poison, or before the first failed attempt
of what ended it. It prints the new runs. The old ones stay as they are: drop hides
them.`,
		Args: cobra.MinimumNArgs(1), DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, console.Text)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			var errs error
			for _, id := range ids {
				if err := c.retry(ctx, id); err != nil {
					errs = errors.Join(errs, fmt.Errorf("%s: %w", id, err))
				}
			}
			return errs
		})
	}
	return cmd
}

func (c *client) retry(ctx context.Context, id string) error {
	if _, err := console.DropKey(id); err != nil {
		return err
	}
	at, err := console.RetryAt(ctx, c.Bus, c.machine.Codec(), c.run(id))
	if err != nil {
		return err
	}
	fork, err := c.control.Fork(ctx, c.namespace, id, forking.Request{At: at})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "%s continues %s after event %d\n", fork.RunID, id, at)
	return err
}

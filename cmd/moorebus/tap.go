package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

type tapFlags struct {
	*clientFlags
	run, from     string
	states, types []string
	outputs       bool
	reasoning     bool
}

func tapCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tap",
		Short: "Show events live",
		Long: `Tap shows the events of all runs of the namespace, or of one run, as they are stored:
new ones, and with --from also those since then. It only reads, and does not delay runs.

--from is the position of the log to start after, <shard>:<seq>[,<shard>:<seq>…]. With
--run it is the number of the first event. If a tap ends before its run, stderr shows
the --from that continues without a gap.

--state selects the events that lead to a state or wake its workers. -o json writes one
object per line, with the stored body as event.

--outputs instead shows what a run does: states, calls, text, the answer. With -o json
that is one object per line (see docs/reference/events.md).`,
		Example: `  moorebus tap
  moorebus tap --run 0198c5a0-5a6b-7c00-8000-000000000001 --from 1
  moorebus tap --state acting,parallel_acting -o json | jq -c .event.data.calls
  moorebus tap --type FatalError --from 0:0`,
		Args: cobra.NoArgs,
	}
	f := &tapFlags{clientFlags: addClientFlags(cmd, print.Text, print.JSON)}
	cmd.Flags().StringVar(&f.run, "run", "", "only this `run`, to its end")
	cmd.Flags().StringVar(&f.from, "from", "", "`position` to start after, or the number of the run's first event to show")
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "only events that lead to this `state`, may be repeated")
	cmd.Flags().StringSliceVar(&f.types, "type", nil, "only events of this `type`, may be repeated")
	cmd.Flags().BoolVar(&f.outputs, "outputs", false, "with --run: show what the run does instead of its events, with live text")
	addReasoningFlag(cmd, &f.reasoning)
	f.offerRunFlag(cmd, "run")
	cli.Complete(cmd, "state", stateNames()...)
	cli.Complete(cmd, "type", typeNames()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return f.use(cmd, reads, f.tap)
	}
	return cmd
}

func (f *tapFlags) check() error {
	for _, s := range f.states {
		if !slices.Contains(stateNames(), s) {
			return cli.Usage("--state: %q is not a state; see `moorebus table`", s)
		}
	}
	for _, t := range f.types {
		if !slices.Contains(typeNames(), t) {
			return cli.Usage("--type: %q is not a type of event; see `moorebus table`", t)
		}
	}
	if f.run == "" && f.outputs {
		return cli.Usage("--outputs: needs one run; name it with --run")
	}
	if f.run == "" {
		return nil
	}
	_, err := f.number()
	return err
}

func typeNames() []string {
	table := reducer.DefaultTable()
	var names []string
	for _, row := range table.Spec().Rows {
		names = append(names, string(row.Event))
	}
	for _, t := range slices.Concat(table.Spec().Stay, events.Types()) {
		names = append(names, string(t))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// number parses --from for one run.
func (f *tapFlags) number() (uint64, error) {
	if f.from == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(f.from, 10, 63)
	if err != nil || n == 0 {
		return 0, cli.Usage("--from: %q is not the number of an event; with --run they are counted from 1", f.from)
	}
	return n, nil
}

func (f *tapFlags) tap(ctx context.Context, c *client) error {
	if c.offline() && f.from == "" {
		return errors.New("no process serves " + c.Where + " now, so nothing will happen there: start `moorebus dev`, or read the stored events with --from")
	}
	out := print.NewLossyWriter(c.Out)
	t := &print.Tap{
		Log: c.Log, Machine: c.machine, Out: out, Namespace: c.Namespace, JSON: c.Format == print.JSON,
		Color: c.Color, Stored: c.offline(), Outputs: f.outputs, Feed: c.Log, Reasoning: f.reasoning,
	}
	for _, s := range f.states {
		t.States = append(t.States, events.State(s))
	}
	for _, typ := range f.types {
		t.Types = append(t.Types, events.Type(typ))
	}
	if f.run != "" {
		return cmp.Or(f.tapRun(ctx, c, t), out.Lost())
	}
	from, err := logwalk.End(ctx, c.Log)
	if err == nil && f.from != "" {
		// A shard that is not named is read from its beginning, so nothing is missed.
		if from, err = make(logwalk.Position, c.Log.Shards()).Parse(f.from); err != nil {
			err = cli.Usage("--from: %w", err)
		}
	}
	if err != nil {
		return err
	}
	at, err := t.All(ctx, from)
	if ctx.Err() != nil {
		c.Notef("continue with: moorebus tap --from %s", at)
	}
	return interrupted(ctx, err)
}

func (f *tapFlags) tapRun(ctx context.Context, c *client, t *print.Tap) error {
	from, err := f.number()
	if err != nil {
		return err
	}
	if f.run, err = c.FindRun(ctx, f.run); err != nil {
		return err
	}
	stop := func() {}
	if !t.Stored {
		stop = c.followAwaits(ctx, f.run, func(line string) { c.Notef("%s", cmp.Or(line, "the run waits for no actor any more")) })
	}
	end, err := t.Run(ctx, c.run(f.run), from)
	stop()
	switch {
	case err == nil && end.Ended && end.Lines == 0 && from == 0:
		c.Notef("the run has ended in state %s; --from 1 shows its events", end.State)
	case ctx.Err() != nil:
		c.Notef("continue with: moorebus tap --run %s --from %d", f.run, end.Next)
	}
	return interrupted(ctx, err)
}

// interrupted returns the error of a command that runs until Ctrl-C: after the signal only
// its exit code, without a message.
func interrupted(ctx context.Context, err error) error {
	if signal := cli.Interrupted(ctx); signal != nil && errors.Is(err, context.Canceled) {
		return signal
	}
	return err
}

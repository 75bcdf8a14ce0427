package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func runsCommand() *cobra.Command {
	var q list.Query
	var state, waiting, paused, since, until string
	var cost float64
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List runs, newest first",
		Long: `Runs lists the namespace's runs, newest first. They are ordered by their start, or by
their end with --state done, error or cancelled. If there are more, --cursor continues
after the last one; stderr says how.

A filter other than --state reads the whole log once. A gateway keeps what it read.

On a terminal the table fits its width: it may show the beginnings of ids, leave out columns
and cut tasks. Written elsewhere it has whole ids and times.`,
		Example: `  moorebus runs
  moorebus runs --state waiting_for_human -o json
  moorebus runs --state error --since 24h --text invoice
  moorebus runs --agent reporter --cost-above 0.5`,
		Args: cobra.NoArgs,
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().StringVar(&state, "state", "", "only runs in this `state`")
	cmd.Flags().StringVar(&q.Agent, "agent", "", "only runs of this `agent`")
	cmd.Flags().StringVarP(&q.Text, "text", "q", "", "only runs with this `text` in their id, agent, task, answer or error")
	cmd.Flags().StringVar(&since, "since", "", "only runs started since this `time`, such as 2026-01-02T15:04:05Z or 24h (ago)")
	cmd.Flags().StringVar(&until, "until", "", "only runs started before this `time`")
	cmd.Flags().StringVar(&q.Parent, "parent", "", "only runs that answer calls of this `run`")
	cmd.Flags().StringVar(&waiting, "waiting", "", "only runs that wait for `whom`: human, user, client, actor or any")
	cmd.Flags().StringVar(&paused, "paused", "", "only `paused` runs: any, or restored for those that a restore paused")
	cmd.Flags().Float64Var(&cost, "cost-above", 0, "only runs that cost more than this number of US `dollars`")
	cmd.Flags().IntVar(&q.Limit, "limit", 50, "number of runs to list, 1 to 1000")
	cmd.Flags().StringVar(&q.Cursor, "cursor", "", "continue after this `run`")
	flags.offerRunFlag(cmd, "parent")
	complete(cmd, "state", stateNames()...)
	complete(cmd, "waiting", names(list.Waitings)...)
	complete(cmd, "paused", string(list.PausedAny), string(list.PausedRestored))
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if q.Limit < 1 {
			return cli.Usage("--limit: must be 1 to 1000, is %d", q.Limit)
		}
		q.State, q.Waiting, q.Paused = events.State(state), list.Waiting(waiting), list.Paused(paused)
		if cmd.Flags().Changed("cost-above") {
			q.CostAbove = &cost
		}
		if q.Since, err = timeFlag("since", since); err != nil {
			return err
		}
		if q.Until, err = timeFlag("until", until); err != nil {
			return err
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			if q.Parent != "" {
				if q.Parent, err = c.find(ctx, q.Parent); err != nil {
					return err
				}
			}
			page, err := c.control.Runs(ctx, c.namespace, q)
			if err != nil {
				return err
			}
			if err := print.Runs(c.out, c.format, page, screen()); err != nil {
				return err
			}
			if page.Next != "" && c.format == print.Table {
				c.notef("there are more runs; continue with --cursor %s", page.Next)
			}
			return nil
		})
	}
	return cmd
}

// screen is stdout, if it is a terminal.
func screen() print.Screen {
	s := print.Screen{Color: terminal.Stdout.Color(os.Getenv), Now: time.Now()}
	if terminal.Stdout.IsTerminal() {
		s.Columns = terminal.Stdout.Columns()
	}
	return s
}

// timeFlag reads a time, or how long ago it was.
func timeFlag(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, cli.Usage("--%s: %q is neither a time such as 2026-01-02T15:04:05Z nor a duration such as 24h", name, text)
	}
	return at, nil
}

// addReasoningFlag adds --reasoning.
func addReasoningFlag(cmd *cobra.Command, reasoning *bool) {
	cmd.Flags().BoolVar(reasoning, "reasoning", false, "show all that the model reasoned, not one line of it")
}

func stateNames() []string {
	states := reducer.DefaultTable().States()
	return names(states)
}

// names returns names as text.
func names[T ~string](all []T) []string {
	texts := make([]string, len(all))
	for i, name := range all {
		texts[i] = string(name)
	}
	return texts
}

func showCommand() *cobra.Command {
	var at uint64
	var memory, reasoning, request, usage, tree bool
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run: its steps and events, its answer or error",
		Long: `Show prints a run's state, its steps (what the model replied and the tools returned, with
time, tokens and cost), its events one per line, and its answer, its error, or what it
waits for. --at shows it as of that event. --memory prints its whole memory
instead, in JSON or YAML. --request prints what the model was asked for the reply that is
event --at: the body of the HTTP request, or without --at that of the request whose reply
the run waits for. It follows from the log; stderr says if it may differ from what was sent.

--usage prints tokens, cost and time instead: in all, by step, tool, model and sub-run.
--tree prints the runs that the run belongs to, with their states: those whose calls it and
others answer, hand-offs and forks.`,
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
			id, err := c.find(ctx, args[0])
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
	req, err := c.control.Request(ctx, c.namespace, id, at)
	if err != nil {
		return err
	}
	if req.Exact != nil && !*req.Exact && req.Dialect != providers.Scripted {
		c.notef("what was sent may differ: its digest is not that of this request; a running planner with the provider knows its settings")
	}
	_, err = fmt.Fprintf(c.out, "%s\n", req.Body)
	return err
}

func (c *client) showUsage(ctx context.Context, id string) error {
	u, err := c.control.Usage(ctx, c.namespace, id)
	if err != nil {
		return err
	}
	return print.Usage(c.out, c.format, u, c.color)
}

func (c *client) showTree(ctx context.Context, id string) error {
	tree, err := c.control.Tree(ctx, c.namespace, id)
	if err != nil {
		return err
	}
	return print.Tree(c.out, c.format, tree, c.color)
}

func (c *client) show(ctx context.Context, id string, at uint64, memory, reasoning bool) error {
	records, err := c.control.Events(ctx, c.namespace, id, 1)
	if err != nil {
		return err
	}
	run, mem, err := print.ReadRun(ctx, runlog.NewFold(c.log, c.machine, c.run(id)), at, records)
	switch {
	case err != nil:
		return err
	case run.N < at:
		return cli.Usage("--at: the run has %d events, so it is 1 to %d", run.N, run.N)
	case memory:
		return print.Write(c.out, c.format, mem)
	}
	run.Reasoning = run.Reasoning || reasoning
	if run.WaitsFor, err = c.waitsFor(ctx, id, run.State, run.N); err != nil {
		return err
	}
	return run.Write(c.out, c.format, c.color)
}

// waitsFor returns which pool the run waits for after its event n, which led to a state; nil: for
// none.
func (c *client) waitsFor(ctx context.Context, id string, at events.State, n uint64) (*runs.WaitsFor, error) {
	if at != events.Acting && at != events.ParallelActing {
		return nil, nil
	}
	state, err := c.control.State(ctx, c.namespace, id, 0)
	if err != nil || state.N != n {
		return nil, err
	}
	return state.WaitsFor, nil
}

func traceCommand() *cobra.Command {
	var state, file string
	var o runprint.Options
	cmd := &cobra.Command{
		Use:   "trace RUN",
		Short: "Show the events of a run, or those of one state",
		Long: `Trace prints what happened in a run, one event per line, as show, tap and replay do. It
reads the bus, the data directory, or with --file what moorebus export wrote.`,
		Example: `  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001 --state planning -o json
  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001 --file runs.jsonl`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON, print.Table) // table is what it was called before
	flags.offerRuns(cmd, 1)
	cmd.Flags().StringVar(&state, "state", "", "only what happened in this `state`")
	cmd.Flags().StringVar(&file, "file", "", "read from this `file` instead of a bus")
	addReasoningFlag(cmd, &o.Reasoning)
	complete(cmd, "state", stateNames()...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.CheckRuns(args); err != nil {
			return err
		}
		o.In = events.State(state)
		if file == "" {
			return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
				id, err := c.find(ctx, args[0])
				if err != nil {
					return err
				}
				return c.trace(ctx, c.log, c.run(id), o)
			})
		}
		return traceFile(cmd, flags, file, args[0], o)
	}
	return cmd
}

// traceFile writes the trace of a run in an export.
func traceFile(cmd *cobra.Command, flags *clientFlags, file, run string, o runprint.Options) (err error) {
	c := &client{machine: reducer.NewMachine(reducer.MachineOptions{}), out: cmd.OutOrStdout(), color: terminal.Stdout.Color(os.Getenv)}
	if c.format, err = print.ParseFormat(flags.output, flags.formats...); err != nil {
		return err
	}
	namespace, _, err := flags.bus.Namespace()
	if err != nil {
		return err
	}
	f, err := filelog.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if torn := f.Torn(); torn != nil {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), torn)
	}
	if run, err = print.FindRun(cmd.Context(), run, print.FinderOf(f.Runs(), namespace)); err != nil {
		return err
	}
	return c.trace(cmd.Context(), f, events.NewRun(namespace, run, f.Shards()), o)
}

func (c *client) trace(ctx context.Context, log journal.Log, run events.Run, o runprint.Options) error {
	if err := checkState(c.machine.Table(), o.In); err != nil {
		return err
	}
	o.JSON, o.Color = c.format == print.JSON, c.color
	return runprint.Run(ctx, c.out, log, c.machine, run, o)
}

// checkState returns a usage error for a state that the run's table does not have. Empty
// means every state.
func checkState(table *reducer.Table, state events.State) error {
	if states := table.States(); state != "" && !slices.Contains(states, state) {
		return cli.Usage("--state: %q is not a state of the run; use %s", state, strings.Join(texts(states), ", "))
	}
	return nil
}

func texts(states []events.State) []string {
	all := make([]string, len(states))
	for i, s := range states {
		all[i] = string(s)
	}
	return all
}

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
new ones, and with --from also those since then. It only reads, and no run waits for
it.

--from is a position of the log, <shard>:<seq>[,<shard>:<seq>…], to begin after. With
--run it is the number of the first event. If a tap ends before its run does, stderr
says which --from continues without a gap.

--state selects the events that lead to a state or wake its workers. -o json writes one
object per line, with the stored body as event.

--outputs shows what a run does instead: states, calls, words, the answer. With -o json
that is one object per line (see docs/reference/events.md).`,
		Example: `  moorebus tap
  moorebus tap --run 0198c5a0-5a6b-7c00-8000-000000000001 --from 1
  moorebus tap --state acting,parallel_acting -o json | jq -c .event.data.calls
  moorebus tap --type FatalError --from 0:0`,
		Args: cobra.NoArgs,
	}
	f := &tapFlags{clientFlags: addClientFlags(cmd, print.Text, print.JSON)}
	cmd.Flags().StringVar(&f.run, "run", "", "only this `run`, to its end")
	cmd.Flags().StringVar(&f.from, "from", "", "`position` to begin after, or the number of the run's first event to show")
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "only events that lead to this `state`, may be repeated")
	cmd.Flags().StringSliceVar(&f.types, "type", nil, "only events of this `type`, may be repeated")
	cmd.Flags().BoolVar(&f.outputs, "outputs", false, "with --run: show what the run does instead of its events, with the model's words as they come")
	addReasoningFlag(cmd, &f.reasoning)
	f.offerRunFlag(cmd, "run")
	complete(cmd, "state", stateNames()...)
	complete(cmd, "type", typeNames()...)
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
	for _, row := range table.Rows() {
		names = append(names, string(row.Event))
	}
	for _, t := range slices.Concat(table.StayTypes(), events.Types()) {
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
	out := print.NewLossyWriter(c.out)
	t := &print.Tap{
		Log: c.log, Machine: c.machine, Out: out, Namespace: c.namespace, JSON: c.format == print.JSON,
		Color: c.color, Stored: c.offline(), Outputs: f.outputs, Feed: c.log, Reasoning: f.reasoning,
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
	from, err := journal.End(ctx, c.log)
	if err == nil && f.from != "" {
		// A shard that is not named is read from its beginning, so nothing is missed.
		if from, err = make(journal.Position, c.log.Shards()).Parse(f.from); err != nil {
			err = cli.Usage("--from: %w", err)
		}
	}
	if err != nil {
		return err
	}
	at, err := t.All(ctx, from)
	if ctx.Err() != nil {
		c.notef("continue with: moorebus tap --from %s", at)
	}
	return interrupted(ctx, err)
}

func (f *tapFlags) tapRun(ctx context.Context, c *client, t *print.Tap) error {
	from, err := f.number()
	if err != nil {
		return err
	}
	if f.run, err = c.find(ctx, f.run); err != nil {
		return err
	}
	stop := func() {}
	if !t.Stored {
		stop = c.followAwaits(ctx, f.run, func(line string) { c.notef("%s", cmp.Or(line, "the run waits for no actor any more")) })
	}
	end, err := t.Run(ctx, c.run(f.run), from)
	stop()
	switch {
	case err == nil && end.Ended && end.Lines == 0 && from == 0:
		c.notef("the run has ended in state %s; --from 1 shows its events", end.State)
	case ctx.Err() != nil:
		c.notef("continue with: moorebus tap --run %s --from %d", f.run, end.Next)
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

func tableCommand() *cobra.Command {
	const mermaid, dot print.Format = "mermaid", "dot"
	var format string
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Print the transition table",
		Long: `Table prints the transition table: which event leads from which state to which. It
needs no bus.`,
		Example: `  moorebus table
  moorebus table -o dot | dot -Tsvg > table.svg`,
		Args: cobra.NoArgs,
	}
	addOutputFlag(cmd, &format, print.Text, mermaid, dot)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		parsed, err := print.ParseFormat(format, print.Text, mermaid, dot)
		if err != nil {
			return err
		}
		table := reducer.DefaultTable()
		text := map[print.Format]func(*reducer.Table) string{print.Text: runstream.TableText, mermaid: runstream.TableMermaid, dot: runstream.TableDOT}
		_, err = io.WriteString(cmd.OutOrStdout(), text[parsed](table))
		return err
	}
	return cmd
}

func toolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "List the tools that actors offer",
		Long: `Tools lists the tools that living actors announce. An agent may name these. A tool
disappears 30 seconds after its last announcement.`,
		Example: `  moorebus tools
  moorebus tools -o json | jq '.[] | select(.name == "search").schema'`,
		Args: cobra.NoArgs,
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			tools, err := c.control.Tools(ctx)
			if err != nil {
				return err
			}
			if len(tools) == 0 && c.format == print.Table {
				c.notef("no actor announces tools; start `actor --tools FILE` or `moorebus dev`")
			}
			return print.Tools(c.out, c.format, tools)
		})
	}
	return cmd
}

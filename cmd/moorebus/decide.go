package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func approveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve RUN [CALL]",
		Short: "Approve a waiting call",
		Long: `Approve runs a tool call that waits for a human. CALL is optional if only one call of
the run waits; show lists waiting calls. With --arguments the call runs with other
arguments, which the tool's schema has to allow. It prints the run's state.

The first decision on a call holds; a second one fails and says what the first was.`,
		Example: `  moorebus approve 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus approve 0198c5a0-5a6b-7c00-8000-000000000001 call_2 --arguments '{"path": "notes.txt"}' --by ann`,
		Args: cobra.RangeArgs(1, 2),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
	by := addByFlags(cmd)
	arguments := cmd.Flags().String("arguments", "", "run the call with these arguments instead, as `JSON`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d := decision(events.DecisionApproved, args, by())
		if cmd.Flags().Changed("arguments") {
			if *arguments == "" {
				return cli.Usage("--arguments: is empty; leave it out to let the call run as it is")
			}
			d.Decision, d.Arguments = events.DecisionModified, *arguments
		}
		return flags.decide(cmd, args[0], d, nil)
	}
	return cmd
}

func rejectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reject RUN [CALL]",
		Short: "Reject a waiting call",
		Long: `Reject refuses a tool call that waits for a human: it does not run, and the model is
told the reason. CALL is optional if only one call of the run waits; show lists
waiting calls. It prints the run's state.

The first decision on a call holds; a second one fails and says what the first was.`,
		Example: `  moorebus reject 0198c5a0-5a6b-7c00-8000-000000000001 --reason "use the test account"`,
		Args:    cobra.RangeArgs(1, 2),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d := decision(events.DecisionRejected, args, by())
		if strings.TrimSpace(d.Reason) == "" {
			return cli.Usage("--reason: is required: the model is told why the call does not run")
		}
		return flags.decide(cmd, args[0], d, nil)
	}
	return cmd
}

func answerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "answer RUN [CALL] TEXT",
		Short: "Answer a question of a run",
		Long: `Answer answers an agent's question to a human, for example of the builtin tool
ask_human. CALL is optional if only one call of the run waits; show lists waiting
calls with their questions. It prints the run's state.

The first answer to a question holds; a second one fails and says what the first was.`,
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

// decision returns a decision. Its call is empty if the arguments name none.
func decision(what string, args []string, by events.By) events.Decision {
	d := events.Decision{Decision: what, Reason: by.Reason, By: by.By}
	if len(args) > 1 {
		d.CallID = args[1]
	}
	return d
}

// decide sends a decision to a run. A decision that names no call is for the one call that
// waits. complete, which may be nil, fills in the decision for the waiting request.
func (f *clientFlags) decide(cmd *cobra.Command, arg string, d events.Decision, complete func(events.Request, *events.Decision) error) error {
	if strings.TrimSpace(d.By) == "" {
		return cli.Usage("--by: is required, because USER is not set: every decision names who made it")
	}
	return f.use(cmd, writes, func(ctx context.Context, c *client) error {
		id, err := c.find(ctx, arg)
		if err != nil {
			return err
		}
		waits, err := c.waiting(ctx, id, d.CallID)
		if err != nil {
			return err
		}
		d.CallID = waits.CallID
		if complete != nil {
			if err := complete(waits, &d); err != nil {
				return err
			}
		}
		result, err := c.control.Decide(ctx, c.namespace, id, d)
		if err != nil {
			return err
		}
		c.noteOffline()
		return c.writeState(id, result, "")
	})
}

// waiting returns the request for the named call. Without a name it returns the only request
// that waits for a decision. It does not check that a named call waits: Decide does.
func (c *client) waiting(ctx context.Context, id, callID string) (events.Request, error) {
	state, err := c.control.State(ctx, c.namespace, id, 0)
	if err != nil {
		return events.Request{}, err
	}
	var mem reducer.Memory
	if err := json.Unmarshal(state.Memory, &mem); err != nil {
		return events.Request{}, fmt.Errorf("memory of run %s: %w", id, err)
	}
	if callID == "" {
		switch waiting := decisions.Undecided(mem.PendingApproval); len(waiting) {
		case 0:
			return events.Request{}, fmt.Errorf("no call of run %s waits for a decision; it is in state %s", id, state.State)
		case 1:
			callID = waiting[0]
		default:
			return events.Request{}, cli.Usage("%d calls of run %s wait for a decision; name one of %s", len(waiting), id, strings.Join(waiting, ", "))
		}
	}
	callID = callname.Find(&mem, callID)
	if a := mem.PendingApproval; a != nil {
		for _, r := range a.Requests {
			if r.CallID == callID {
				return r, nil
			}
		}
	}
	return events.Request{CallID: callID}, nil
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

// change is a command that changes runs, each in the same way.
type change struct {
	name, short, long, example string
	// suffix follows the run's state in the output.
	suffix string
	// drives says that the command lets the run continue.
	drives bool
	do     func(c gateway, ctx context.Context, ns, id string, by events.By) (runs.Result, error)
}

func (x change) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: x.name + " RUN…", Short: x.short, Long: x.long, Example: x.example, Args: cobra.MinimumNArgs(1),
		DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 0)
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, runs []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error { return x.all(ctx, c, runs, by()) })
	}
	return cmd
}

// all changes every run, even if another one fails.
func (x change) all(ctx context.Context, c *client, runs []string, by events.By) error {
	var failed error
	done := 0
	for _, arg := range runs {
		result, id, err := x.one(ctx, c, arg, by)
		if err == nil {
			done++
			err = c.writeState(id, result, x.suffix)
		} else {
			err = fmt.Errorf("%s: %w", arg, err)
		}
		failed = errors.Join(failed, err)
	}
	if x.drives && done > 0 {
		c.noteOffline()
	}
	return failed
}

func (x change) one(ctx context.Context, c *client, arg string, by events.By) (result runs.Result, id string, err error) {
	if id, err = c.find(ctx, arg); err == nil {
		result, err = x.do(c.control, ctx, c.namespace, id, by)
	}
	return result, id, err
}

func (c *client) writeState(id string, r runs.Result, suffix string) error {
	if c.format == print.JSON {
		return print.WriteJSON(c.out, struct {
			RunID string `json:"run_id"`
			runs.Result
		}{id, r})
	}
	_, err := fmt.Fprintf(c.out, "%s %s%s\n", id, r.State, suffix)
	return err
}

// post posts inputs to a run and shows how it stands then.
func (c *client) post(ctx context.Context, arg string, inputs []control.Input) error {
	id, err := c.find(ctx, arg)
	if err != nil {
		return err
	}
	if _, err := c.control.Inputs(ctx, c.namespace, id, inputs); err != nil {
		return err
	}
	state, err := c.control.State(ctx, c.namespace, id, 0)
	if err != nil {
		return err
	}
	c.noteOffline()
	return c.writeState(id, runs.Result{State: state.State, N: state.N}, "")
}

// noteOffline says that no process continues a run.
func (c *client) noteOffline() {
	if c.offline() {
		c.notef("no process serves %s now: the run continues when `moorebus dev` does", c.Where)
	}
}

func cancelCommand() *cobra.Command {
	return change{
		name: "cancel", short: "Cancel runs",
		long: `Cancel ends runs by an event. Their model calls and tools are cancelled, whatever
process they are in. It prints the state of each run. A run that has already ended
stays as it is, and the exit code is 1.`,
		example: `  moorebus cancel 0198c5a0-5a6b-7c00-8000-000000000001 --reason "wrong file"
  moorebus runs --state planning -o json | jq -r '.runs[].run_id' | xargs moorebus cancel`,
		do: gateway.Cancel,
	}.command()
}

func pauseCommand() *cobra.Command {
	return change{
		name: "pause", short: "Pause runs",
		long: `Pause keeps runs from starting new model calls and tools. Calls in flight continue to
their end, and their results are kept. It prints the state of each run. See resume.`,
		example: `  moorebus pause 0198c5a0-5a6b-7c00-8000-000000000001`,
		suffix:  " (paused)",
		do:      gateway.Pause,
	}.command()
}

func resumeCommand() *cobra.Command {
	var restored bool
	x := change{drives: true, do: gateway.Resume}
	cmd := &cobra.Command{
		Use: "resume [RUN…]", Short: "Resume paused runs",
		Long: `Resume continues paused runs. Work that is still in flight since the pause does not
start again. It prints the state of each run. A run that is not paused stays as it
is, and the exit code is 1.

--restored resumes the namespace's runs that moorebus restore paused. With names it resumes
those alone. Runs that were paused before the backup, or by somebody since, stay paused.`,
		Example: `  moorebus resume 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus resume --restored`,
		DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 0)
	by := addByFlags(cmd)
	cmd.Flags().BoolVar(&restored, "restored", false, "only runs that moorebus restore paused; without names, all of them")
	cmd.RunE = func(cmd *cobra.Command, runs []string) error {
		if restored {
			x.do = gateway.Release
		} else if len(runs) == 0 {
			return cli.Usage("name the runs, or resume those that a restore paused with --restored")
		}
		return flags.use(cmd, writes, func(ctx context.Context, c *client) (err error) {
			if len(runs) == 0 {
				if runs, err = c.restoredRuns(ctx); err != nil {
					return err
				}
			}
			return x.all(ctx, c, runs, by())
		})
	}
	return cmd
}

// restoredRuns returns the namespace's runs that a restore paused, the oldest first.
func (c *client) restoredRuns(ctx context.Context) (runs []string, err error) {
	q := list.Query{Paused: list.PausedRestored, Limit: list.MaxLimit}
	for {
		page, err := c.control.Runs(ctx, c.namespace, q)
		if err != nil {
			return nil, err
		}
		for _, run := range page.Runs {
			runs = append(runs, run.RunID)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	if len(runs) == 0 {
		c.notef("no run of namespace %s is paused by a restore", c.namespace)
	}
	slices.Reverse(runs)
	return runs, nil
}

func sendCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "send RUN MESSAGE",
		Short: "Send a user's message to a run",
		Long: `Send sends a user's message to a run: the next one of a conversation that waits for
it, or one more in the middle of the work. MESSAGE - is read from stdin. It prints the
run's state.

--attach adds an image or another file; MESSAGE may then be empty. With --id the message
has a name, and sending it again changes nothing.`,
		Example: `  moorebus send 0198c5a0-5a6b-7c00-8000-000000000001 "And in euros?"
  moorebus send 0198c5a0-5a6b-7c00-8000-000000000001 --id question-2 - < question.txt`,
		Args: cobra.ExactArgs(2),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
	files := addAttachFlag(cmd)
	cmd.Flags().StringVar(&id, "id", "", "name of the message, unique in the run (default: a new one)")
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

func forkCommand() *cobra.Command {
	var at uint64
	var patch, key string
	cmd := &cobra.Command{
		Use:   "fork RUN --at N",
		Short: "Start a run that continues from an event of another run",
		Long: `Fork starts a run that continues from event N of another run. The other run is not
changed. Work that was in flight there starts again in the fork: a model call is made
once more, and a tool without a result runs once more. It prints the fork's id.

--patch changes the fork: a JSON merge patch (RFC 7396) over the keys of an agent's
definition and the run's task, task_type and mode.

With --key a repeated command makes no second fork: it prints the first one's id
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
			id, err := c.find(ctx, args[0])
			if err != nil {
				return err
			}
			fork, err := c.control.Fork(ctx, c.namespace, id, forking.Request{At: at, Patch: change, Key: key})
			if err != nil {
				return err
			}
			c.noteOffline()
			if c.format == print.JSON {
				return print.WriteJSON(c.out, fork)
			}
			_, err = fmt.Fprintln(c.out, fork.RunID)
			return err
		})
	}
	return cmd
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

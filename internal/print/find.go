package print

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/pkg/events"
)

// shownMatches is how many runs an error lists, offeredRuns how many the shell offers, each with
// describedTask characters of its task.
const (
	shownMatches  = 5
	offeredRuns   = 50
	describedTask = 60
)

// RunFinder returns at most limit runs whose ids begin with a prefix, newest first, see
// [list.Lister.Find].
type RunFinder func(ctx context.Context, prefix string, limit int) ([]list.Run, error)

// FindRun returns the id of the run that an argument names. The argument is an entire id, which is
// not looked up, the beginning of one run's id, or [cli.LastRun]. The error is a usage error if
// no run, or more than one, has such an id.
func FindRun(ctx context.Context, arg string, find RunFinder) (string, error) {
	if events.CheckID(arg) == nil {
		return arg, nil
	}
	if err := cli.CheckRuns([]string{arg}); err != nil {
		return "", err
	}
	prefix, limit := arg, shownMatches+1
	if arg == cli.LastRun {
		prefix, limit = "", 1
	}
	found, err := find(ctx, prefix, limit)
	switch {
	case err != nil:
		return "", err
	case len(found) == 0 && prefix == "":
		return "", fmt.Errorf("%s: there is no run in this namespace", arg)
	case len(found) == 0:
		return "", fmt.Errorf("there is no run in this namespace whose id begins with %s", arg)
	case len(found) == 1:
		return found[0].RunID, nil
	}
	text := fmt.Sprintf("%s is the beginning of several runs; write more of it:", arg)
	for i, r := range found {
		if i == shownMatches {
			text += "\n  …"
			break
		}
		text += "\n  " + r.RunID + "  " + describe(r)
	}
	return "", cli.Usage("%s", text)
}

// FindRuns returns the runs of a namespace that arguments name, see [FindRun], in a log with so many shards.
func FindRuns(ctx context.Context, args []string, find RunFinder, namespace string, shards int) ([]events.Run, error) {
	runs := make([]events.Run, len(args))
	for i, arg := range args {
		id, err := FindRun(ctx, arg, find)
		if err != nil {
			return nil, err
		}
		runs[i] = events.NewRun(namespace, id, shards)
	}
	return runs, nil
}

// FinderOf returns a finder among runs, such as those of a file.
func FinderOf(runs []events.Run, namespace string) RunFinder {
	return func(_ context.Context, prefix string, limit int) ([]list.Run, error) {
		var found []list.Run
		newest := func(a, b events.Run) int { return strings.Compare(b.ID, a.ID) } // an id begins with its time
		for _, run := range slices.SortedFunc(slices.Values(runs), newest) {
			if run.Namespace == namespace && strings.HasPrefix(run.ID, prefix) && len(found) < limit {
				found = append(found, list.Run{RunID: run.ID})
			}
		}
		return found, nil
	}
}

// describe returns a run's agent and task on one line.
func describe(r list.Run) string { return Plain(r.Agent) + "  " + Cut(r.Task, describedTask) }

// offerWait is how long the shell waits for the ids of runs.
const offerWait = 2 * time.Second

// OfferRuns returns what the shell offers for the arguments of a command, the first ones of which
// are runs, all with 0: the newest runs that begin as typed, with agent and task. open calls its
// function with a finder. Errors offer nothing.
func OfferRuns(arguments int, open func(cmd *cobra.Command, fn func(context.Context, RunFinder) error) error) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if arguments > 0 && len(args) >= arguments {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, stop := context.WithTimeout(cmd.Context(), offerWait)
		defer stop()
		cmd.SetContext(ctx)
		var all []cobra.Completion
		_ = open(cmd, func(ctx context.Context, find RunFinder) error { // what fails offers nothing
			found, err := find(ctx, typed, offeredRuns)
			for _, r := range found {
				all = append(all, cobra.CompletionWithDesc(r.RunID, describe(r)))
			}
			return err
		})
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

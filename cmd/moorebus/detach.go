package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
)

// detached says whether `moorebus run` leaves the run to other processes, and which gateway they
// have, if any.
type detached struct {
	wanted  bool
	gateway *cli.GatewayFlags
}

// add adds --detach, and the flags that only go with it.
func (d *detached) add(flags *pflag.FlagSet, bus *cli.BusFlags) {
	flags.BoolVar(&d.wanted, "detach", false, "start the run for other processes, print its id, and exit")
	bus.AddServer(flags, func() bool { return d.wanted })
	d.gateway = cli.AddGatewayFlags(flags, os.Getenv)
}

// check returns a usage error for flags that go with the other kind of run.
func (d *detached) check(flags *pflag.FlagSet) error {
	if !d.wanted {
		for _, name := range []string{"nats", "url", "token", "ca"} {
			if flags.Changed(name) {
				return cli.Usage("--%s: needs --detach; without it run starts its own server", name)
			}
		}
		return nil
	}
	for _, name := range []string{"providers", "prices", "reasoning", "nats-listen", "fsync", "max-bytes", "group-commit", "snapshot-every"} {
		if flags.Changed(name) {
			return cli.Usage("--%s: excludes --detach: the process that works on the run has its own setting", name)
		}
	}
	return nil
}

// detach starts the run for other processes and says how to follow it. Without such a process
// it refuses.
func (f *localFlags) detach(cmd *cobra.Command, d detached, docs agentfile.Documents, start control.StartRequest, format print.Format) error {
	_, from, err := d.gateway.Gateway(f.bus)
	if err != nil {
		return err
	}
	elsewhere := from != ""
	nobody := func() error {
		return cli.Failed("no process works on runs in %s: start one with `%s`, or leave out --detach", f.dir, f.dev())
	}
	if !elsewhere {
		at, err := f.bus.Place()
		if err != nil {
			return err
		}
		f.dir, elsewhere = at.Dir, at.Remote
		if at.Missing() {
			return nobody()
		}
	}
	remote := &clientFlags{bus: f.bus, gateway: d.gateway, log: f.log, output: string(format), formats: []print.Format{print.Text, print.JSON}}
	return remote.use(cmd, reads, func(ctx context.Context, c *client) error {
		if c.offline() {
			return nobody()
		}
		if len(docs.Others) > 0 || len(toolfile.Subagents(docs.Tools)) > 0 {
			if err := compose.PutAgents(ctx, c, c.Namespace, docs); err != nil {
				return err
			}
		}
		started, err := requests.Start.Call(ctx, c.API, requests.NewRun{Body: requests.Starts(start)})
		switch {
		case refusal.Is(err, refusal.CodeUnknownProvider), refusal.Is(err, refusal.CodeUnknownTool):
			if elsewhere {
				return fmt.Errorf("%w; planners and actors of the bus must offer it", err)
			}
			return fmt.Errorf("%w; the process that serves %s must offer it, as `%s` does", err, f.dir, f.dev())
		case err != nil:
			return err
		case c.Format == print.JSON:
			err = print.WriteJSON(c.Out, started)
		default:
			_, err = fmt.Fprintln(c.Out, started.RunID)
		}
		where := whereFlags(cmd.Flags())
		c.Notef("follow it with: %[1]s tap --run %[2]s --from 1%[3]s\nsee it with: %[1]s show %[2]s%[3]s\nend it with: %[1]s cancel %[2]s%[3]s", cli.Self(), started.RunID, where)
		return err
	})
}

// whereFlags returns the flags of a command that say where runs are, as another command takes
// them.
func whereFlags(flags *pflag.FlagSet) string {
	var b strings.Builder
	for _, name := range []string{"url", "ca", "nats", "data", "namespace"} {
		if flags.Changed(name) {
			fmt.Fprintf(&b, " --%s %s", name, cli.ShellWord(flags.Lookup(name).Value.String()))
		}
	}
	return b.String()
}

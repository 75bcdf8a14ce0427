// Command chaos carries many runs through Moorebus while its processes are killed
// and started again, and then reads the log to see whether anything was lost,
// doubled or left hanging.
//
//	go run ./chaos                     300 runs around one server that syncs always, two shards
//	go run ./chaos --cluster           the same around three servers with three replicas
//	go run ./chaos --runs 24 --seed 7  a short one, with a mix and faults that can be had again
//
// Everything is real: the commands of cmd as their own processes, nats-server
// as a process of the version that the module names, HTTP in between. Only the
// model, most tools and the runs' clients are this process, which is not killed, so that it can
// count what was executed. What it finds wrong it says, with the run and its
// events; the logs of all processes are then kept.
//
// The mix of runs and the times, kinds and victims of faults follow from the
// seed. What a fault hits does not: processes are not deterministic.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/spf13/cobra"
)

func main() { cli.Main(command()) }

// options say what is played and how badly it is treated.
type options struct {
	runs     int
	seed     uint64
	cluster  bool
	shards   int
	inFlight int
	// pause is the mean time between two faults.
	pause time.Duration
	// faultTime bounds how long there are faults; they end earlier once nine
	// runs of ten have ended.
	faultTime time.Duration
	// settleTime is how long the rest may take once everything is up.
	settleTime time.Duration
	// outage takes the only actor of a pool away for longer than it is announced
	// and waited for, and an only server for longer than requests wait.
	outage bool
	// group is the processes' --group-commit; empty: on or off, by the seed.
	group string
	// dir is where data and logs go; it is removed if all is well.
	dir  string
	keep bool
	// bin has the commands; empty: they are built.
	bin string
}

// groupCommit is what the processes are told.
func (o options) groupCommit() string {
	if o.group == "" {
		return []string{"on", "off"}[o.seed%2]
	}
	return o.group
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Kill processes of Moorebus while they carry runs, and audit the log",
		Long: `Chaos starts nats-server, two planners, five actors, two observers, a gateway, an
exporter of traces and two instances of a NATS service with tools,
carries a mix of runs through them, and meanwhile kills a random one of them
(SIGKILL) every few hundred milliseconds and starts it again, asks it to end
(SIGTERM), or stops it for longer than the ack wait (SIGSTOP) and lets it go on.
Three of the actors have different tools of one pool. The model refuses everybody
now and then, and the only actor of a pool is away for long. At the end every run
has to be over, and the log has to hold every event once, one result for each
call, the first one of a run's client, one run for each call of an agent, and no call of a once tool that was
executed twice without a human's leave. The metrics of the roles have to agree with the
log but for what a killed process had counted since it was scraped last, the spans that
were sent while their exporter was killed have to be those of the log, each once, and a
webhook has to tell every end. A schedule starts runs meanwhile, which a quota queues: each
firing has to start one run, and each has to be admitted once.
It is then exported and imported into an empty server, which has to hold the same.
Exit 1 says that something is wrong, and what.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.runs < 1 || o.shards < 1 || o.inFlight < 1 || o.pause <= 0 || o.faultTime < 0 || o.settleTime <= 0 {
				return cli.Usage("--runs, --shards, --in-flight, --pause and --settle-time must be more than nothing")
			}
			if o.seed == 0 {
				o.seed = uint64(time.Now().UnixNano()) % 1_000_000
			}
			if _, err := natsbus.ParseGroupCommit(o.groupCommit()); err != nil {
				return cli.Usage("--group-commit: %s", err)
			}
			report, err := play(cmd.Context(), o, cmd.ErrOrStderr())
			if report != nil {
				report.print(cmd.OutOrStdout())
			}
			if err != nil {
				return err
			}
			if len(report.findings) > 0 {
				return fmt.Errorf("%d findings; repeat with --seed %d", len(report.findings), o.seed)
			}
			return nil
		},
	}
	cmd.AddCommand(serviceCommand())
	flags := cmd.Flags()
	flags.IntVar(&o.runs, "runs", 300, "number of runs")
	flags.Uint64Var(&o.seed, "seed", 0, "seed of mix and faults; 0 takes one from the clock")
	flags.BoolVar(&o.cluster, "cluster", false, "three servers and three replicas, whose leader is the favourite victim")
	flags.IntVar(&o.shards, "shards", 2, "streams that the log consists of")
	flags.IntVar(&o.inFlight, "in-flight", 40, "runs at once")
	flags.DurationVar(&o.pause, "pause", 300*time.Millisecond, "mean time between two faults")
	flags.DurationVar(&o.faultTime, "fault-time", 2*time.Minute, "how long there are faults at most")
	flags.DurationVar(&o.settleTime, "settle-time", 90*time.Second, "how long the last runs may take once everything is up again")
	flags.BoolVar(&o.outage, "outage", true, "some things are away for long: the only actor of a pool until its calls are answered without it, 40 s, and an only server")
	flags.StringVar(&o.group, "group-commit", "", "auto, on or off, as the roles have it (default: on or off, by the seed)")
	flags.StringVar(&o.dir, "dir", "", "`folder` for data and logs (default: a temporary one)")
	flags.BoolVar(&o.keep, "keep", false, "keep the folder though all is well")
	flags.StringVar(&o.bin, "bin", "", "`folder` with the commands and nats-server (default: they are built)")
	return cmd
}

// build builds all commands, and the server of the version that the module
// names, into a folder. It has to be called inside the module.
func build(ctx context.Context, dir string) error {
	return runGo(ctx, "build", "-o", dir+string(os.PathSeparator), "github.com/moorebus/moorebus/cmd/...", "github.com/moorebus/moorebus/chaos", "github.com/nats-io/nats-server/v2")
}

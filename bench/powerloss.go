package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moorebus/moorebus/bench/powerloss"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/spf13/cobra"
)

// powerlossCommand is the proof that a power loss takes nothing that was acknowledged.
func powerlossCommand() *cobra.Command {
	var o powerloss.Options
	var entries string
	cmd := &cobra.Command{
		Use: "powerloss", Short: "Lose the power at many moments of a recorded load, and look for what was acknowledged (Linux, strace)", Args: cobra.NoArgs,
		Long: `Powerloss records the system calls of moorebus dev under load with strace. For each of
--images moments it builds a data directory of what a disk may hold if the power is
lost then: changes that were not flushed are there or not, in any combination. A server
has to start on it. Every event that was answered or shown, and every call of a tool
that took effect, has to be in its log, replay verify has to find nothing wrong, and on
every image of --go-on the unfinished runs have to reach their end.

nats-server flushes no directory after it has made a stream or a block in it. So
--fsync=always needs a file system on which a file's flush takes its name along, such
as ext4 and xfs: --entries=file.

Exit code 1 means that something is wrong. Then the image, what it lacks and what was
lost are shown, and the image stays. --seed chooses the moments and what survives.
Another recording is another load: the same seed does not repeat its images.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Entries = powerloss.Entries(entries)
			switch {
			case o.Images < 1 || o.Runs < 1 || o.Lives < 1 || o.Workers < 1:
				return cli.Usage("--images, --runs, --lives and --workers are at least 1")
			case o.Entries != powerloss.EntriesStrict && o.Entries != powerloss.EntriesFile:
				return cli.Usage("--entries is strict or file, not %q", entries)
			}
			return losePower(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Bin, "bin", "", "directory of the built commands (default: they are built)")
	f.StringVar(&o.Fsync, "fsync", "always", "the server's mode, as moorebus dev has it")
	f.IntVar(&o.Images, "images", 100, "moments at which the power is lost")
	f.Uint64Var(&o.Seed, "seed", 1, "chooses the moments and what survives")
	f.IntVar(&o.Runs, "runs", 40, "runs in each life of the server")
	f.IntVar(&o.Lives, "lives", 2, "how often the server is started; each life but the last ends with SIGKILL")
	f.StringVar(&entries, "entries", string(powerloss.EntriesStrict), "what makes a file's name durable: strict (an fsync of its directory) or file (its own fsync, too, as on ext4 and xfs)")
	f.IntVar(&o.GoOn, "go-on", 10, "carry unfinished runs to their end on every image of this number; 0: on none")
	f.IntVar(&o.Workers, "workers", 4, "images that are checked at once")
	f.StringVar(&o.Dir, "dir", "", "new directory for everything, which stays (default: one in TMPDIR that stays after a failure)")
	return cmd
}

// losePower runs the proof and prints what it finds.
func losePower(ctx context.Context, o powerloss.Options) (err error) {
	if o.Bin == "" {
		if o.Bin, err = commandtest.Build("powerloss", "./cmd/moorebus", "./cmd/replay"); err != nil {
			return err
		}
	}
	stays := o.Dir != ""
	if stays {
		err = os.Mkdir(o.Dir, 0o700)
	} else {
		o.Dir, err = os.MkdirTemp("", "moorebus-powerloss-")
	}
	if err != nil {
		return err
	}
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return err
	}
	o.Progress = func(format string, args ...any) {
		_, _ = fmt.Fprintf(os.Stderr, "powerloss: "+format+"\n", args...)
	}
	r, err := powerloss.Run(ctx, o)
	if err != nil {
		return fmt.Errorf("%w (see %s)", err, o.Dir)
	}
	fmt.Printf("fsync %s, entries %s, seed %d: %d steps, %d images (on %d the runs went on), %d acknowledgements and effects looked for, at most %d changes pending, %d lost: %d images with something wrong\n",
		o.Fsync, o.Entries, o.Seed, r.Steps, r.Images, r.GoneOn, r.Seen, r.Pending, r.Dropped, len(r.Failures))
	for _, f := range r.Failures[:min(len(r.Failures), 5)] {
		fmt.Printf("image %d, step %d: %s\n  %s\n", f.Image, f.Step, f.Dir, strings.Join(f.Problems, "\n  "))
		fmt.Printf("  lost: %s\n", strings.Join(f.Dropped[:min(len(f.Dropped), 30)], "\n    "))
		fmt.Printf("  torn: %s\n", strings.Join(f.Torn, "\n    "))
	}
	if len(r.Failures) > 0 {
		return errors.New("the power loss took what had been acknowledged; see " + o.Dir)
	}
	if stays {
		return nil
	}
	return os.RemoveAll(o.Dir)
}

// powerlossLoadCommand is the load, which the proof runs under strace.
func powerlossLoadCommand() *cobra.Command {
	return &cobra.Command{
		Use: powerloss.LoadCommand, Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return powerloss.Load(cmd.Context(), args[0]) },
	}
}

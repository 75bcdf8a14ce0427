package feature

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Open adds the flags with which a command finds its bus or its gateway, and -o with the formats, the
// first being the default. [Use] opens what they name.
type Open func(cmd *cobra.Command, formats ...print.Format) Use

// Use opens the bus or the gateway for a command, calls do and closes it.
type Use func(cmd *cobra.Command, access Access, do func(ctx context.Context, c *Client) error) error

// Access is what a command does to a data directory, and what else it wants of the bus.
type Access int

// What a command does to a data directory.
const (
	// Reads changes nothing.
	Reads Access = iota
	// Writes flushes what it writes to the disk.
	Writes
	// Creates also makes the directory if it does not exist.
	Creates
)

// What else a command may want: each is added to one of the above.
const (
	// OnBus says that no gateway does it, so [Client].Bus is there.
	OnBus Access = 4 << iota
	// Outlasts has it repeat the attempt to connect, as [cli.Outlast] does, if the bus has several servers.
	Outlasts
	// Waits has it wait for a bus that is not there yet.
	Waits
)

// To returns what the command does to a data directory.
func (a Access) To() Access { return a & (OnBus - 1) }

// Has reports whether the command wants that.
func (a Access) Has(more Access) bool { return a&more != 0 }

// Client is an open bus or gateway for the command of a feature.
type Client struct {
	// API sends requests.
	API route.Client
	// Bus is nil over HTTP. Log has the records of runs, and their live side, in any case.
	Bus *natsbus.Bus
	Log interface {
		journal.Log
		journal.Feed
	}
	// Namespace is that of runs that are named, Only the same if a flag or a variable names it, else empty.
	Namespace, Only string

	Format print.Format
	Out    io.Writer
	// Color says that what people read has colours.
	Color bool
	// Post posts inputs to a run, which the beginning of its id names, and prints how it stands then.
	Post func(ctx context.Context, run string, inputs []control.Input) error
	// Find finds runs by the beginning of their ids.
	Find print.RunFinder
	// Unserved is the data directory that this process holds itself, so that no role works on the runs
	// in it. Empty: there is none.
	Unserved string
	// Notef writes a line to stderr.
	Notef func(format string, args ...any)
}

// FindRun returns the id of the run that an argument names: an id, the beginning of one, or @last,
// see [print.FindRun].
func (c *Client) FindRun(ctx context.Context, arg string) (string, error) {
	return print.FindRun(ctx, arg, c.Find)
}

// Runs returns the runs that arguments name.
func (c *Client) Runs(ctx context.Context, args []string) ([]events.Run, error) {
	return print.FindRuns(ctx, args, c.Find, c.Namespace, c.Log.Shards())
}

// Report writes a result in the format of the client, and as text the text.
func (c *Client) Report(result any, text string) error {
	if c.Format != print.Text {
		return print.Write(c.Out, c.Format, result)
	}
	_, err := fmt.Fprintln(c.Out, text)
	return err
}

// OfferRuns has the shell offer ids of runs for the first arguments of a command, all of them with 0.
func OfferRuns(use Use, arguments int) cobra.CompletionFunc {
	return print.OfferRuns(arguments, func(cmd *cobra.Command, fn func(context.Context, print.RunFinder) error) error {
		return use(cmd, Reads, func(ctx context.Context, c *Client) error { return fn(ctx, c.Find) })
	})
}

package feature

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/print"
)

// Open adds the flags with which a command finds its bus or its gateway, and -o with the formats, the
// first being the default. [Use] opens what they name.
type Open func(cmd *cobra.Command, formats ...print.Format) Use

// Use opens the bus or the gateway for a command, calls do and closes it.
type Use func(cmd *cobra.Command, access Access, do func(ctx context.Context, c *Client) error) error

// Access is what a command does to a data directory.
type Access int

const (
	// Reads changes nothing.
	Reads Access = iota
	// Writes flushes what it writes to the disk.
	Writes
	// Creates also makes the directory if it does not exist.
	Creates
)

// Client is an open bus or gateway for the command of a feature.
type Client struct {
	// API sends requests.
	API    route.Client
	Format print.Format
	Out    io.Writer
	// Color says that what people read has colours.
	Color bool
	// Find finds runs by the beginning of their ids.
	Find print.RunFinder
	// Unserved is the data directory that this process holds itself, so that no role works on the runs
	// in it. Empty: there is none.
	Unserved string
	// Notef writes a line to stderr.
	Notef func(format string, args ...any)
}

// OfferRuns has the shell offer ids of runs for the first arguments of a command, all of them with 0.
func OfferRuns(use Use, arguments int) cobra.CompletionFunc {
	return print.OfferRuns(arguments, func(cmd *cobra.Command, fn func(context.Context, print.RunFinder) error) error {
		return use(cmd, Reads, func(ctx context.Context, c *Client) error { return fn(ctx, c.Find) })
	})
}

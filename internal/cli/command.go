package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Execute runs a tree of commands on the process's arguments. Whatever goes
// wrong before a command's own RunE (unknown commands, flags and arguments) is a
// usage error; errors are returned and not printed, see [Main].
func Execute(ctx context.Context, root *cobra.Command) error {
	started := false
	root.SilenceUsage, root.SilenceErrors = true, true
	each(root, func(c *cobra.Command) {
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				started = true
				return run(c, args)
			}
		}
	})
	called, err := root.ExecuteContextC(ctx)
	var exit *ExitError
	switch {
	case err == nil, started:
		return err
	case errors.As(err, &exit):
		return exit // without what the library says of it
	}
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf("%w; see `%s --help`", err, called.CommandPath())}
}

func each(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		each(sub, fn)
	}
}

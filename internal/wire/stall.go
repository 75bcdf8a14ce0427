package wire

import (
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/spf13/pflag"
)

// StallFlag is --stall.
type StallFlag struct{ After time.Duration }

// AddStallFlag adds --stall, for processes with a gateway.
func AddStallFlag(flags *pflag.FlagSet) *StallFlag {
	f := &StallFlag{}
	flags.DurationVar(&f.After, "stall", control.StallAfter,
		"a run with work to do and no event for this long is driven once more, and ended after as long again; must be longer than any call of a model or a tool")
	return f
}

// Check returns a usage error for a time that is not positive.
func (f *StallFlag) Check() error {
	if f.After <= 0 {
		return cli.Usage("--stall: must be more than nothing, is %s", f.After)
	}
	return nil
}

package gateway

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
)

func TestStallFlag(t *testing.T) {
	for text, good := range map[string]bool{"20m": true, "0s": false, "-1h": false} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f := AddFlags(flags)
		require.Positive(t, f.StallAfter)
		err := flags.Set("stall", text)
		if good {
			require.NoError(t, err)
			require.Equal(t, 20*time.Minute, f.StallAfter)
			continue
		}
		var wrong *cli.ExitError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, cli.ExitUsage, wrong.Code)
	}
}

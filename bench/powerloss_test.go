package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPowerlossSettings(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"powerloss --images 0":      "at least 1",
		"powerloss --entries maybe": `strict or file, not "maybe"`,
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), says, args)
	}
}

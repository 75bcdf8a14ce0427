package gateway

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/webhooks"
)

// Webhooks reach loopback only where that is all that reaches the gateway, unless a flag says more.
func TestWebhookFlags(t *testing.T) {
	t.Parallel()
	settings := func(address string, args ...string) (webhooks.Settings, error) {
		flags := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
		f := AddFlags(flags)
		require.NoError(t, flags.Parse(args))
		var listener net.Listener
		if address != "" {
			var err error
			listener, err = net.Listen("tcp", address)
			require.NoError(t, err)
			defer func() { require.NoError(t, listener.Close()) }()
		}
		return f.Webhooks(listener)
	}
	for address, want := range map[string][]netip.Prefix{"": webhooks.Loopback(), "127.0.0.1:0": webhooks.Loopback(), "0.0.0.0:0": nil} {
		s, err := settings(address)
		require.NoError(t, err)
		require.Equal(t, want, s.Allowed, address)
		require.Equal(t, webhooks.Schedule(), s.Schedule)
	}
	s, err := settings("127.0.0.1:0", "--webhook-allow", "10.1.2.3/16,fd00::/64", "--console-url", "https://console.example", "--webhook-retries", "1s,2s")
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}, s.Allowed)
	require.Equal(t, "https://console.example", s.ConsoleURL)
	require.Len(t, s.Schedule, 2)
	s, err = settings("127.0.0.1:0", "--webhook-allow", "")
	require.NoError(t, err)
	require.Empty(t, s.Allowed)
	for _, wrong := range [][]string{{"--webhook-allow", "10.1"}, {"--console-url", "console"}, {"--webhook-retries", "0s"}} {
		_, err := settings("", wrong...)
		require.ErrorContains(t, err, wrong[0])
	}
}

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

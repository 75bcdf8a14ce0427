package webhooks

import (
	"net"
	"net/netip"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// Webhooks reach loopback only where that is all that reaches the gateway, unless a flag says more.
func TestWebhookFlags(t *testing.T) {
	t.Parallel()
	settings := func(address string, args ...string) (Settings, error) {
		all := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
		f := &flags{flags: all}
		f.add()
		require.NoError(t, all.Parse(args))
		var listener net.Listener
		if address != "" {
			var err error
			listener, err = net.Listen("tcp", address)
			require.NoError(t, err)
			defer func() { require.NoError(t, listener.Close()) }()
		}
		return f.settings(listener)
	}
	for address, want := range map[string][]netip.Prefix{"": Loopback(), "127.0.0.1:0": Loopback(), "0.0.0.0:0": nil} {
		s, err := settings(address)
		require.NoError(t, err)
		require.Equal(t, want, s.Allowed, address)
		require.Equal(t, Retries(), s.Retries)
	}
	s, err := settings("127.0.0.1:0", "--webhook-allow", "10.1.2.3/16,fd00::/64", "--console-url", "https://console.example", "--webhook-retries", "1s,2s")
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}, s.Allowed)
	require.Equal(t, "https://console.example", s.ConsoleURL)
	require.Len(t, s.Retries, 2)
	s, err = settings("127.0.0.1:0", "--webhook-allow", "")
	require.NoError(t, err)
	require.Empty(t, s.Allowed)
	for _, wrong := range [][]string{{"--webhook-allow", "10.1"}, {"--console-url", "console"}, {"--webhook-retries", "0s"}} {
		_, err := settings("", wrong...)
		require.ErrorContains(t, err, wrong[0])
	}
}

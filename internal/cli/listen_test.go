package cli

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/certs"
)

// listenFlags are the flags of a command that serves others.
func listenFlags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	AddRoleFlags(flags)
	require.NoError(t, flags.Parse(args))
	return flags
}

func TestListenersBeyondLoopbackNeedCredentials(t *testing.T) {
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		_, err := Listen(listenFlags(t), "listen", address, "MOOREBUS_TOKEN", env())
		require.Equal(t, ExitConfig, exitCode(t.Context(), err), address)
		require.ErrorContains(t, err, "set MOOREBUS_TOKEN, listen on 127.0.0.1, or allow it with --insecure-no-auth")
	}
	for _, allowed := range []struct {
		address string
		flags   *pflag.FlagSet
		getenv  func(string) string
	}{
		{"127.0.0.1:0", listenFlags(t), env()},
		{"localhost:0", listenFlags(t), env()},
		{"0.0.0.0:0", listenFlags(t), env("MOOREBUS_TOKEN", "secret")},
		{"0.0.0.0:0", listenFlags(t, "--insecure-no-auth"), env()},
	} {
		listener, err := Listen(allowed.flags, "listen", allowed.address, "MOOREBUS_TOKEN", allowed.getenv)
		require.NoError(t, err, allowed.address)
		require.NoError(t, listener.Close())
	}
}

// A listener with --client-ca asks for credentials, and one with a certificate alone does not.
func TestClientCertificatesAreCredentials(t *testing.T) {
	dir := t.TempDir()
	_, err := certs.Make(certs.Options{Dir: dir, Server: "server", For: time.Hour, Now: time.Now()})
	require.NoError(t, err)
	listen := func(args ...string) error {
		flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
		AddRoleFlags(flags)
		f := AddTLSFlags(flags, env())
		require.NoError(t, flags.Parse(append(args, "--tls-cert", filepath.Join(dir, "server.pem"), "--tls-key", filepath.Join(dir, "server.key"))))
		listener, config, err := f.Listen("0.0.0.0:0", "MOOREBUS_TOKEN", quiet)
		if err != nil {
			return err
		}
		require.Equal(t, "https", f.Scheme())
		require.WithinDuration(t, time.Now().Add(time.Hour), f.Ends()["http"], time.Minute)
		require.NotNil(t, config)
		return listener.Close()
	}
	require.NoError(t, listen("--client-ca", filepath.Join(dir, "ca.pem")))
	err = listen()
	require.Equal(t, ExitConfig, exitCode(t.Context(), err))
	require.ErrorContains(t, err, "set MOOREBUS_TOKEN")
}

// Profiles ask nobody for credentials, and there is no way to have them do so.
func TestProfilesStayOnLoopback(t *testing.T) {
	_, err := pprofFlags(t, "--pprof", "0.0.0.0:0").ServePprof(quiet)
	require.Equal(t, ExitConfig, exitCode(t.Context(), err))
	require.ErrorContains(t, err, "no credentials: listen on 127.0.0.1, or")
	stop, err := pprofFlags(t, "--pprof", "0.0.0.0:0", "--insecure-no-auth").ServePprof(quiet)
	require.NoError(t, err)
	stop()
}

func TestHostNames(t *testing.T) {
	require.Equal(t, []string{"box.example"}, HostNames("box.example:80"))
	for _, address := range []string{":80", "127.0.0.1:80", net.JoinHostPort("::1", "80"), "box"} {
		require.Empty(t, HostNames(address), address)
	}
}

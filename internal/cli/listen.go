package cli

import (
	"net"

	"github.com/spf13/pflag"
)

// insecureFlag is the flag that lets other machines reach listeners without credentials.
// [AddRoleFlags] adds it.
const insecureFlag = "insecure-no-auth"

func addInsecureFlag(flags *pflag.FlagSet) {
	flags.Bool(insecureFlag, false, "let other machines reach a listener that asks for no credentials")
}

// Listen listens on the TCP address that a flag of the set gives, guarded as by
// [Guard]. It fails with [ExitConfig].
func Listen(flags *pflag.FlagSet, flag, address, variable string, getenv func(string) string) (*net.TCPListener, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, NotConfigured("--%s: %w", flag, err)
	}
	if err := Guard(flags, flag, at, variable, getenv); err != nil {
		return nil, err
	}
	listener, err := net.ListenTCP("tcp", at)
	if err != nil {
		return nil, NotConfigured("--%s: %w", flag, err)
	}
	return listener, nil
}

// Guard refuses, with [ExitConfig], an address that other machines can reach if clients
// need no credentials. The variable of the environment holds the credentials, if the
// listener has any. --insecure-no-auth allows it.
func Guard(flags *pflag.FlagSet, flag string, at *net.TCPAddr, variable string, getenv func(string) string) error {
	if at.IP.IsLoopback() || variable != "" && getenv(variable) != "" {
		return nil
	}
	if insecure, err := flags.GetBool(insecureFlag); insecure || err != nil {
		return err
	}
	mend := ""
	if variable != "" {
		mend = "set " + variable + ", "
	}
	return NotConfigured("--%s %s: other machines could reach it, and it asks them for no credentials: %slisten on 127.0.0.1, or allow it with --%s",
		flag, at, mend, insecureFlag)
}

// HostNames returns the host name of an address, for the check of Host headers; nothing
// for an IP address or a port alone.
func HostNames(address string) []string {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" || net.ParseIP(host) != nil {
		return nil
	}
	return []string{host}
}

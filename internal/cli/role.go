package cli

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/httpserver"
	"github.com/moorebus/moorebus/pkg/events"
)

// RoleFlags are the flags of every role.
type RoleFlags struct {
	// Instance names the process among those of its role.
	Instance string
	// Concurrency is how many deliveries are in flight at once; 0: the role's default.
	Concurrency int
	// Drain is how long work in flight may continue after a signal.
	Drain time.Duration
	// pprof is where profiles are served; empty: nowhere.
	pprof string
	flags *pflag.FlagSet
	*MetricsFlag
}

// DrainWait is the default of --drain. To stop the interrupted work and the server may take
// seconds more: a role ends within 10 s of SIGTERM.
const DrainWait = 5 * time.Second

// AddRoleFlags adds --instance, --concurrency, --drain, --pprof, --metrics-listen and
// --insecure-no-auth.
func AddRoleFlags(flags *pflag.FlagSet) *RoleFlags {
	f := &RoleFlags{flags: flags}
	AddInsecureFlag(flags)
	flags.StringVar(&f.Instance, "instance", DefaultInstance(), "name of this process, unique in its role")
	flags.IntVar(&f.Concurrency, "concurrency", 0, "deliveries in flight at once; 0 is the role's default")
	flags.DurationVar(&f.Drain, "drain", DrainWait, "how long work in flight may continue after SIGTERM")
	validate(flags, func(name string) error {
		if !events.ValidToken(name) {
			return fmt.Errorf("%q is not a name; use [a-z0-9][a-z0-9_-]{0,62}", name)
		}
		return nil
	}, "instance")
	NotNegative(flags, "concurrency")
	Positive(flags, "drain")
	flags.StringVar(&f.pprof, "pprof", "", "`address` to serve profiles on, as in :6060, which is loopback (default: none)")
	f.MetricsFlag = AddMetricsFlag(flags, os.Getenv)
	return f
}

// DefaultInstance returns a name for this process: host and process id.
func DefaultInstance() string {
	host, _ := os.Hostname() // without one the process id suffices
	return instanceName(host, os.Getpid())
}

func instanceName(host string, pid int) string {
	suffix := "-" + strconv.Itoa(pid)
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, host)
	name = strings.TrimLeft(name, "-_")
	if name == "" {
		name = "host"
	}
	return name[:min(len(name), 63-len(suffix))] + suffix
}

// insecureFlag is the flag that lets other machines reach listeners without credentials.
// [AddRoleFlags] adds it.
const insecureFlag = "insecure-no-auth"

// AddInsecureFlag adds --insecure-no-auth, see [Guard].
func AddInsecureFlag(flags *pflag.FlagSet) {
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
	hint := ""
	if variable != "" {
		hint = "set " + variable + ", "
	}
	return NotConfigured("--%s %s: other machines could reach it, and it asks them for no credentials: %slisten on 127.0.0.1, or allow it with --%s",
		flag, at, hint, insecureFlag)
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

// ServePprof serves the process's profiles where --pprof says, until stop is called;
// without the flag it does nothing. An address without a host is on loopback. An invalid
// address is a usage error. If nothing can listen there, or the address is not loopback
// (its clients need no credentials), it fails with [ExitConfig]. It logs the address. Web pages are refused.
func (f *RoleFlags) ServePprof(logger *slog.Logger) (stop func(), err error) {
	if f.pprof == "" {
		return func() {}, nil
	}
	host, port, err := net.SplitHostPort(f.pprof)
	if err != nil {
		return nil, Usage("--pprof: %q is not an address; use host:port, as in 127.0.0.1:6060, or :6060 for loopback", f.pprof)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	listener, err := Listen(f.flags, "pprof", net.JoinHostPort(host, port), "", nil)
	if err != nil {
		return nil, err
	}
	server := httpserver.New(httpserver.Options{Handler: httpserver.WithoutPages(listener.Addr(), profiles()), Logger: logger})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.ServeUntilClosed(listener); err != nil {
			logger.Warn("profiles are no longer served", "reason", err)
		}
	}()
	logger.Info("serving profiles", "url", "http://"+listener.Addr().String()+"/debug/pprof/")
	return func() {
		_ = server.Close() // an unfinished profile is of no use
		<-ended
	}, nil
}

// profiles returns a separate mux, so handlers that register themselves with net/http's default
// mux are not served. It omits the command line, which may contain the password of a bus.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/cmdline", http.NotFound)
	return mux
}

// NotNegative makes number and duration flags refuse values below 0, with a usage error.
func NotNegative(flags *pflag.FlagSet, names ...string) {
	validate(flags, func(value string) error {
		if strings.HasPrefix(value, "-") {
			return fmt.Errorf("must not be negative, is %s", value)
		}
		return nil
	}, names...)
}

// Positive makes number and duration flags refuse 0 and values below it, with a usage error.
func Positive(flags *pflag.FlagSet, names ...string) {
	validate(flags, func(value string) error {
		if strings.HasPrefix(value, "-") || value == "0" || value == "0s" {
			return fmt.Errorf("must be more than 0, is %s", value)
		}
		return nil
	}, names...)
}

// validate calls check with each value that is set for the flags, as the value prints itself.
func validate(flags *pflag.FlagSet, check func(value string) error, names ...string) {
	for _, name := range names {
		flag := flags.Lookup(name)
		flag.Value = validated{flag.Value, name, check}
	}
}

// validated is a flag's value that is checked when it is set.
type validated struct {
	pflag.Value
	name  string
	check func(value string) error
}

// Set sets the value and checks it.
func (v validated) Set(text string) error {
	if err := v.Value.Set(text); err != nil {
		return err
	}
	if err := v.check(v.String()); err != nil {
		return Usage("--%s: %w", v.name, err)
	}
	return nil
}

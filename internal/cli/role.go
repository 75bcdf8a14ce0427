package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/pflag"
)

// RoleFlags are the flags of every role.
type RoleFlags struct {
	// Instance names the process among those of its role.
	Instance string
	// Concurrency is how many deliveries are in work at once; 0: the role's own
	// default.
	Concurrency int
	// Drain is how long work in flight may go on after a signal.
	Drain time.Duration
	// pprof is where profiles are served; empty: nowhere.
	pprof string
	flags *pflag.FlagSet
}

// DrainWait is the default of --drain. What is cut short then, and the server that
// stops after it, may take seconds more: a role ends within 10 s of SIGTERM.
const DrainWait = 5 * time.Second

// AddRoleFlags adds --instance, --concurrency, --drain, --pprof and --insecure-no-auth.
func AddRoleFlags(flags *pflag.FlagSet) *RoleFlags {
	f := &RoleFlags{flags: flags}
	addInsecureFlag(flags)
	flags.StringVar(&f.Instance, "instance", DefaultInstance(), "name of this process among those of its role")
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
	return f
}

// DefaultInstance returns a name for this process: host and process id.
func DefaultInstance() string {
	host, _ := os.Hostname() // without one the process id must do
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

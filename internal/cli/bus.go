package cli

import (
	"os"
	"path/filepath"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
	"github.com/spf13/pflag"
)

// BusFlags say where the bus is: --nats, --data and --namespace. NATS_URL and
// its like, MOOREBUS_DATA and MOOREBUS_NAMESPACE stand in for flags that are not
// given. Of what carries runs they also say how it appends: --group-commit.
type BusFlags struct {
	url       string
	data      string
	namespace string
	group     string
	getenv    func(string) string
}

// AddServerFlags adds --nats and --group-commit, for roles that serve every
// namespace of a bus.
func AddServerFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv}
	f.addURL(flags)
	f.addGroup(flags)
	return f
}

func (f *BusFlags) addURL(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "nats", "", "servers of the bus, with commas (default NATS_URL and its like)")
}

func (f *BusFlags) addGroup(flags *pflag.FlagSet) {
	flags.StringVar(&f.group, "group-commit", "auto", "whether events of several runs that wait to be stored go as one batch: on, off, or auto, if the server flushes each to its disk")
}

// groupCommit returns what --group-commit says, or a usage error.
func (f *BusFlags) groupCommit() (natsbus.GroupCommit, error) {
	if f.group == "" {
		return natsbus.GroupCommitAuto, nil
	}
	group, err := natsbus.ParseGroupCommit(f.group)
	if err != nil {
		return group, Usage("--group-commit: %s", err)
	}
	return group, nil
}

// AddBusFlags adds --nats and --namespace, for what only ever talks to a bus.
// getenv is os.Getenv, or a test's.
func AddBusFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv}
	f.addURL(flags)
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the runs (default MOOREBUS_NAMESPACE, else "+events.DefaultNamespace+")")
	return f
}

// AddDataFlags adds what [AddBusFlags] does and --data, for what can do without
// a server of its own.
func AddDataFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := AddBusFlags(flags, getenv)
	flags.StringVar(&f.data, "data", "", "data directory to use instead of a bus (default MOOREBUS_DATA, else "+filepath.Join("$XDG_DATA_HOME", appName)+")")
	return f
}

// Namespace returns the namespace and whether somebody named one, or a usage
// error.
func (f *BusFlags) Namespace() (name string, given bool, err error) {
	name = f.namespace
	if name == "" {
		name = f.getenv("MOOREBUS_NAMESPACE")
	}
	if name == "" {
		return events.DefaultNamespace, false, nil
	}
	if !events.ValidToken(name) {
		return "", true, Usage("--namespace: %q is not a name; use [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	return name, true, nil
}

const appName = "moorebus"

// DataDir returns the default data directory: $XDG_DATA_HOME/moorebus, else
// ~/.local/share/moorebus.
func DataDir(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, appName), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", NotConfigured("there is no home directory to keep data in: set HOME or XDG_DATA_HOME, or name a directory with --data")
	}
	return filepath.Join(home, ".local", "share", appName), nil
}

// Place is where flags and environment point: a server, or else a data
// directory.
type Place struct {
	Remote  bool
	Connect natsbus.ConnectOptions
	Dir     string
}

// Place returns where the flags point, see [FindPlace].
func (f *BusFlags) Place() (Place, error) { return FindPlace(f.url, f.data, f.getenv) }

// FindPlace decides in the order of nearness: the values of --nats and --data,
// the environment, the default data directory.
func FindPlace(url, data string, getenv func(string) string) (Place, error) {
	if url != "" && data != "" {
		return Place{}, Usage("--nats and --data exclude each other: the log is on a bus or in a directory")
	}
	if data != "" {
		return Place{Dir: data}, nil
	}
	if server, err := findServer(url, getenv); err != nil || server.Connect.URL != "" {
		return server, err
	}
	if dir := getenv("MOOREBUS_DATA"); dir != "" {
		return Place{Dir: dir}, nil
	}
	dir, err := DataDir(getenv)
	return Place{Dir: dir}, err
}

// findServer returns the server that the value of --nats and the environment
// name. Without a URL it is where servers listen by default.
func findServer(url string, getenv func(string) string) (Place, error) {
	connect, err := natsbus.FromEnv(getenv)
	if err != nil {
		return Place{}, &ExitError{Code: ExitConfig, Err: err}
	}
	if url != "" {
		connect.URL = url
	}
	return Place{Remote: true, Connect: connect}, nil
}

// Missing reports whether the place is a directory that is not there.
func (p Place) Missing() bool {
	if p.Remote {
		return false
	}
	_, err := os.Stat(p.Dir)
	return os.IsNotExist(err)
}

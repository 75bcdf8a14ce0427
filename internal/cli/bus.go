package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
)

// BusFlags say where the bus is: --nats, --data and --namespace. The defaults are those of the
// environment: NATS_URL and related variables, MOOREBUS_DATA and MOOREBUS_NAMESPACE.
// --group-commit says how a process with roles appends.
type BusFlags struct {
	url       string
	data      string
	namespace string
	group     string
	getenv    func(string) string
	// Local, which may be nil, says that the command starts its own server: then only
	// --data and MOOREBUS_DATA count.
	Local func() bool
}

// AddServerFlags adds --nats and --group-commit, for roles that serve every
// namespace of a bus.
func AddServerFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv}
	f.addURL(flags)
	f.addGroup(flags)
	return f
}

// AddSetupFlags adds --nats and --data, for commands that set a bus up or ask about that.
func AddSetupFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv}
	f.addURL(flags)
	flags.StringVar(&f.data, "data", "", "data directory to use instead of a bus (default MOOREBUS_DATA, else "+filepath.Join("$XDG_DATA_HOME", appName)+" if it exists)")
	return f
}

// AddServer adds --nats to the flags of a command that usually starts its own server. The
// bus counts, and not only a data directory, while remote is true.
func (f *BusFlags) AddServer(flags *pflag.FlagSet, remote func() bool) {
	f.addURL(flags)
	f.Local = func() bool { return !remote() }
}

func (f *BusFlags) addURL(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "nats", "", "servers of the bus, separated by commas (default NATS_URL and related variables)")
}

func (f *BusFlags) addGroup(flags *pflag.FlagSet) {
	flags.StringVar(&f.group, "group-commit", "auto", "store waiting events of several runs as one batch: on, off, or auto (if the log says that its server flushes each event)")
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

// AddBusFlags adds --nats and --namespace, for commands that only use a bus. getenv is
// os.Getenv, or a test's.
func AddBusFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv}
	f.addURL(flags)
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the runs (default MOOREBUS_NAMESPACE, else "+events.DefaultNamespace+")")
	return f
}

// AddDataFlags adds the flags of [AddBusFlags] and --data, for commands that also work on
// a data directory.
func AddDataFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := AddBusFlags(flags, getenv)
	flags.StringVar(&f.data, "data", "", "data directory to use instead of a bus (default MOOREBUS_DATA, else "+filepath.Join("$XDG_DATA_HOME", appName)+")")
	return f
}

// Namespace returns the namespace and whether it was given, or a usage error.
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
		return "", NotConfigured("no home directory is known for the data: set HOME or XDG_DATA_HOME, or name a directory with --data")
	}
	return filepath.Join(home, ".local", "share", appName), nil
}

// StateFile returns a file of what this user's commands keep of a bus and can make again:
// $XDG_STATE_HOME/moorebus/BUS/NAME, else below ~/.local/state.
func StateFile(getenv func(string) string, bus, name string) (string, error) {
	dir := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) {
		if dir = getenv("HOME"); dir == "" {
			return "", NotConfigured("no home directory is known: set HOME or XDG_STATE_HOME")
		}
		dir = filepath.Join(dir, ".local", "state")
	}
	return filepath.Join(dir, appName, bus, name), nil
}

// OperatorFile returns the file with the token by which this user's commands act on the server of
// run and dev: $XDG_CONFIG_HOME/moorebus/operator, else ~/.config/moorebus/operator. It is not in
// the data directory, so whoever reads that one can only watch.
func OperatorFile(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, appName, "operator"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", NotConfigured("no home directory is known for the operator's token: set HOME, XDG_CONFIG_HOME, or %s", NATSTokenVariable)
	}
	return filepath.Join(home, ".config", appName, "operator"), nil
}

// Getenv returns a variable of the environment that the flags use.
func (f *BusFlags) Getenv(name string) string { return f.getenv(name) }

// Place is where flags and environment point: a server, or a data directory.
type Place struct {
	Remote  bool
	Connect natsconn.ConnectOptions
	Dir     string
	// From says what named it, such as --nats or NATS_URL.
	From string
	// Note tells people where it is, if they may expect another place; else empty.
	Note string
}

// Place returns where the flags point, see [FindPlace].
func (f *BusFlags) Place() (Place, error) {
	if f.Local != nil && f.Local() {
		return findOwn(f.data, f.getenv)
	}
	return FindPlace(f.url, f.data, f.getenv)
}

// SetupPlace returns the server that is named, else the data directory. A directory that nobody
// names is not made. command is for the error.
func (f *BusFlags) SetupPlace(command string) (Place, error) {
	at, err := FindPlace(f.url, f.data, f.getenv)
	if err != nil || at.Remote || at.From != "default" {
		return at, err
	}
	server, err := FindServer(f.url, f.getenv)
	switch {
	case err != nil || server.From != "":
		return server, err
	case at.Missing():
		return at, NotConfigured("no bus is named: set NATS_URL or use --nats, as in `moorebus %s --nats nats://127.0.0.1:4222`; for `moorebus dev`, name its data directory with --data", command)
	}
	at.Note = "this uses data directory " + at.Dir
	return at, nil
}

// findOwn returns the data directory of a command that starts its own server.
func findOwn(data string, getenv func(string) string) (Place, error) {
	at := Place{Dir: data, From: "--data"}
	if at.Dir == "" {
		at.Dir, at.From = getenv("MOOREBUS_DATA"), "MOOREBUS_DATA"
	}
	var err error
	if at.Dir == "" {
		at.From = "default"
		at.Dir, err = DataDir(getenv)
	}
	for _, name := range []string{"NATS_URL", "NATS_CONTEXT", urlVariable} {
		if getenv(name) != "" {
			at.Note = fmt.Sprintf("%s is not used: this command starts its own server, with its data in %s", name, at.Dir)
		}
	}
	return at, err
}

// FindPlace returns the first of these that is given: the values of --nats and --data, the
// environment, the default data directory if it exists, the selected context of the nats
// CLI, the default data directory.
func FindPlace(url, data string, getenv func(string) string) (Place, error) {
	if url != "" && data != "" {
		return Place{}, Usage("--nats and --data exclude each other: the log is on a bus or in a directory")
	}
	if data != "" {
		return Place{Dir: data, From: "--data"}, nil
	}
	if server, err := namedServer(url, getenv); err != nil || server.From != "" {
		return server, err
	}
	if dir := getenv("MOOREBUS_DATA"); dir != "" {
		return Place{Dir: dir, From: "MOOREBUS_DATA"}, nil
	}
	dir, err := DataDir(getenv)
	at := Place{Dir: dir, From: "default"}
	selected := natsconn.SelectedContext(getenv)
	switch {
	case selected == "":
		return at, err
	case err != nil || at.Missing():
		return selectedServer(selected, getenv)
	}
	at.Note = fmt.Sprintf("this uses data directory %s; set NATS_CONTEXT=%s to use the nats context that is selected", dir, ShellWord(selected))
	return at, nil
}

// FindServer returns the server of --nats, else of the environment, else of the selected
// context of the nats CLI. If none is given, From is empty and the place is the default
// address.
func FindServer(url string, getenv func(string) string) (Place, error) {
	at, err := namedServer(url, getenv)
	if err != nil || at.From != "" {
		return at, err
	}
	if selected := natsconn.SelectedContext(getenv); selected != "" {
		return selectedServer(selected, getenv)
	}
	return at, nil
}

// namedServer returns the server that the value of --nats and the environment name.
func namedServer(url string, getenv func(string) string) (Place, error) {
	connect, err := natsconn.FromEnv(getenv)
	if err != nil {
		return Place{}, &ExitError{Code: ExitConfig, Err: err}
	}
	at := Place{Remote: true, Connect: connect}
	switch {
	case url != "":
		at.Connect.URL, at.From = url, "--nats"
	case getenv("NATS_URL") != "":
		at.From = "NATS_URL"
	case getenv("NATS_CONTEXT") != "":
		at.From = "NATS_CONTEXT"
	}
	return at, nil
}

// selectedServer returns the server of the selected context of the nats CLI. The
// environment takes precedence over the context's other settings.
func selectedServer(context string, getenv func(string) string) (Place, error) {
	connect, err := natsconn.FromContext(getenv, context)
	if err != nil {
		return Place{}, NotConfigured("the selected nats context %s: %w; name a bus with NATS_URL, or see `nats context`", context, err)
	}
	return Place{
		Remote: true, Connect: connect, From: "the nats context " + ShellWord(context),
		Note: fmt.Sprintf("the bus is %s, from the selected nats context %s", connect.Server(), ShellWord(context)),
	}, nil
}

// Missing reports whether the place is a directory that does not exist.
func (p Place) Missing() bool {
	if p.Remote {
		return false
	}
	_, err := os.Stat(p.Dir)
	return os.IsNotExist(err)
}

// AddLocalFlags adds --data, --namespace and --group-commit, for commands that always
// start their own server: NATS_URL and related variables do not count.
func AddLocalFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := AddStoreFlags(flags, getenv)
	f.addGroup(flags)
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the runs (default MOOREBUS_NAMESPACE, else "+events.DefaultNamespace+")")
	return f
}

// AddStoreFlags adds --data alone, for a command that is only a server.
func AddStoreFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv, Local: func() bool { return true }}
	flags.StringVar(&f.data, "data", "", "data directory (default MOOREBUS_DATA, else "+filepath.Join("$XDG_DATA_HOME", appName)+")")
	return f
}

// CheckRunIDs returns a usage error for the first argument that cannot be a run's id.
func CheckRunIDs(ids []string) error {
	for _, id := range ids {
		if err := events.CheckID(id); err != nil {
			return Usage("%q is not a run: %w", id, err)
		}
	}
	return nil
}

// LastRun stands for the newest run of the namespace.
const LastRun = "@last"

// CheckRuns returns a usage error for the first argument that can be neither a run's id, nor the
// beginning of one, nor [LastRun].
func CheckRuns(args []string) error {
	for _, arg := range args {
		if arg != LastRun && (arg == "" || len(arg) > idLength || strings.Trim(arg, "0123456789abcdef-") != "") {
			return Usage("%q is not a run: it is neither an id, nor the beginning of one, nor %s", arg, LastRun)
		}
	}
	return nil
}

// idLength is the length of a run's id.
const idLength = 36

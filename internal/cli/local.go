package cli

import (
	"path/filepath"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/pflag"
)

// AddLocalFlags adds --data, --namespace and --group-commit, for commands that always
// start their own server: NATS_URL and related variables do not count.
func AddLocalFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv, Local: func() bool { return true }}
	f.addGroup(flags)
	flags.StringVar(&f.data, "data", "", "data directory (default MOOREBUS_DATA, else "+filepath.Join("$XDG_DATA_HOME", appName)+")")
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the runs (default MOOREBUS_NAMESPACE, else "+events.DefaultNamespace+")")
	return f
}

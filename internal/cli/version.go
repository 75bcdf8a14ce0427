package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/pkg/reducer"
)

// addVersion adds --version to a program: `moorebus`, `replay` or a role. It prints
// what [versionText] returns.
func addVersion(root *cobra.Command) {
	build, _ := debug.ReadBuildInfo() // nil without one
	root.Version = versionText(root.Name(), build)
	root.SetVersionTemplate("{{.Version}}")
	root.Flags().Bool("version", false, "print version, commit and hash of the transition table")
}

// versionText says what was built: version, commit, and the hash of the built-in
// transition table, by which runs name the table that they go by. What the build
// does not know is unknown.
func versionText(name string, build *debug.BuildInfo) string {
	version, settings := "", map[string]string{}
	if build != nil {
		version = build.Main.Version
		for _, s := range build.Settings {
			settings[s.Key] = s.Value
		}
	}
	commit := cmp.Or(settings["vcs.revision"], "unknown")
	if at := settings["vcs.time"]; at != "" {
		commit += " of " + at
	}
	if settings["vcs.modified"] == "true" {
		commit += ", with changes that are not committed"
	}
	return fmt.Sprintf("%s %s\ncommit %s\ntable %s\n%s %s/%s\n", name, cmp.Or(version, "unknown"), commit,
		reducer.DefaultTable().Hash(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

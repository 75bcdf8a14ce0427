// Package buildinfo says what a program was built from and which events it can read.
package buildinfo

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Facts are what [Read] tells. What the build does not know is "unknown".
type Facts struct {
	Version string `json:"version" jsonschema:"The module's version."`
	Commit  string `json:"commit" jsonschema:"The commit, with its time, and whether files were changed since."`
	// Table is by what runs name the table that they go by.
	Table    string `json:"table" jsonschema:"The hash of the built-in transition table. Runs pin it."`
	Revision int    `json:"revision" jsonschema:"The revision that the build can read. Builds of one revision agree about every run."`
	// Schemas are the newest versions of payloads that it reads and writes.
	Schemas map[events.Type]int `json:"schemas" jsonschema:"The newest version of the payload of each type of event."`
	Go      string              `json:"go" jsonschema:"The version of Go, system and processor."`
}

// Read returns the facts of this program.
func Read() Facts {
	build, _ := debug.ReadBuildInfo() // nil without one
	return read(build)
}

func read(build *debug.BuildInfo) Facts {
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
	f := Facts{
		Version: cmp.Or(version, "unknown"), Commit: commit, Table: reducer.DefaultTable().Hash(), Revision: reducer.Revision,
		Schemas: map[events.Type]int{}, Go: fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH),
	}
	for _, t := range events.Types() {
		f.Schemas[t] = events.Version(t)
	}
	return f
}

// Text returns the facts as lines of text. name is that of the program. Types whose payload is of
// version 1 are counted.
func (f Facts) Text(name string) string {
	first, later := 0, ""
	for _, t := range events.Types() {
		if v := f.Schemas[t]; v == 1 {
			first++
		} else {
			later += fmt.Sprintf(", %s %d", t, v)
		}
	}
	return fmt.Sprintf("%s %s\ncommit %s\ntable %s\nrevision %d\nschemas %d types of version 1%s\n%s\n", name, f.Version, f.Commit, f.Table, f.Revision, first, later, f.Go)
}

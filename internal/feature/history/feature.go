// Package history has the requests and commands by which people find runs. It keeps a store of runs beside the
// log, see package store, and answers from it.
package history

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/history/row"
	"github.com/moorebus/moorebus/internal/httpapi/route"
)

// Feature returns the feature. Without flags, it makes a temporary store at the first request.
func Feature() feature.Feature {
	return feature.Feature{
		Row: row.Row(), New: Made(Settings{Late: true}), Client: client, Flags: addFlags, Commands: []feature.Command{searchCommand, labelCommand},
	}
}

// Settings say where the store is.
type Settings struct {
	// File returns the store's file for a log of these streams. Nil, or an empty name: a temporary file.
	File func(streams []string) string
	// Late says that the store is not opened before the first request.
	Late bool
}

// Made returns what makes the feature with settings.
func Made(s Settings) feature.New {
	return func(c *control.Controller) feature.Part {
		v := newViews(c, s)
		return feature.Part{Rows: v.rows(), Run: v.Run}
	}
}

// client makes the feature in a process in which nothing runs in the background: each request brings the
// store to the end of the log.
func client(c *control.Controller) feature.Part {
	v := newViews(c, Settings{File: stateFile})
	v.alone = true
	return feature.Part{Rows: v.rows()}
}

func (v *views) rows() []route.Route {
	return []route.Route{Search.Row(v), Facets.Row(v), SetLabels.Row(v.c)}
}

// addFlags adds --views. A process without HTTP, or without a file of its own choice, opens the store at its
// first request, which may never come: keeping the store takes a fifth of the processor time of a run.
func addFlags(flags *pflag.FlagSet) func(at *feature.Place) (feature.New, error) {
	var file string
	flags.StringVar(&file, "views", "", "`file` of the database in which runs are found, kept from the start on (default: views.db in the data directory, else in the user's state directory under the bus's id, from the first search on)")
	return func(at *feature.Place) (feature.New, error) {
		if scheme, _, is := strings.Cut(file, "://"); is {
			return nil, cli.Usage("--views: %s is not supported yet; name a file", scheme+"://")
		}
		return Made(Settings{Late: at.Listener == nil || file == "", File: func(streams []string) string {
			switch {
			case file != "":
				return file
			case at.Dir != "":
				return filepath.Join(at.Dir, fileName)
			}
			return stateFile(streams)
		}}), nil
	}
}

const fileName = "views.db"

// stateFile returns the default file for a bus that has no data directory here; empty: there is none.
func stateFile(streams []string) string {
	file, err := cli.StateFile(os.Getenv, busID(streams), fileName)
	if err != nil {
		return ""
	}
	return file
}

// Run keeps the store up to date until ctx ends. What fails is logged and tried again.
func (v *views) Run(ctx context.Context) error {
	if v.settings.Late {
		select {
		case <-v.asked:
		case <-ctx.Done():
			return nil
		}
	}
	for ctx.Err() == nil {
		v.keep(ctx)
	}
	return nil
}

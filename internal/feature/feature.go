// Package feature is the form of a feature: one value with its rows in the tables, its flags, its
// requests, its work in the background, its commands and its page of the console. Package all has the
// list of them, over which programs loop.
//
// A feature is a folder below this package, and knows the core and the bus, but no other feature. Where the
// core has to ask a feature, the core has a port, such as [control.Pushes], which the feature fills when it
// is made.
package feature

import (
	"context"
	"net"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/web"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/worker"
)

// Feature is a feature.
type Feature struct {
	row.Row
	// New makes it in a process with a controller. Nil: it only has commands.
	New New
	// Client makes it in a process that only sends requests. It says what the feature's filters match, too.
	// Nil: New does.
	Client New
	// Flags adds the flags of processes with a gateway. It returns what checks them once they are
	// parsed. Nil: there are none.
	Flags func(flags *pflag.FlagSet) func(at *Place) (New, error)
	// Commands make the commands with which people use it.
	Commands []Command
	// Page is its page of the console. Nil: there is none.
	Page *web.Page
}

// Place is where a process with a gateway works.
type Place struct {
	// Listener serves HTTP. Nil: nothing does.
	Listener net.Listener
	// Bus is the bus in the data directory Dir, for features that only `moorebus dev` has. Both are set
	// when features are made, and not yet when flags are checked.
	Bus *natsbus.Bus
	Dir string
}

// Command makes a command.
type Command func(open Open) *cobra.Command

// New makes a feature on a controller that does not run yet.
type New func(c *control.Controller) Part

// Part is a feature in a process.
type Part struct {
	// Rows are its requests.
	Rows []route.Route
	// Run does its work in the background until ctx ends. Nil: there is none.
	Run func(ctx context.Context) error
}

// Set is the features of a program.
type Set []Feature

// With returns the set with one feature made in another way. It panics if the set has no such feature.
func (s Set) With(name string, made New) Set {
	all := slices.Clone(s)
	at := slices.IndexFunc(all, func(f Feature) bool { return f.Name == name })
	if at < 0 {
		panic("feature: the set has no feature " + name)
	}
	all[at].New = made
	return all
}

// Clients returns the set for a process that only sends requests.
func (s Set) Clients() Set {
	all := slices.Clone(s)
	for i := range all {
		if all[i].Client != nil {
			all[i].New = all[i].Client
		}
	}
	return all
}

// AddFlags adds the flags of processes with a gateway. What it returns checks them once they are parsed,
// and returns the features as they say.
func (s Set) AddFlags(flags *pflag.FlagSet) func(at *Place) (Set, error) {
	checks := map[string]func(*Place) (New, error){}
	for _, f := range s {
		if f.Flags != nil {
			checks[f.Name] = f.Flags(flags)
		}
	}
	return func(at *Place) (Set, error) {
		all := s
		for name, check := range checks {
			made, err := check(at)
			if err != nil {
				return nil, err
			}
			all = all.With(name, made)
		}
		return all, nil
	}
}

// On makes the features on a controller that does not run yet.
func (s Set) On(c *control.Controller) Parts {
	parts := make(Parts, len(s))
	for i, f := range s {
		if f.New != nil {
			parts[i] = f.New(c)
		}
	}
	return parts
}

// Commands returns the commands.
func (s Set) Commands(open Open) []*cobra.Command {
	var all []*cobra.Command
	for _, f := range s {
		for _, command := range f.Commands {
			all = append(all, command(open))
		}
	}
	return all
}

// Pages returns the pages of the console.
func (s Set) Pages() []web.Page {
	var all []web.Page
	for _, f := range s {
		if f.Page != nil {
			all = append(all, *f.Page)
		}
	}
	return all
}

// Parts are the features in a process.
type Parts []Part

// Rows returns the requests of all.
func (p Parts) Rows() []route.Route {
	var rows []route.Route
	for _, part := range p {
		rows = append(rows, part.Rows...)
	}
	return rows
}

// Run does the work of all in the background until ctx ends.
func (p Parts) Run(ctx context.Context) error {
	var work []func(context.Context) error
	for _, part := range p {
		if part.Run != nil {
			work = append(work, part.Run)
		}
	}
	return worker.RunAll(ctx, work...)
}

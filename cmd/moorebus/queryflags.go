package main

import (
	"cmp"
	"context"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/feature/row"
)

// queryFlags adds a flag for each field of a query that has the tag flag, its usage. The flag has the
// name of the field's parameter.
func queryFlags(cmd *cobra.Command, query any) {
	flags, v := cmd.Flags(), reflect.ValueOf(query).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		usage, is := tag.Lookup("flag")
		if !is {
			continue
		}
		name, usage := tag.Get("query"), strings.ReplaceAll(usage, "'", "`")
		switch at := v.Field(i).Addr().Interface().(type) {
		case *int:
			usual, _ := strconv.Atoi(tag.Get("default")) // 0 without one
			flags.IntVar(at, name, usual, usage)
		case *bool:
			flags.BoolVar(at, name, false, usage)
		case *string:
			flags.StringVar(at, name, "", usage)
		}
	}
}

// filterFlag is the name of a filter's flag.
func filterFlag(f row.Filter) string { return cmp.Or(f.Flag, strings.ReplaceAll(f.Name, "_", "-")) }

// filterFlags adds the flags of the filters of the list of runs.
func filterFlags(cmd *cobra.Command, client *clientFlags) {
	for _, f := range list.AllFilters() {
		if f.Usage == "" {
			continue
		}
		name, usage := filterFlag(f), strings.ReplaceAll(f.Usage, "'", "`")
		if f.Kind == row.Dollars {
			cmd.Flags().Float64(name, 0, usage)
		} else {
			cmd.Flags().StringP(name, f.Short, "", usage)
		}
		switch f.Kind {
		case row.Run:
			client.offerRunFlag(cmd, name)
		case row.State:
			cli.Complete(cmd, name, stateNames()...)
		case row.Chosen:
			cli.Complete(cmd, name, f.Values()...)
		}
	}
}

// filterValues returns what the flags of [filterFlags] say. Ids of runs are as they were given.
func filterValues(cmd *cobra.Command) (list.Filters, error) {
	values := list.Filters{}
	for _, f := range list.AllFilters() {
		given := cmd.Flags().Lookup(filterFlag(f))
		if f.Usage == "" || !given.Changed || given.Value.String() == "" {
			continue
		}
		text := given.Value.String()
		if f.Kind == row.Time {
			at, err := timeFlag(given.Name, text)
			if err != nil {
				return nil, err
			}
			text = at.UTC().Format(time.RFC3339Nano)
		}
		values[f.Name] = text
	}
	return values, nil
}

// findRuns completes the ids of runs in values of filters.
func (c *client) findRuns(ctx context.Context, values list.Filters) (err error) {
	for _, f := range list.AllFilters() {
		if f.Kind == row.Run && values[f.Name] != "" {
			if values[f.Name], err = c.FindRun(ctx, values[f.Name]); err != nil {
				return err
			}
		}
	}
	return nil
}

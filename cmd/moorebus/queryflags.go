package main

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// queryFlags adds a flag for each field of a query that has the tag flag, its usage. The flag has the
// name of the field's parameter, or the one in the tag name. The returned function sets the fields
// that the flags themselves cannot: times, and what nil is for.
func queryFlags(cmd *cobra.Command, query any) (given func() error) {
	var later []func() error
	flags, v := cmd.Flags(), reflect.ValueOf(query).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		usage, is := tag.Lookup("flag")
		if !is {
			continue
		}
		usage = strings.ReplaceAll(usage, "'", "`")
		name := strings.ReplaceAll(tag.Get("query"), "_", "-")
		if own := tag.Get("name"); own != "" {
			name = own
		}
		switch at := v.Field(i).Addr().Interface().(type) {
		case *int:
			usual, _ := strconv.Atoi(tag.Get("default")) // 0 without one
			flags.IntVar(at, name, usual, usage)
		case *bool:
			flags.BoolVar(at, name, false, usage)
		case **float64:
			n := flags.Float64(name, 0, usage)
			later = append(later, func() error {
				if flags.Changed(name) {
					*at = n
				}
				return nil
			})
		case *time.Time:
			text := flags.String(name, "", usage)
			later = append(later, func() (err error) {
				*at, err = timeFlag(name, *text)
				return err
			})
		default:
			text := v.Field(i).Addr().Convert(reflect.TypeFor[*string]()).Interface().(*string)
			flags.StringVarP(text, name, tag.Get("short"), "", usage)
		}
	}
	return func() error {
		for _, set := range later {
			if err := set(); err != nil {
				return err
			}
		}
		return nil
	}
}

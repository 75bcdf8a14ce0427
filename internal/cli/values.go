package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Size is a number of bytes as a flag, with or without a unit: 500MiB.
type Size int64

// String returns the number.
func (s *Size) String() string { return strconv.FormatInt(int64(*s), 10) }

// Type is how help names the value.
func (s *Size) Type() string { return "size" }

// Set reads a number with or without a unit.
func (s *Size) Set(text string) error {
	number := strings.TrimRight(text, "kKMGTiB")
	units := map[string]int64{
		"": 1, "B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}
	unit, known := units[text[len(number):]]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !known || n <= 0 || n > (1<<62)/unit {
		return errors.New("is not a size; use a whole number with a unit, such as 500MiB or 20GiB")
	}
	*s = Size(n * unit)
	return nil
}

// NotNegative has numbers and durations among the flags refuse values below 0, with a
// usage error.
func NotNegative(flags *pflag.FlagSet, names ...string) {
	validate(flags, func(value string) error {
		if strings.HasPrefix(value, "-") {
			return fmt.Errorf("must not be negative, is %s", value)
		}
		return nil
	}, names...)
}

// Positive has numbers and durations among the flags refuse 0 and values below it, with a
// usage error.
func Positive(flags *pflag.FlagSet, names ...string) {
	validate(flags, func(value string) error {
		if strings.HasPrefix(value, "-") || value == "0" || value == "0s" {
			return fmt.Errorf("must be more than 0, is %s", value)
		}
		return nil
	}, names...)
}

// validate has check see what is given for the flags, as their values print it.
func validate(flags *pflag.FlagSet, check func(value string) error, names ...string) {
	for _, name := range names {
		flag := flags.Lookup(name)
		flag.Value = validated{flag.Value, name, check}
	}
}

// validated is a flag's value that is checked when it is set.
type validated struct {
	pflag.Value
	name  string
	check func(value string) error
}

// Set sets the value and checks it.
func (v validated) Set(text string) error {
	if err := v.Value.Set(text); err != nil {
		return err
	}
	if err := v.check(v.String()); err != nil {
		return Usage("--%s: %w", v.name, err)
	}
	return nil
}

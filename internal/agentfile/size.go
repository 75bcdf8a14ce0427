package agentfile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Size is a number of bytes. As a flag, and as a string in a file, it may have a unit: 500MiB.
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
		return errors.New("is not a size; use an integer with a unit, such as 500MiB or 20GiB")
	}
	*s = Size(n * unit)
	return nil
}

// UnmarshalJSON reads a number of bytes, or a string with a unit.
func (s *Size) UnmarshalJSON(text []byte) error {
	if err := s.Set(strings.Trim(string(text), `"`)); err != nil {
		return fmt.Errorf("%s %w", text, err)
	}
	return nil
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// figure is one measured number, beside its floor where it has one.
type figure struct {
	// Bench is the command, Case what it was measured with, What the quantity.
	Bench string  `json:"bench"`
	Case  string  `json:"case"`
	What  string  `json:"what"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// Floor is the same quantity of the least that the work can be, measured in
	// the same run of the program, and FloorIs says what that is. Zero: it has none.
	Floor   float64 `json:"floor,omitempty"`
	FloorIs string  `json:"floor_is,omitempty"`
	// Ratio is Value by Floor.
	Ratio float64 `json:"ratio,omitempty"`
	// Target is what the figure is held to, in words, and Met whether it holds.
	// Empty: it is shown for its own sake.
	Target string `json:"target,omitempty"`
	Met    bool   `json:"met,omitempty"`
}

// beside gives the figure its floor.
func (f figure) beside(floor float64, is string) figure {
	f.Floor, f.FloorIs = floor, is
	if floor != 0 {
		f.Ratio = f.Value / floor
	}
	return f
}

// least holds the figure's ratio, or its value if it has no floor, to a lower
// bound.
func (f figure) least(bound float64) figure { return f.held("at least", bound, f.measure() >= bound) }

// most is least for an upper bound.
func (f figure) most(bound float64) figure { return f.held("at most", bound, f.measure() <= bound) }

func (f figure) measure() float64 {
	if f.Floor != 0 {
		return f.Ratio
	}
	return f.Value
}

func (f figure) held(words string, bound float64, met bool) figure {
	unit := f.Unit
	if f.Floor != 0 {
		unit = "of the floor"
	}
	f.Target, f.Met = fmt.Sprintf("%s %g %s", words, bound, unit), met
	return f
}

// verdict is what the table shows of the target.
func (f figure) verdict() string {
	switch {
	case f.Target == "":
		return ""
	case f.Met:
		return "met: " + f.Target
	}
	return "MISSED: " + f.Target
}

// print writes the figures as a table or as JSON.
func print(w io.Writer, format string, figures []figure) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(figures)
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "bench\tcase\twhat\tvalue\tunit\tfloor\tratio\tfloor is\ttarget")
	for _, f := range figures {
		floor, ratio := "", ""
		if f.Floor != 0 {
			floor, ratio = short(f.Floor), fmt.Sprintf("%.2f", f.Ratio)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			f.Bench, f.Case, f.What, short(f.Value), f.Unit, floor, ratio, f.FloorIs, f.verdict())
	}
	return table.Flush()
}

// short writes a number with as many digits as a noisy measurement has.
func short(v float64) string {
	switch {
	case v >= 100 || v == float64(int64(v)):
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.4f", v)
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
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
	// Rounds is of how many rounds Value is the median, Low and High are the least
	// and the most of them. Zero: it was measured once.
	Rounds int     `json:"rounds,omitempty"`
	Low    float64 `json:"low,omitempty"`
	High   float64 `json:"high,omitempty"`
	// Steady says that the least of the rounds counts too; Share is the least by the
	// median then.
	Steady bool    `json:"-"`
	Share  float64 `json:"least_by_median,omitempty"`
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

	bound target
}

// target is what a figure is held to.
type target struct {
	words string // at least or at most; empty: nothing
	value float64
}

// beside gives the figure its floor.
func (f figure) beside(floor float64, is string) figure {
	f.Floor, f.FloorIs, f.Ratio = floor, is, 0
	if floor != 0 {
		f.Ratio = f.Value / floor
	}
	return f.judged()
}

const (
	atLeast = "at least"
	atMost  = "at most"
)

// least holds the figure's ratio, or its value if it has no floor, to a lower
// bound.
func (f figure) least(bound float64) figure { return f.held(target{atLeast, bound}) }

// most is least for an upper bound.
func (f figure) most(bound float64) figure { return f.held(target{atMost, bound}) }

func (f figure) held(to target) figure {
	f.bound = to
	return f.judged()
}

// judged says whether the target is met.
func (f figure) judged() figure {
	if f.bound.words == "" {
		return f
	}
	measure, unit := f.Value, f.Unit
	if f.Floor != 0 {
		measure, unit = f.Ratio, "of the floor"
	}
	f.Target = fmt.Sprintf("%s %g %s", f.bound.words, f.bound.value, unit)
	f.Met = measure >= f.bound.value
	if f.bound.words == atMost {
		f.Met = measure <= f.bound.value
	}
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

// medians makes one figure of each place in the rounds, which all have the same
// figures in the same order: the median of the values beside that of the floors.
func medians(rounds [][]figure) []figure {
	var merged []figure
	for i, f := range rounds[0] {
		var values, floors []float64
		for _, r := range rounds {
			values, floors = append(values, r[i].Value), append(floors, r[i].Floor)
		}
		f.Value, f.Rounds, f.Low, f.High = median(values), len(rounds), slices.Min(values), slices.Max(values)
		if f.Steady && f.Value != 0 && len(rounds) > 1 {
			f.Share = f.Low / f.Value
		}
		merged = append(merged, f.beside(median(floors), f.FloorIs))
	}
	return merged
}

// median sorts the values.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[n/2] + values[(n-1)/2]) / 2
}

// print writes the figures as a table or as JSON.
func print(w io.Writer, format string, figures []figure) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(figures)
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "bench\tcase\twhat\tvalue\trounds\tleast/median\tunit\tfloor\tratio\tfloor is\ttarget")
	for _, f := range figures {
		floor, ratio, spread, share := "", "", "", ""
		if f.Floor != 0 {
			floor, ratio = short(f.Floor), fmt.Sprintf("%.2f", f.Ratio)
		}
		if f.Rounds > 1 {
			spread = short(f.Low) + "-" + short(f.High)
		}
		if f.Share != 0 {
			share = fmt.Sprintf("%.2f", f.Share)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			f.Bench, f.Case, f.What, short(f.Value), spread, share, f.Unit, floor, ratio, f.FloorIs, f.verdict())
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

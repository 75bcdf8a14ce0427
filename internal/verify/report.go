package verify

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/jsondiff"
	"github.com/moorebus/moorebus/internal/logwalk"
)

// maxMisplaced bounds how many misplaced messages a report lists; it counts all of them.
const maxMisplaced = 1000

// Report is what verification found.
type Report struct {
	// Runs and Events count what was read.
	Runs   int    `json:"runs"`
	Events uint64 `json:"events"`
	// Outcomes counts the runs by how they were found; every outcome is there.
	Outcomes map[Outcome]int `json:"outcomes"`
	// Findings are the runs that are poisoned, diverged or orphaned, each with its first
	// bad record, by namespace and run.
	Findings []Finding `json:"findings"`
	// MisplacedCount counts the messages that belong to no run, Misplaced lists the
	// first of them by shard and sequence number.
	MisplacedCount int                 `json:"strays"`
	Misplaced      []logwalk.Misplaced `json:"stray"`
	// Strict makes poisoned runs count as bad.
	Strict bool `json:"strict"`
	// Elapsed is how long it took.
	Elapsed time.Duration `json:"elapsed_ns"`
}

func newReport(strict bool) *Report {
	r := &Report{Strict: strict, Outcomes: map[Outcome]int{}, Findings: []Finding{}, Misplaced: []logwalk.Misplaced{}}
	for _, o := range Outcomes() {
		r.Outcomes[o] = 0
	}
	return r
}

// Clean reports whether no run diverged, lacks its parent or is of an unknown
// transition table and, if the report is
// strict, none is poisoned.
func (r *Report) Clean() bool {
	return r.Outcomes[Diverged] == 0 && r.Outcomes[Orphaned] == 0 && r.Outcomes[Foreign] == 0 && (!r.Strict || r.Outcomes[Poisoned] == 0)
}

// EventsPerSecond is how fast the events were read and verified.
func (r *Report) EventsPerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Events) / r.Elapsed.Seconds()
}

func (r *Report) add(c *checker) {
	r.Runs++
	r.Events += c.n
	r.Outcomes[c.outcome()]++
	if found := c.finding(); found != nil {
		r.Findings = append(r.Findings, *found)
	}
}

func (r *Report) addMisplaced(m logwalk.Misplaced) {
	r.MisplacedCount++
	if len(r.Misplaced) < maxMisplaced {
		r.Misplaced = append(r.Misplaced, m)
	}
}

// merge adds what another worker found.
func (r *Report) merge(o *Report) {
	r.Runs += o.Runs
	r.Events += o.Events
	for outcome, count := range o.Outcomes {
		r.Outcomes[outcome] += count
	}
	r.Findings = append(r.Findings, o.Findings...)
	r.MisplacedCount += o.MisplacedCount
	r.Misplaced = append(r.Misplaced, o.Misplaced...)
}

// sort brings what several workers found into an order that does not depend on
// them.
func (r *Report) sort() {
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Run, b.Run))
	})
	slices.SortFunc(r.Misplaced, func(a, b logwalk.Misplaced) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Seq, b.Seq))
	})
	r.Misplaced = r.Misplaced[:min(len(r.Misplaced), maxMisplaced)]
}

// WriteText writes the report for people: a line for every finding, a line of
// counts at the end.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-8s  run %s (namespace %s) at event %d, sequence %d", f.Outcome, f.Run, f.Namespace, f.N, f.Seq)
		if f.Type != "" {
			fmt.Fprintf(&b, ", %s", f.Type)
		}
		fmt.Fprintf(&b, ": %s\n", jsondiff.Cut(f.Reason, 600))
	}
	for _, s := range r.Misplaced {
		fmt.Fprintf(&b, "stray     shard %d, sequence %d: %s\n", s.Shard, s.Seq, jsondiff.Cut(s.Reason, 600))
	}
	if more := r.MisplacedCount - len(r.Misplaced); more > 0 {
		fmt.Fprintf(&b, "stray     and %d more\n", more)
	}
	b.WriteString(r.summary() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) summary() string {
	parts := []string{}
	for _, o := range Outcomes() {
		// Ended is for other tables than the built-in one.
		if count := r.Outcomes[o]; count > 0 || o != Ended && o != Orphaned && o != Foreign {
			parts = append(parts, fmt.Sprintf("%d %s", count, o))
		}
	}
	text := fmt.Sprintf("%s, %s: %s", plural(uint64(r.Runs), "run"), plural(r.Events, "event"), strings.Join(parts, ", "))
	if r.MisplacedCount > 0 {
		text += fmt.Sprintf("; %d stray", r.MisplacedCount)
	}
	if r.Elapsed > 0 {
		text += fmt.Sprintf(" (%s, %.0f events/s)", r.Elapsed.Round(time.Millisecond), r.EventsPerSecond())
	}
	return text
}

func plural(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

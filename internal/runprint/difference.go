package runprint

import (
	"fmt"
	"io"
	"strings"

	"github.com/moorebus/moorebus/internal/jsondiff"
	"github.com/moorebus/moorebus/pkg/replay"
)

// Difference writes where two runs differ, for people.
func Difference(w io.Writer, d *replay.Difference) error {
	var b strings.Builder
	writeFork(&b, "a", d.ForkA)
	writeFork(&b, "b", d.ForkB)
	if d.Common != nil {
		fmt.Fprintf(&b, "they have run %s up to event %d in common\n", d.Common.Run, d.Common.N)
	}
	switch {
	case d.Equal && d.Common != nil:
		b.WriteString("their events after that do not differ\n")
	case d.Equal:
		b.WriteString("the runs do not differ\n")
	default:
		writeEvents(&b, d)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeFork(b *strings.Builder, side string, f *replay.Fork) {
	if f == nil {
		return
	}
	fmt.Fprintf(b, "%s is a fork of run %s at event %d", side, f.Run, f.At)
	if len(f.Patch) > 0 {
		fmt.Fprintf(b, ", with the patch %s", jsondiff.Short(f.Patch))
	}
	b.WriteByte('\n')
}

func writeEvents(b *strings.Builder, d *replay.Difference) {
	switch {
	case d.A != nil && d.B != nil && d.A.N != d.B.N:
		fmt.Fprintf(b, "the runs differ at event %d of a, which is event %d of b\n", d.A.N, d.B.N)
	case d.A != nil:
		fmt.Fprintf(b, "the runs differ at event %d\n", d.A.N)
	default:
		fmt.Fprintf(b, "the runs differ at event %d\n", d.B.N)
	}
	fmt.Fprintf(b, "  a: %s\n  b: %s\n", d.A, d.B)
	if d.A != nil && d.B != nil {
		writeChanges(b, "the events", d.Event)
	}
	writeChanges(b, "the memories after it", d.Memory)
}

func writeChanges(b *strings.Builder, what string, changes []replay.Change) {
	if len(changes) == 0 {
		fmt.Fprintf(b, "%s are the same\n", what)
		return
	}
	fmt.Fprintf(b, "%s:\n", what)
	for _, c := range changes {
		fmt.Fprintf(b, "  %s\n    a: %s\n    b: %s\n", c.Path, jsondiff.Short(c.A), jsondiff.Short(c.B))
	}
	if len(changes) == replay.MaxChanges {
		fmt.Fprintf(b, "  and maybe more: the first %d are shown\n", replay.MaxChanges)
	}
}

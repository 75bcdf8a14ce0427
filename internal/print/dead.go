package print

import (
	"io"
	"strconv"

	"github.com/moorebus/moorebus/internal/control/dead"
)

// WriteDead writes the list as Table, JSON or YAML.
func WriteDead(w io.Writer, f Format, entries []dead.Dead) error {
	if f != Table {
		return Write(w, f, entries)
	}
	rows := make([][]string, len(entries))
	for i, d := range entries {
		name, n := d.Run, strconv.FormatUint(d.N, 10)
		if d.Stray != "" {
			name, n = d.Stray, ""
		}
		rows[i] = []string{name, n, Plain(d.Code), timestamp(d.Time), Cut(d.Message, dataWidth)}
	}
	return WriteTable(w, []string{"RUN", "N", "CODE", "TIME", "MESSAGE"}, rows)
}

package console

import (
	"fmt"
	"io"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// WriteTrace writes a trace as a table or as JSON. A state selects its entries.
func WriteTrace(w io.Writer, trace reducer.Trace, state events.State, f Format) error {
	if state != "" {
		trace = trace.ForState(state)
	}
	if f == JSON {
		text, err := trace.JSON()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, text)
		return err
	}
	rows := make([][]string, len(trace))
	for i, entry := range trace {
		rows[i] = []string{
			fmt.Sprint(entry.Step), entry.State, entry.Event, Cut(entry.Data, dataWidth), entry.Timestamp.Format(time.RFC3339Nano),
		}
	}
	return WriteTable(w, []string{"STEP", "STATE", "EVENT", "DATA", "TIMESTAMP"}, rows)
}

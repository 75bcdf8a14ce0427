package gateway

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// CodeUnknownTable is the code of an [Error] for a run whose transition table this
// gateway does not have: only a program with the run's own graph can read it. The
// fields run and table_hash name both. It is stable.
const CodeUnknownTable = "unknown_table"

// isForeign reports whether a run could not be read for its transition table.
func isForeign(err error) bool {
	var foreign *reducer.TableError
	return errors.As(err, &foreign)
}

// read takes what the last event of a run says of itself, whose graph is not known.
func (i *RunInfo) read(last journal.Record) {
	var e struct {
		N    uint64       `json:"n"`
		To   events.State `json:"to"`
		Time time.Time    `json:"time"`
	}
	if json.Unmarshal(last.Body, &e) == nil {
		i.State, i.N, i.Updated = e.To, e.N, e.Time
	}
}

package sim

import (
	"errors"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// apply folds a record. A fork begins with its parent's memory, which is folded
// again from the parent's records.
func (a *auditor) apply(mem *reducer.Memory, rec journal.Record) (*events.Event, error) {
	e, err := a.machine.Apply(mem, rec.Subject, rec.Body)
	var parent *reducer.ParentError
	if !errors.As(err, &parent) {
		return e, err
	}
	mem.Adopt(a.past(parent.Run, parent.At))
	return a.machine.Apply(mem, rec.Subject, rec.Body)
}

// past is a run as it was after its n-th event.
func (a *auditor) past(run string, n uint64) *reducer.Memory {
	mem := a.machine.Initial(run)
	for _, rec := range a.run(run).records {
		if mem.N == n {
			break
		}
		_, _ = a.apply(mem, rec) // it was checked when it was stored
	}
	return mem
}

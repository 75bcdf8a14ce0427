package route

import (
	"errors"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// RefusalOf turns errors of the log, the bus and the document readers into refusals. It is the
// only place that does.
func RefusalOf(err error) *refusal.Error {
	var known *refusal.Error
	var draft *runlog.DraftError
	var document *strict.Error
	var parentGone *runlog.ParentGoneError
	var unknownTable *reducer.TableError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &parentGone):
		return refusal.Wrap(err, refusal.Conflict, refusal.CodeParentGone, "%s; without it the run cannot be read", err.Error())
	case errors.As(err, &unknownTable):
		return refusal.Wrap(err, refusal.Conflict, refusal.CodeUnknownTable, "%s", err.Error()).
			With(map[string]any{"run": unknownTable.Run, "table_hash": unknownTable.Table})
	case errors.As(err, &document):
		return BadRequest("%s", err.Error())
	case errors.Is(err, agentfile.ErrTooLarge):
		return refusal.Wrap(err, refusal.TooLarge, refusal.CodeTooLarge, "the definition is %s", err.Error())
	case errors.Is(err, journal.ErrTooLarge):
		return refusal.Wrap(err, refusal.TooLarge, refusal.CodeTooLarge, "the event would be larger than %s", ports.LimitOf(err))
	case errors.Is(err, journal.ErrUnknownOutcome):
		return refusal.Wrap(err, refusal.Unavailable, UnavailableCode(err), "it may or may not be stored; check before you send it again: %s", err.Error())
	case errors.Is(err, journal.ErrFull):
		return refusal.Wrap(err, refusal.Unavailable, UnavailableCode(err), "nothing was stored: %s", err.Error())
	case errors.As(err, &draft):
		return refusal.Wrap(err, refusal.Conflict, refusal.CodeConflict, "the run's state does not allow it: %s", err.Error())
	}
	if errors.Is(err, journal.ErrDenied) {
		return refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable, "the bus does not permit the gateway to do this; its operator runs `moorebus init` and prints the permissions again (--print-permissions): %s", err.Error())
	}
	// Everything else is a failure of the bus, which can pass.
	return refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable, "the bus failed; try again, and see /readyz: %s", err.Error())
}

// UnavailableCode is the code of a bus that cannot store anything now, or fails otherwise.
func UnavailableCode(err error) string {
	switch {
	case errors.Is(err, journal.ErrDiskFull):
		return refusal.CodeDiskFull
	case errors.Is(err, journal.ErrFull):
		return refusal.CodeStoreFull
	}
	return refusal.CodeUnavailable
}

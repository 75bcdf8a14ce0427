package reducer

import (
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// Deadline returns when the run will have used up its wall time, counted from
// its start whatever it does or waits for; false if its budget has no such limit.
func Deadline(mem *Memory) (at time.Time, limited bool) {
	if mem.N == 0 || mem.Budget == nil || mem.Budget.MaxWallTime <= 0 {
		return time.Time{}, false
	}
	return mem.Started.Add(time.Duration(mem.Budget.MaxWallTime)), true
}

// OverWallTime reports whether the run has used up its wall time, and how it
// ends for that reason.
func OverWallTime(mem *Memory, now time.Time) (o events.Outcome, over bool) {
	at, limited := Deadline(mem)
	if !limited || now.Before(at) {
		return events.Outcome{}, false
	}
	return events.Outcome{
		Code: CodeWallTime, Message: "the run took longer than its " + time.Duration(mem.Budget.MaxWallTime).String(),
	}, true
}

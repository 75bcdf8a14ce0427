package worker

import (
	"log/slog"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// foreign remembers which tables and versions were met that only another program can
// read, and in which runs. The zero value is ready. It is safe for concurrent use.
type foreign struct {
	mu     sync.Mutex
	tables map[string]bool
	runs   map[events.Run]bool
}

// mostForeignTables and mostForeignRuns bound what is remembered. When there are more
// runs they are all forgotten, and each is logged once more.
const (
	mostForeignTables = 100
	mostForeignRuns   = 1000
)

// level is the level at which a run is logged that is left to another program. An
// operator has to hear of each such program, and of each run, but not of every delivery.
func (f *foreign) level(run events.Run, err *reducer.TableError) slog.Level {
	table := err.Table
	if err.Version != nil {
		table = err.Version.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.runs[run]
	if f.runs == nil || len(f.runs) == mostForeignRuns && !known {
		f.runs = map[events.Run]bool{}
	}
	f.runs[run] = true
	switch {
	case !f.tables[table] && len(f.tables) < mostForeignTables:
		if f.tables == nil {
			f.tables = map[string]bool{}
		}
		f.tables[table] = true
		return slog.LevelError
	case !known:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

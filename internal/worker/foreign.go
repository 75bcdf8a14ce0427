package worker

import (
	"log/slog"
	"sync"

	"github.com/moorebus/moorebus/pkg/reducer"
)

// foreign remembers which tables and versions were met that only another program can
// read. The zero value is ready. It is safe for concurrent use.
type foreign struct {
	mu   sync.Mutex
	seen map[string]bool
}

// mostForeign bounds what is remembered.
const mostForeign = 100

// level is the level at which a run is logged that is left to another program: an
// operator has to hear of each such program once, not of every delivery.
func (f *foreign) level(err *reducer.TableError) slog.Level {
	what := err.Table
	if err.Version != nil {
		what = err.Version.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[what] || len(f.seen) == mostForeign {
		return slog.LevelDebug
	}
	if f.seen == nil {
		f.seen = map[string]bool{}
	}
	f.seen[what] = true
	return slog.LevelError
}

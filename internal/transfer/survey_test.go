package transfer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// late is a target in which an earlier import's append arrives once this import has looked.
type late struct {
	transfer.Target
	arrives func(ctx context.Context, run events.Run, entries []journal.Entry)
}

func (l *late) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	if l.arrives != nil {
		l.arrives(ctx, run, entries)
		l.arrives = nil
	}
	return l.Target.Append(ctx, run, last, entries...)
}

// An import that read its target once in the beginning checks the condition of every append all the same:
// it completes what an earlier one still had on the way, and refuses what is another run.
func TestEntire(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1).Work()
	run := one.Ended(transfertest.Agent("", transfertest.Calls(2, "x"), "repeat"))
	other := one.Ended(transfertest.Agent("", transfertest.Calls(1, "y"), "repeat"))
	file := one.Export(transfer.ExportOptions{All: true})
	asleep := func(entries []journal.Entry) []journal.Entry {
		e := entries[0]
		e.Subject.To, e.Subject.Pool = events.Nobody, events.DefaultPool
		return []journal.Entry{e}
	}
	for name, arrives := range map[string]func([]journal.Entry) ([]journal.Entry, bool){
		"nothing": nil,
		"all":     func(entries []journal.Entry) ([]journal.Entry, bool) { return entries, true },
		"a part":  func(entries []journal.Entry) ([]journal.Entry, bool) { return asleep(entries), true },
		"another run": func(entries []journal.Entry) ([]journal.Entry, bool) {
			return []journal.Entry{{Subject: entries[0].Subject, Body: entries[1].Body}}, false
		},
	} {
		t.Run(name, func(t *testing.T) {
			two := newWorld(t, 2)
			target, good := &late{Target: two.Bus}, true
			if arrives != nil {
				target.arrives = func(ctx context.Context, to events.Run, entries []journal.Entry) {
					entries, good = arrives(entries)
					_, err := two.Bus.Append(ctx, to, 0, entries...)
					require.NoError(t, err)
				}
			}
			o := transfer.ImportOptions{Entire: true, Size: func(events.Run) int64 { return 1 }, Source: "moorebus/gateway/import"}
			_, err := transfer.Import(t.Context(), file, target, o)
			if !good {
				require.ErrorContains(t, err, "with another event 1")
				require.ErrorIs(t, err, journal.ErrConflict)
				return
			}
			require.NoError(t, err)
			require.Equal(t, one.Bodies(run), two.Bodies(run))
			require.Equal(t, one.Bodies(other), two.Bodies(other))
			require.Equal(t, 2, two.Verified().Runs)
			results, err := transfer.Import(t.Context(), file, target, o)
			require.NoError(t, err)
			require.Equal(t, map[string]transfer.Fate{run.ID: transfer.FateSkipped, other.ID: transfer.FateSkipped}, transfertest.Fates(results))
		})
	}
}

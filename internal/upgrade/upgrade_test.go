package upgrade_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/internal/doctor"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/upgrade"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

var quiet = slog.New(slog.DiscardHandler)

func check(t *testing.T, conn *nats.Conn) (*doctor.Report, string) {
	t.Helper()
	report, err := upgrade.Check(t.Context(), conn, "", natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	var text strings.Builder
	require.NoError(t, report.Write(&text, "text", false))
	return report, text.String()
}

// start starts a run that pins the table.
func start(t *testing.T, bus *natsbus.Bus, table string, ends bool) {
	t.Helper()
	store := runlog.New(runlog.Options{Log: bus})
	p := reducertest.StartOf("do it", events.ModeTask)
	run := store.Acquire(events.NewRun("default", store.NewID(), bus.Shards()))
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	drafts := []runlog.Draft{{Origin: events.Idle, Payload: p}}
	if ends {
		drafts = append(drafts, runlog.Draft{Origin: events.Control, Payload: &events.CancelledRun{}})
	}
	p.TableHash = reducer.DefaultTable().Pins(p)
	_, err := run.Commit(t.Context(), runlog.Stamp{Source: "moorebus/gateway/test"}, func(*reducer.Memory) ([]runlog.Draft, error) { return drafts, nil })
	require.NoError(t, err)
	if table == "" {
		return
	}
	// A record of a later build, which this one would not write.
	rec, err := bus.Head(t.Context(), run.ID)
	require.NoError(t, err)
	body := strings.Replace(string(rec.Body), p.TableHash, table, 1)
	subject, id := rec.Subject, store.NewID()
	other := events.NewRun("default", id, bus.Shards())
	require.NoError(t, bus.Conn().Publish(strings.Replace(subject, run.ID.ID, other.ID, 1), []byte(body)))
	require.NoError(t, bus.Conn().Flush())
}

func TestCheck(t *testing.T) {
	t.Parallel()
	conn, err := nats.Connect(natstest.Start(t, natstest.Options{}).URL)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	start(t, bus, "", false)
	start(t, bus, "", true)
	report, text := check(t, conn)
	require.Contains(t, text, "2 runs of revision 6, 1 of which have not ended")
	require.Zero(t, report.Bad+report.Warnings, text)

	js, err := jetstream.New(conn)
	require.NoError(t, err)
	require.NoError(t, js.DeleteKeyValue(t.Context(), "positions_gateway"))
	start(t, bus, strings.Repeat("ab", 32), false)
	report, text = check(t, conn)
	require.Contains(t, text, "1 runs that have not ended")
	require.Contains(t, text, "pin the table abababababab…")
	require.Contains(t, text, "positions_gateway: create")
	require.Equal(t, [2]int{1, 1}, [2]int{report.Bad, report.Warnings}, text)
}

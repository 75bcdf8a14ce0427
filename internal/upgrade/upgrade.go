// Package upgrade says what stands between a bus and this build: runs whose tables it does not
// know, settings of the bus, and permissions. It changes nothing.
package upgrade

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/doctor"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The areas of the report.
const (
	areaBuild       = "build"
	areaRuns        = "runs"
	areaBus         = "bus"
	areaPermissions = "users"
)

// Check reports what an operator has to know or do before this build works on the bus. A run that
// this build cannot continue is bad; what `moorebus init` would change, what users lack, and what
// stands in the way back to the release before are warnings. permissions is the text of the
// servers' configuration with the users, as `moorebus init --print-permissions` wrote it; empty:
// users are not checked. It reads the first and the last event of every run. The error is the bus's, or says
// what is wrong with the configuration.
func Check(ctx context.Context, conn *nats.Conn, permissions string, o natsbus.Options) (*doctor.Report, error) {
	report := &doctor.Report{}
	build := buildinfo.Read()
	report.Add(areaBuild, natsbus.Finding{Level: natsbus.Good, What: fmt.Sprintf("this build is %s, and reads runs of the revisions 1 to %d", build.Version, reducer.Revision)})
	bus, err := natsbus.Open(ctx, conn, o)
	if err != nil {
		return nil, err
	}
	runs, err := pinned(ctx, bus)
	if err != nil {
		return nil, err
	}
	report.Add(areaRuns, runs.findings()...)
	changes, err := natsbus.Plan(ctx, conn, natsbus.InitOptions{})
	if err != nil {
		return nil, err
	}
	report.Add(areaBus, settings(changes)...)
	if permissions != "" {
		lacking, err := users(permissions, bus.Shards())
		if err != nil {
			return nil, err
		}
		report.Add(areaPermissions, lacking...)
	}
	return report, nil
}

// Unreadable returns the findings about runs that this build cannot continue, or the release before
// it could not. It reads the first and the last event of every run.
func Unreadable(ctx context.Context, log journal.Log) ([]natsbus.Finding, error) {
	runs, err := pinned(ctx, log)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(runs.findings(), func(f natsbus.Finding) bool { return f.Level == natsbus.Good }), nil
}

// settings are the findings about streams, consumers and buckets.
func settings(changes []natsbus.Change) []natsbus.Finding {
	if len(changes) == 0 {
		return []natsbus.Finding{{Level: natsbus.Good, What: "streams, consumers and buckets are those of this build"}}
	}
	found := make([]natsbus.Finding, len(changes))
	for i, c := range changes {
		found[i] = natsbus.Finding{Level: natsbus.Warning, What: fmt.Sprintf("%s: %s", c.Thing, c.Action), Mend: "run `" + api.InitCommand + "` of this build first; builds of before work on with what it makes"}
	}
	return found
}

// tables are the runs by the table that they pin.
type tables map[string]*count

// count counts runs that pin one table. Example is one that has not ended, if there is one.
type count struct {
	all, open int
	example   string
}

// pinned counts the runs of a log by their tables. Forks are counted with their parents' tables
// where those are in the log.
func pinned(ctx context.Context, log journal.Log) (tables, error) {
	tableOf, forkOf := map[uuid.UUID]string{}, map[uuid.UUID]uuid.UUID{}
	ended := map[uuid.UUID]bool{}
	for shard := range log.Shards() {
		for rec, err := range log.Scan(ctx, shard, journal.Filter{From: events.Idle}, 0) {
			if err != nil {
				return nil, err
			}
			run, table, parent := beginning(rec)
			if parent != uuid.Nil {
				forkOf[run] = parent
			} else if run != uuid.Nil {
				tableOf[run] = table
			}
		}
		for _, state := range []events.State{events.Done, events.Errored, events.Cancelled} {
			for rec, err := range log.Scan(ctx, shard, journal.Filter{To: state}, 0) {
				if err != nil {
					return nil, err
				}
				if subject, err := events.ParseSubject(rec.Subject); err == nil {
					ended[uuid.MustParse(subject.Run.ID)] = true
				}
			}
		}
	}
	all := tables{}
	note := func(run uuid.UUID, table string) {
		c := all[table]
		if c == nil {
			c = &count{}
			all[table] = c
		}
		if c.all++; !ended[run] {
			c.open++
			c.example = run.String()
		}
	}
	for run, table := range tableOf {
		note(run, table)
	}
	for run, parent := range forkOf {
		for depth := 0; forkOf[parent] != uuid.Nil && depth < len(forkOf); depth++ {
			parent = forkOf[parent]
		}
		if table, known := tableOf[parent]; known {
			note(run, table)
		}
	}
	return all, nil
}

// beginning reads the first event of a run: the table that it pins, or the run that it was forked
// from. Only these members are read, since the event may be of a build of later.
func beginning(rec journal.Record) (run uuid.UUID, table string, parent uuid.UUID) {
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return uuid.Nil, "", uuid.Nil // of no run
	}
	var e struct {
		Data struct {
			TableHash string    `json:"table_hash"`
			Run       uuid.UUID `json:"run"`
		} `json:"data"`
	}
	if json.Unmarshal(rec.Body, &e) != nil {
		return uuid.Nil, "", uuid.Nil // which `moorebus replay verify` reports
	}
	return uuid.MustParse(subject.Run.ID), e.Data.TableHash, e.Data.Run
}

// findings say which builds can continue the runs.
func (t tables) findings() []natsbus.Finding {
	if len(t) == 0 {
		return []natsbus.Finding{{Level: natsbus.Good, What: "the log has no runs"}}
	}
	revisions := map[string]int{"": 0} // runs of before there were tables
	for r := reducer.Revision; r > 0; r-- {
		if older, err := reducer.DefaultTable().At(r); err == nil {
			revisions[older.Hash()] = r
		}
	}
	before := revisions[reducer.DefaultTable().Pins(&events.Start{})]
	var found []natsbus.Finding
	for _, hash := range slices.SortedFunc(maps.Keys(t), func(a, b string) int { return revisions[a] - revisions[b] }) {
		c := t[hash]
		r, known := revisions[hash]
		switch {
		case !known && c.open > 0:
			found = append(found, natsbus.Finding{Level: natsbus.Bad,
				What: fmt.Sprintf("%d runs that have not ended, such as %s, pin the table %.12s…, which this build does not know", c.open, c.example, hash),
				Mend: "they are of a later release or of an application's own graph: keep roles of that build running until these runs have ended"})
		case !known:
			found = append(found, natsbus.Finding{Level: natsbus.Warning,
				What: fmt.Sprintf("%d runs that have ended pin the table %.12s…, which this build does not know", c.all, hash), Mend: "only the build that wrote them can show them"})
		case r > before && c.open > 0:
			found = append(found, natsbus.Finding{Level: natsbus.Warning,
				What: fmt.Sprintf("%d runs that have not ended, such as %s, are of revision %d, which the release before this one does not know", c.open, c.example, r),
				Mend: "this is of no matter for an upgrade; before you go back to that release, let these runs end"})
		default:
			found = append(found, natsbus.Finding{Level: natsbus.Good, What: fmt.Sprintf("%d runs of revision %d, %d of which have not ended", c.all, r, c.open)})
		}
	}
	return found
}

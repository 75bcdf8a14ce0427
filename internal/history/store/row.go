package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
)

// values are a run's columns.
func values(r *stored, run history.Run) ([]any, error) {
	v := []any{
		r.rid, run.Namespace, run.ID, run.Shard, int64(run.N), string(run.State), run.Agent, run.Model, run.Error, run.Experiment,
		run.Parent, run.ForkOf, run.By, run.Waiting, number(run.Paused), r.started, nano(run.Updated),
		nil, nil, nil, nil, run.Tokens, run.Steps, r.high, nil, nil,
	}
	if !run.Ended.IsZero() {
		ended := nano(run.Ended)
		v[17], v[18], v[19] = ended, ended-r.started, slotOf(time.Duration(ended-r.started))
	}
	if run.Priced {
		v[20] = run.CostUSD
	}
	if len(run.Open) > 0 {
		v[25] = run.Open
	}
	row, err := json.Marshal(rest(run))
	v[24] = row
	return v, err
}

// rest is what of a run has no column.
func rest(run history.Run) history.Run {
	run.Namespace, run.ID, run.Shard, run.N, run.State, run.Agent, run.Model, run.Error = "", "", 0, 0, "", "", "", ""
	run.Experiment, run.Parent, run.ForkOf, run.By, run.Waiting, run.Paused = "", "", "", "", "", false
	run.Started, run.Updated, run.Ended, run.Tokens, run.Steps, run.Open = time.Time{}, time.Time{}, time.Time{}, 0, 0, nil
	if run.Priced {
		run.CostUSD = 0
	}
	return run
}

// rowColumns are the columns of r that [scanRow] reads, with what was noted about the run.
const rowColumns = runColumns + ", o.labels, o.scores"

// runColumns are those of the run itself.
const runColumns = `r.rid, r.ns, r.id, r.shard, r.n, r.state, r.agent, r.model, r.error, r.experiment, r.parent, r.fork_of, r.starter, r.waiting,
	r.paused, r.started, r.updated, r.ended, r.cost, r.tokens, r.steps, r.high, r.row`

// rowFrom joins what was noted about the run.
const rowFrom = " LEFT JOIN notes o ON o.ns = r.ns AND o.id = r.id"

// Row is a run as the store has it. Its labels are those that were noted last.
type Row struct {
	history.Run
	Scores []history.Score
	// rid and high are of the store.
	rid, high int64
}

// scanRow reads a run. It reads the columns in more, too, which follow those of the row.
func scanRow(scan scan, more ...any) (Row, error) {
	var r Row
	var n, started, updated int64
	var ended sql.NullInt64
	var cost sql.NullFloat64
	var row, labels, scores []byte
	run := &r.Run
	err := scan(append([]any{
		&r.rid, &run.Namespace, &run.ID, &run.Shard, &n, &run.State, &run.Agent, &run.Model, &run.Error, &run.Experiment, &run.Parent, &run.ForkOf, &run.By, &run.Waiting,
		&run.Paused, &started, &updated, &ended, &cost, &run.Tokens, &run.Steps, &r.high, &row, &labels, &scores,
	}, more...)...)
	if err != nil {
		return r, err
	}
	run.N, run.Started, run.Updated = uint64(n), moment(started), moment(updated)
	if ended.Valid {
		run.Ended = moment(ended.Int64)
	}
	err = json.Unmarshal(row, run)
	if cost.Valid {
		run.CostUSD = cost.Float64
	}
	var noted note
	err = errors.Join(err, noted.decode(labels, scores))
	r.Scores = noted.scores
	if noted.labels != nil {
		r.Labels = noted.labels
	}
	return r, err
}

func moment(nano int64) time.Time { return time.Unix(0, nano).UTC() }

// slotWidth is the logarithm of how much longer the durations of the next slot are. A slot's middle differs
// from a duration in it by 2 % at most, and by no more than half a millisecond.
var slotWidth = math.Log(1.04)

// slotOf is the slot of a duration, by which percentiles are computed.
func slotOf(d time.Duration) int64 {
	if d < time.Millisecond {
		return -1
	}
	return int64(math.Round(math.Log(float64(d)/float64(time.Millisecond)) / slotWidth))
}

// slotTime is the duration in the middle of a slot.
func slotTime(slot int64) time.Duration {
	if slot < 0 {
		return 0
	}
	return time.Duration(math.Exp(float64(slot)*slotWidth) * 1e6).Round(time.Millisecond)
}

// Runs returns the rows of those of the runs that the store has, in any order. Their labels are those of their
// first events.
func (s *Store) Runs(ctx context.Context, runs []events.Run) ([]history.Run, error) {
	var all []history.Run
	var others [][2]string
	for _, run := range runs {
		if r, is := s.known.Get(runKey{run.Namespace, run.ID}); is {
			all = append(all, r.run)
		} else {
			others = append(others, [2]string{run.Namespace, run.ID})
		}
	}
	if len(others) == 0 {
		return all, nil
	}
	names, err := json.Marshal(others)
	if err != nil {
		return nil, err
	}
	err = s.query(ctx, "SELECT "+runColumns+", NULL, NULL, r.open FROM json_each(?) j CROSS JOIN runs r ON r.ns = j.value ->> 0 AND r.id = j.value ->> 1", []any{string(names)}, func(scan scan) error {
		var open []byte
		r, err := scanRow(scan, &open)
		r.Open = open
		all = append(all, r.Run)
		return err
	})
	return all, err
}

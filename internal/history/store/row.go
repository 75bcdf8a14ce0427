package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
)

// values are a run's columns.
func values(r *stored, run history.Run) ([]any, error) {
	v := []any{
		r.rid, run.Namespace, run.ID, run.Shard, int64(run.N), string(run.State), run.Agent, run.Model, run.Error, run.Experiment,
		run.Parent, run.ForkOf, run.By, run.Waiting, number(run.Paused), r.started, nano(run.Updated),
		nil, nil, nil, nil, run.Tokens, run.Steps, r.high, nil, nil, nil,
	}
	if !run.Ended.IsZero() {
		ended := nano(run.Ended)
		v[17], v[18], v[19] = ended, ended-r.started, slotOf(time.Duration(ended-r.started))
	}
	if run.Priced {
		v[20] = run.CostUSD
	}
	if len(run.Open) > 0 {
		v[26] = run.Open
	}
	if head, is := hash(run.Head); is {
		v[24], run.Head = head, ""
	}
	row, err := json.Marshal(rest(run))
	if !run.Ended.IsZero() {
		row = packer().EncodeAll(row, nil)
	}
	v[25] = row
	return v, err
}

// hash returns the bytes of a hash in hexadecimal digits.
func hash(text string) ([]byte, bool) {
	b, err := hex.DecodeString(text)
	return b, err == nil && len(b) == 32 && hex.EncodeToString(b) == text
}

// usual is what rows have in common. The version of the tables changes with it.
const usual = `{"state":"","entered":"2026-11-27T10:00:00.000000Z","deadline":"2026-11-27T10:00:00Z","outside":true,"pools":["default"],"restored":true,` +
	`"pause_reason":"","queued":true,"priority":"low","fork_at":1,"cost_usd":0.01,"cached":0,"call":"call_","call_errors":["timeout"],"hand_offs":[{"n":1,"to":""}],` +
	`"mode":"chat","mode":"task","task":" the of and to a in is for that with on please find write check this from what ","models":["openai/gpt-5"],"models":["anthropic/claude-"],` +
	`"tools":["search"],"input":1000,"output":200,"priced":true,"labels":{"team":""}}`

// packer and unpacker compress and expand rows.
var (
	packer = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderDictRaw(1, []byte(usual)), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
		if err != nil {
			panic(err) // the options are wrong
		}
		return e
	})
	unpacker = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderDictRaw(1, []byte(usual)), zstd.WithDecoderConcurrency(readers))
		if err != nil {
			panic(err) // the options are wrong
		}
		return d
	})
)

// unpack reads the rest of a run from its row, which is plain if it begins as JSON does.
func unpack(row []byte, run *history.Run) error {
	if len(row) > 0 && row[0] != '{' {
		var err error
		if row, err = unpacker().DecodeAll(row, nil); err != nil {
			return err
		}
	}
	return json.Unmarshal(row, run)
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
	r.paused, r.started, r.updated, r.ended, r.cost, r.tokens, r.steps, r.high, r.head, r.row`

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
	var head, row, labels, scores []byte
	run := &r.Run
	err := scan(append([]any{
		&r.rid, &run.Namespace, &run.ID, &run.Shard, &n, &run.State, &run.Agent, &run.Model, &run.Error, &run.Experiment, &run.Parent, &run.ForkOf, &run.By, &run.Waiting,
		&run.Paused, &started, &updated, &ended, &cost, &run.Tokens, &run.Steps, &r.high, &head, &row, &labels, &scores,
	}, more...)...)
	if err != nil {
		return r, err
	}
	run.N, run.Started, run.Updated = uint64(n), moment(started), moment(updated)
	if ended.Valid {
		run.Ended = moment(ended.Int64)
	}
	run.Head = hex.EncodeToString(head)
	err = unpack(row, run)
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

package store

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/moorebus/moorebus/internal/history"
)

// The fields of marks. Labels and scores have their key behind it.
const (
	markModel     = "model"
	markTool      = "tool"
	markCallError = "call_error"
	markPool      = "pool"
	markLabel     = "label."
	markScore     = "score."
)

// mark is something of which a run may have several.
type mark struct{ field, value string }

// note is what was noted about a run. Labels are nil if those of the run's first event hold.
type note struct {
	labels map[string]string
	scores []history.Score
}

func (n *note) decode(labels, scores []byte) error {
	var err error
	if labels != nil {
		err = json.Unmarshal(labels, &n.labels)
	}
	if scores != nil {
		err = errors.Join(err, json.Unmarshal(scores, &n.scores))
	}
	return err
}

// marks are those of a run with what was noted about it, and the numbers of those that have one.
func (r *stored) marks(run history.Run) map[mark]*float64 {
	all := map[mark]*float64{}
	for field, values := range map[string][]string{markModel: run.Models, markTool: run.Tools, markCallError: run.CallErrors, markPool: run.Pools} {
		for _, value := range values {
			if value != "" {
				all[mark{field, value}] = nil
			}
		}
	}
	labels := run.Labels
	if r.note.labels != nil {
		labels = r.note.labels
	}
	for key, value := range labels {
		all[mark{markLabel + key, value}] = nil
	}
	for _, score := range r.note.scores {
		all[mark{markScore + score.Name, score.Text}] = score.Number
	}
	return all
}

// mark changes a run's marks from old ones to new ones.
func (t *transaction) mark(ctx context.Context, r *stored, old, marks map[mark]*float64) error {
	for m := range old {
		if _, keeps := marks[m]; !keeps {
			if err := t.exec(ctx, "DELETE FROM marks WHERE ns = ? AND field = ? AND value = ? AND started = ? AND rid = ?", r.run.Namespace, m.field, m.value, r.started, r.rid); err != nil {
				return err
			}
		}
	}
	for m, number := range marks {
		if was, had := old[m]; had && (was == number || was != nil && number != nil && *was == *number) {
			continue
		}
		if err := t.exec(ctx, "INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (ns, field, value, started, rid) DO UPDATE SET number = excluded.number", r.run.Namespace, m.field, m.value, r.started, r.rid, number); err != nil {
			return err
		}
	}
	return nil
}

// notes stores what was noted about runs.
func (t *transaction) notes(ctx context.Context, notes []history.Note) error {
	for _, n := range notes {
		key := runKey{n.Namespace, n.ID}
		r, err := t.stored(ctx, key)
		if err != nil {
			return err
		}
		t.changed[key] = nil
		old := r.marks(r.run)
		r.note = note{n.Labels, n.Scores}
		var labels, scores []byte
		if n.Labels != nil {
			labels, err = json.Marshal(n.Labels)
		}
		if len(n.Scores) > 0 {
			var failed error
			scores, failed = json.Marshal(n.Scores)
			err = errors.Join(err, failed)
		}
		if err != nil {
			return err
		}
		if labels == nil && scores == nil {
			err = t.exec(ctx, "DELETE FROM notes WHERE ns = ? AND id = ?", n.Namespace, n.ID)
		} else {
			err = t.exec(ctx, "INSERT INTO notes VALUES (?, ?, ?, ?) ON CONFLICT (ns, id) DO UPDATE SET labels = excluded.labels, scores = excluded.scores", n.Namespace, n.ID, labels, scores)
		}
		if err == nil && r.rid != 0 {
			err = t.mark(ctx, r, old, r.marks(r.run))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

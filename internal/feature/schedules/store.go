package schedules

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/ports"
)

func about(key ports.AlarmKey, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("schedule %s: %w", key, err)
}

// get returns what is kept of a schedule, or [journal.ErrNotFound].
func (s *Scheduler) get(ctx context.Context, key ports.AlarmKey) (kv.Item, error) {
	it, err := s.cfg.KV.Get(ctx, row.Bucket, key.String())
	return it, about(key, buckets.OrNone(err))
}

// read returns a schedule with its revision, or [journal.ErrNotFound].
func (s *Scheduler) read(ctx context.Context, key ports.AlarmKey) (*state, uint64, error) {
	it, err := s.get(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	var st state
	if err := json.Unmarshal(it.Value, &st); err != nil {
		return nil, 0, fmt.Errorf("schedule %s of namespace %s: %w", key.Name, key.Namespace, err)
	}
	return &st, it.Revision, nil
}

// put replaces the schedule that has the revision, 0: none. If it has another one meanwhile, the error
// is [journal.ErrConflict].
func (s *Scheduler) put(ctx context.Context, key ports.AlarmKey, st *state, revision uint64) error {
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if most := s.cfg.KV.MaxBody(); len(data) > most {
		return &ports.TooLargeError{What: "schedule " + key.String(), Size: len(data), Limit: most}
	}
	_, err = s.cfg.KV.Update(ctx, row.Bucket, kv.Item{Key: key.String(), Value: data, Revision: revision})
	for i := 0; i < len(st.settled) && err == nil; i++ {
		f := st.settled[i]
		meter.Add(s.a.Store.Meter(), row.Firings, float64(max(1, f.Count)), string(f.Outcome))
	}
	return about(key, err)
}

func (s *Scheduler) remove(ctx context.Context, key ports.AlarmKey, revision uint64) error {
	return about(key, s.cfg.KV.Delete(ctx, row.Bucket, key.String(), revision))
}

// keys returns the schedules of a namespace, or with * of all, sorted. Some may have been removed.
func (s *Scheduler) keys(ctx context.Context, namespace string) ([]ports.AlarmKey, error) {
	all, err := s.cfg.KV.Keys(ctx, row.Bucket, namespace+".*")
	if err != nil {
		return nil, fmt.Errorf("list schedules: %w", err)
	}
	keys := make([]ports.AlarmKey, len(all))
	for i, key := range all {
		keys[i].Namespace, keys[i].Name, _ = strings.Cut(key, ".")
	}
	return keys, nil
}

func (s *Scheduler) setAlarm(ctx context.Context, key ports.AlarmKey, at time.Time) error {
	if s.cfg.Alarms == nil {
		return nil
	}
	return about(key, s.cfg.Alarms.SetAlarm(ctx, key, at))
}

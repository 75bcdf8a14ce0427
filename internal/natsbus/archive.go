package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ownDescription begins the description of every bucket that this package declares.
	ownDescription = "Moorebus: "
	// valuesBytes bounds a page of values, in bytes.
	valuesBytes = 4 << 20
)

var _ ports.Archive = (*Bus)(nil)

// keptHeaders are the headers of values that mean something on another bus.
var keptHeaders = []string{kvOperation, headerSchedule, headerTarget, headerTTL}

// isKept reports whether a stream means something on another bus: snapshots follow from the log,
// and positions are numbers of this log's records.
func isKept(name string) bool {
	switch name {
	case objectStreamPrefix + snapshotBucket:
		return false
	case timerStream:
		return true
	}
	return strings.HasPrefix(name, objectStreamPrefix) ||
		strings.HasPrefix(name, kvStreamPrefix) && !strings.HasPrefix(name, kvStreamPrefix+buckets.PositionsPrefix)
}

// Born returns when the first stream was made.
func (b *Bus) Born(ctx context.Context) (time.Time, error) {
	info, err := b.shardInfo(ctx, 0)
	if err != nil {
		return time.Time{}, err
	}
	return info.Created.UTC(), nil
}

// Streams returns the streams of the log, each with the time at which it was made.
func (b *Bus) Streams(ctx context.Context) ([]string, error) {
	all := make([]string, b.shards)
	for shard := range all {
		info, err := b.shardInfo(ctx, shard)
		if err != nil {
			return nil, err
		}
		all[shard] = info.Config.Name + "@" + info.Created.UTC().Format(time.RFC3339Nano)
	}
	return all, nil
}

// Buckets returns every bucket and store that this package declares, and the stream of timers,
// but for what has a lifetime.
func (b *Bus) Buckets(ctx context.Context) ([]ports.ArchivedBucket, error) {
	names, err := b.StreamNames(ctx)
	if err != nil {
		return nil, fmt.Errorf("list buckets: %w", err)
	}
	slices.Sort(names)
	var all []ports.ArchivedBucket
	for _, name := range names {
		if !isKept(name) {
			continue
		}
		info, err := b.Stream(ctx, name)
		if errors.Is(err, journal.ErrNotReady) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %w", name, err)
		}
		if !strings.HasPrefix(info.Config.Description, ownDescription) || info.Config.MaxAge > 0 {
			continue
		}
		config, err := json.Marshal(info.Config)
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %w", name, err)
		}
		all = append(all, ports.ArchivedBucket{
			Name: name, Objects: strings.HasPrefix(name, objectStreamPrefix), Config: config,
			First: info.State.FirstSeq, Last: info.State.LastSeq, Messages: info.State.Msgs,
		})
	}
	return all, nil
}

// Values yields a bucket's values, with the history that it has. Of the timers it yields those
// that do not follow from a run.
func (b *Bus) Values(ctx context.Context, bucket string) iter.Seq2[ports.Value, error] {
	if bucket == timerStream {
		return b.otherTimers(ctx)
	}
	return func(yield func(ports.Value, error) bool) {
		filter := kvSubjectPrefix + strings.TrimPrefix(bucket, kvStreamPrefix) + ".>"
		// A replica that lags must not hide values, least of all tombstones.
		upTo, err := b.LeaderEnd(ctx, bucket, filter)
		if err != nil && !errors.Is(err, journal.ErrNotFound) {
			yield(ports.Value{}, fmt.Errorf("values of %s: %w", bucket, err))
			return
		}
		for after, silent := uint64(0), 0; ; {
			before := after
			more, err := b.Page(ctx, bucket, api.PageRecords, api.GetRequest{Seq: after + 1, NextFor: filter, Batch: api.PageRecords, MaxBytes: valuesBytes},
				func(msg *nats.Msg, rec journal.Record) bool {
					after = rec.Seq
					return yield(valueOf(rec.Subject, msg.Header, rec.Body), nil)
				})
			if err == nil && more == 0 && after < upTo {
				err = api.ErrLag
			}
			switch {
			case errors.Is(err, api.ErrStopped), err == nil && more == 0:
				return
			case err == nil, after > before && ctx.Err() == nil:
				silent = 0
				continue
			}
			if silent++; silent >= api.SilentPages || !retry.Wait(ctx, api.ReadRetry) {
				yield(ports.Value{}, fmt.Errorf("values of %s: %w", bucket, b.Explain(ctx, bucket, err)))
				return
			}
		}
	}
}

func valueOf(subject string, header nats.Header, data []byte) ports.Value {
	v := ports.Value{Subject: subject, Data: data}
	for _, key := range keptHeaders {
		if text := header.Get(key); text != "" {
			if v.Header == nil {
				v.Header = map[string]string{}
			}
			v.Header[key] = text
		}
	}
	return v
}

// otherTimers yields the timers that are no run's. One that has fired and was not handled comes
// as one that fires at once. The stream allows no direct gets, so each is read by itself.
func (b *Bus) otherTimers(ctx context.Context) iter.Seq2[ports.Value, error] {
	return func(yield func(ports.Value, error) bool) {
		names := map[string]bool{} // whether it is set
		err := b.Subjects(ctx, timerStream, timerSubjects, func(subject string) {
			set, isSet := strings.CutPrefix(subject, timerSet)
			due, isDue := strings.CutPrefix(subject, timerDue)
			name := set
			if !isSet {
				name = due
			}
			if (isSet || isDue) && !slices.Contains(ports.TimerKinds(), name[strings.LastIndexByte(name, '.')+1:]) {
				names[name] = names[name] || isSet
			}
		})
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if err != nil {
				break
			}
			prefix := timerDue
			if names[name] {
				prefix = timerSet
			}
			var v ports.Value
			v, err = b.timer(ctx, prefix, name)
			if prefix == timerSet && errors.Is(err, journal.ErrNotFound) {
				v, err = b.timer(ctx, timerDue, name) // it fired meanwhile
			}
			if errors.Is(err, journal.ErrNotFound) {
				err = nil // it fired or was handled meanwhile
				continue
			}
			if err == nil && !yield(v, nil) {
				return
			}
		}
		if err != nil {
			yield(ports.Value{}, fmt.Errorf("timers: %w", err))
		}
	}
}

// timer returns a timer as it is to be set.
func (b *Bus) timer(ctx context.Context, prefix, name string) (ports.Value, error) {
	var answer struct {
		Message struct {
			Header []byte `json:"hdrs"`
			Data   []byte `json:"data"`
		} `json:"message"`
	}
	if err := b.Ask(ctx, 0, "STREAM.MSG.GET."+timerStream, api.GetRequest{LastFor: prefix + name}, &answer); err != nil {
		if code, ok := api.Code(err); ok && code == api.CodeNoMessage {
			err = journal.ErrNotFound
		}
		return ports.Value{}, err
	}
	header := nats.Header{}
	if len(answer.Message.Header) > 0 {
		var err error
		if header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return ports.Value{}, err
		}
	}
	if prefix == timerDue {
		header = nats.Header{headerSchedule: {"@at " + time.Now().UTC().Format(time.RFC3339Nano)}, headerTarget: {timerDue + name}}
	}
	return valueOf(timerSet+name, header, answer.Message.Data), nil
}

// Objects yields the large results that a store has.
func (b *Bus) Objects(ctx context.Context, bucket string, after uint64) iter.Seq2[ports.Object, error] {
	return func(yield func(ports.Object, error) bool) {
		name := strings.TrimPrefix(bucket, objectStreamPrefix)
		filter := "$O." + name + ".M.*"
		upTo, err := b.LeaderEnd(ctx, bucket, filter)
		if err != nil && !errors.Is(err, journal.ErrNotFound) {
			yield(ports.Object{}, fmt.Errorf("objects of %s: %w", bucket, err))
			return
		}
		for rec, err := range b.RecordsOn(ctx, bucket, filter, after, upTo) {
			var info objectInfo
			if err == nil {
				err = json.Unmarshal(rec.Body, &info)
			}
			if err != nil {
				yield(ports.Object{}, fmt.Errorf("objects of %s: %w", bucket, err))
				return
			}
			ref := events.Ref{Bucket: name, Key: info.Name, Size: info.Size, SHA256: info.Name}
			if !info.Deleted && !yield(ports.Object{Ref: ref, Seq: rec.Seq}, nil) {
				return
			}
		}
	}
}

// MakeBucket makes a bucket's stream, with the replicas of this log.
func (b *Bus) MakeBucket(ctx context.Context, bucket ports.ArchivedBucket) error {
	_, err := b.Stream(ctx, bucket.Name)
	if !errors.Is(err, journal.ErrNotReady) {
		return err
	}
	var cfg jetstream.StreamConfig
	if err := json.Unmarshal(bucket.Config, &cfg); err != nil {
		return fmt.Errorf("bucket %s: %w", bucket.Name, err)
	}
	cfg.Replicas, cfg.Placement = b.Replicas, nil
	return b.Do(ctx, "STREAM.CREATE."+bucket.Name, func(ctx context.Context) error {
		_, err := b.JS.CreateStream(ctx, cfg)
		return err
	})
}

// PutValue stores a value as it was.
func (b *Bus) PutValue(ctx context.Context, v ports.Value) error {
	msg := nats.NewMsg(v.Subject)
	msg.Data = v.Data
	for key, text := range v.Header {
		msg.Header.Set(key, text)
	}
	var err error
	if strings.HasPrefix(v.Subject, timerSet) {
		err = b.publishTimer(ctx, msg)
	} else {
		_, err = b.store(ctx, msg)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", v.Subject, err)
	}
	return nil
}

// ReadAll allows to read the log, buckets and objects, for backups: no subject of a bucket is
// omitted, so agents' storage and large results are among it.
func (g *Grants) ReadAll() {
	g.ReadLog()
	g.api("STREAM.NAMES", "STREAM.INFO.*", "STREAM.MSG.GET.*", "DIRECT.GET.*")
}

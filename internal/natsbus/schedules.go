package natsbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Alarms of schedules are timers beside those of runs. They have a consumer of their own: a
// gateway of an older build, which would acknowledge what it does not know, never gets one.
const (
	scheduleBucket = "schedules"
	alarmKind      = ".schedule" // in place of a kind of a run's timers
	alarmDue       = "timers.schedule."
	alarmDurable   = "schedules"
)

func schedulesConfig(replicas int) jetstream.KeyValueConfig {
	return bucketConfig(scheduleBucket, "Moorebus: schedules of runs", replicas)
}

func alarmConsumerConfig(ackWait time.Duration, maxAckPending int) jetstream.ConsumerConfig {
	cfg := timerConsumerConfig(ackWait, maxAckPending)
	cfg.Durable, cfg.Description, cfg.FilterSubject = alarmDurable, "Moorebus: schedules that are due", alarmDue+">"
	return cfg
}

// KeepSchedules allows to keep schedules, as the leader has them, and to take their alarms. It
// comes with Timers, which allows to set them.
func (g *Grants) KeepSchedules() {
	g.read(kvStreamPrefix + scheduleBucket)
	g.api("STREAM.MSG.GET." + kvStreamPrefix + scheduleBucket)
	g.publish[kvSubjectPrefix+scheduleBucket+".*.*"] = true
	g.consume(timerStream, alarmDurable)
}

func scheduleName(key ports.ScheduleKey) (string, error) {
	for _, token := range []string{key.Namespace, key.Name} {
		if !events.ValidToken(token) {
			return "", fmt.Errorf("schedule %q of namespace %q: not names of [a-z0-9][a-z0-9_-]{0,62}", key.Name, key.Namespace)
		}
	}
	return key.Namespace + "." + key.Name, nil
}

// Schedule returns what is kept of a schedule. It asks the leader where it may.
func (b *Bus) Schedule(ctx context.Context, key ports.ScheduleKey) (value []byte, revision uint64, err error) {
	name, err := scheduleName(key)
	if err != nil {
		return nil, 0, err
	}
	rec, err := b.HeadOn(ctx, kvStreamPrefix+scheduleBucket, kvSubjectPrefix+scheduleBucket+"."+name)
	if errors.Is(err, journal.ErrNotReady) && !errors.Is(err, nats.ErrNoResponders) || err == nil && len(rec.Body) == 0 {
		err = journal.ErrNotFound // without the bucket, PutSchedule makes it
	}
	if err != nil {
		return nil, rec.Seq, fmt.Errorf("schedule %s: %w", name, err)
	}
	return rec.Body, rec.Seq, nil
}

// PutSchedule replaces or removes what is kept of a schedule, if it has the revision.
func (b *Bus) PutSchedule(ctx context.Context, key ports.ScheduleKey, value []byte, revision uint64) (uint64, error) {
	name, err := scheduleName(key)
	if err != nil {
		return 0, err
	}
	if most := b.MaxBody(); len(value) > most {
		return 0, &ports.TooLargeError{What: "schedule " + name, Size: len(value), Limit: most}
	}
	msg := nats.NewMsg(kvSubjectPrefix + scheduleBucket + "." + name)
	msg.Data = value
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(revision, 10))
	if len(value) == 0 {
		msg.Header.Set(kvOperation, "DEL")
	}
	revision, err = b.putMsg(ctx, msg, func() error { return b.createBucket(ctx, schedulesConfig(b.Replicas)) })
	if err != nil {
		return 0, fmt.Errorf("schedule %s: %w", name, err)
	}
	return revision, nil
}

// ScheduleKeys returns which schedules there are, and perhaps some that were removed.
func (b *Bus) ScheduleKeys(ctx context.Context, namespace string) ([]ports.ScheduleKey, error) {
	filter := namespace
	if namespace == "" {
		filter = "*"
	} else if !events.ValidToken(namespace) {
		return nil, fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	var keys []ports.ScheduleKey
	begin := kvSubjectPrefix + scheduleBucket + "."
	err := b.Subjects(ctx, kvStreamPrefix+scheduleBucket, begin+filter+".*", func(subject string) {
		ns, name, _ := strings.Cut(strings.TrimPrefix(subject, begin), ".")
		keys = append(keys, ports.ScheduleKey{Namespace: ns, Name: name})
	})
	if err != nil {
		return nil, fmt.Errorf("list schedules: %w", b.Explain(ctx, kvStreamPrefix+scheduleBucket, err))
	}
	slices.SortFunc(keys, func(x, y ports.ScheduleKey) int {
		return strings.Compare(x.Namespace+"."+x.Name, y.Namespace+"."+y.Name)
	})
	return slices.Compact(keys), nil
}

// SetAlarm stores, replaces or removes the schedule's alarm.
func (b *Bus) SetAlarm(ctx context.Context, key ports.ScheduleKey, at time.Time) error {
	name, err := scheduleName(key)
	if err != nil {
		return err
	}
	if at.IsZero() {
		err = b.cancelTimer(ctx, name+alarmKind)
	} else {
		err = b.setTimer(ctx, name+alarmKind, alarmDue+name, at, []byte(at.UTC().Format(time.RFC3339Nano)))
	}
	if err != nil {
		return fmt.Errorf("alarm of schedule %s: %w", name, err)
	}
	return nil
}

// ConsumeAlarms hands alarms that rang to handle until ctx ends.
func (b *Bus) ConsumeAlarms(ctx context.Context, slots int, handle func(ports.ScheduleAlarm)) error {
	if slots < 1 {
		return fmt.Errorf("consume alarms: %d slots: at least one is needed", slots)
	}
	return b.consumeTimers(ctx, alarmConsumerConfig(b.opts.AckWait, b.opts.MaxAckPending), slots, func(d journal.Delivery) {
		ns, name, _ := strings.Cut(strings.TrimPrefix(d.Record().Subject, alarmDue), ".")
		alarm := scheduleAlarm{Delivery: d, key: ports.ScheduleKey{Namespace: ns, Name: name}}
		if _, err := scheduleName(alarm.key); err != nil {
			b.Log.Warn("ignoring an alarm of no schedule", "subject", d.Record().Subject)
			_ = d.Ack()
			return
		}
		alarm.at, _ = time.Parse(time.RFC3339Nano, string(d.Record().Body)) // one without a time is due
		handle(alarm)
	})
}

type scheduleAlarm struct {
	journal.Delivery
	key ports.ScheduleKey
	at  time.Time
}

// Key returns whose alarm it is.
func (a scheduleAlarm) Key() ports.ScheduleKey { return a.key }

// At returns the time that it was set to.
func (a scheduleAlarm) At() time.Time { return a.at }

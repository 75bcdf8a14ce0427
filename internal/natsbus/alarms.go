package natsbus

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Alarms of schedules are timers in the stream of the runs' timers. They have their own consumer: a
// gateway of an older build, which would acknowledge what it does not know, never gets one.
const (
	alarmKind    = ".schedule" // in place of a kind of a run's timers
	alarmDue     = "timers.schedule."
	alarmDurable = "schedules"
)

func alarmConsumerConfig(ackWait time.Duration, maxAckPending int) jetstream.ConsumerConfig {
	cfg := timerConsumerConfig(ackWait, maxAckPending)
	cfg.Durable, cfg.Description, cfg.FilterSubject = alarmDurable, "Moorebus: schedules that are due", alarmDue+">"
	return cfg
}

// Alarms allows to take alarms. It comes with Timers, which allows to set them.
func (g *Grants) Alarms() { g.consume(timerStream, alarmDurable) }

func alarmName(of ports.AlarmKey) (string, error) {
	for _, token := range []string{of.Namespace, of.Name} {
		if !events.ValidToken(token) {
			return "", fmt.Errorf("alarm %q of namespace %q: not names of [a-z0-9][a-z0-9_-]{0,62}", of.Name, of.Namespace)
		}
	}
	return of.Namespace + "." + of.Name, nil
}

// SetAlarm stores, replaces or removes an alarm.
func (b *Bus) SetAlarm(ctx context.Context, of ports.AlarmKey, at time.Time) error {
	name, err := alarmName(of)
	if err != nil {
		return err
	}
	if at.IsZero() {
		err = b.cancelTimer(ctx, name+alarmKind)
	} else {
		err = b.setTimer(ctx, name+alarmKind, alarmDue+name, at, []byte(at.UTC().Format(time.RFC3339Nano)))
	}
	if err != nil {
		return fmt.Errorf("alarm %s: %w", name, err)
	}
	return nil
}

// ConsumeAlarms hands alarms that rang to handle until ctx ends.
func (b *Bus) ConsumeAlarms(ctx context.Context, slots int, handle func(ports.Alarm)) error {
	if slots < 1 {
		return fmt.Errorf("consume alarms: %d slots: at least one is needed", slots)
	}
	return b.consumeTimers(ctx, alarmConsumerConfig(b.opts.AckWait, b.opts.MaxAckPending), slots, func(d journal.Delivery) {
		ns, name, _ := strings.Cut(strings.TrimPrefix(d.Record().Subject, alarmDue), ".")
		alarm := ports.Alarm{Delivery: d, Of: ports.AlarmKey{Namespace: ns, Name: name}}
		if _, err := alarmName(alarm.Of); err != nil {
			b.Log.Warn("ignoring an alarm of nothing", "subject", d.Record().Subject)
			_ = d.Ack()
			return
		}
		alarm.At, _ = time.Parse(time.RFC3339Nano, string(d.Record().Body)) // one without a time is due
		handle(alarm)
	})
}

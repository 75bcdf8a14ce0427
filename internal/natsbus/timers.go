package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsbus/pull"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The headers by which the server keeps time. A schedule replaces the one on the
// same subject; when it fires, the server publishes its body to the target and
// removes it.
const (
	headerSchedule     = "Nats-Schedule"
	headerTarget       = "Nats-Schedule-Target"
	headerScheduler    = "Nats-Scheduler"
	headerScheduleNext = "Nats-Schedule-Next"
	headerTTL          = "Nats-TTL"
)

func timerName(run events.Run, kind string) string { return run.Namespace + "." + run.ID + "." + kind }

// SetTimer stores a schedule of the run's timer in place of the one before.
func (b *Bus) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	if err := journalcheck.Timer(b.shards, run, kind, data); err != nil {
		return err
	}
	name := timerName(run, kind)
	if err := b.setTimer(ctx, name, timerDue+name, at, data); err != nil {
		return fmt.Errorf("set timer %s of run %s: %w", kind, run.ID, err)
	}
	return nil
}

func (b *Bus) setTimer(ctx context.Context, name, target string, at time.Time, data []byte) error {
	msg := nats.NewMsg(timerSet + name)
	msg.Data = data
	msg.Header.Set(headerSchedule, "@at "+at.UTC().Format(time.RFC3339Nano))
	msg.Header.Set(headerTarget, target)
	return b.publishTimer(ctx, msg)
}

// CancelTimer removes the run's timer if it has not fired.
func (b *Bus) CancelTimer(ctx context.Context, run events.Run, kind string) error {
	if err := journalcheck.Timer(b.shards, run, kind, nil); err != nil {
		return err
	}
	if err := b.cancelTimer(ctx, timerName(run, kind)); err != nil {
		return fmt.Errorf("cancel timer %s of run %s: %w", kind, run.ID, err)
	}
	return nil
}

func (b *Bus) cancelTimer(ctx context.Context, name string) error {
	msg := nats.NewMsg(timerCancelled + name)
	msg.Header.Set(headerScheduler, timerSet+name)
	msg.Header.Set(headerScheduleNext, "purge")
	// The message itself has done its work when it is stored.
	msg.Header.Set(headerTTL, "1s")
	return b.publishTimer(ctx, msg)
}

// publishTimer returns when the stream of timers has the message. While the
// server says that it stored nothing for want of readiness, it is sent again, for
// RequestTimeout altogether.
func (b *Bus) publishTimer(ctx context.Context, msg *nats.Msg) error {
	_, err := b.storeTimer(ctx, msg)
	return err
}

// storeTimer is publishTimer, and returns where the message is.
func (b *Bus) storeTimer(ctx context.Context, msg *nats.Msg) (uint64, error) {
	if err := b.diskFull(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.Timeout, nats.ErrTimeout)
	defer cancel()
	var refusal error
	for {
		seq, err := b.tryTimer(ctx, msg)
		if err == nil {
			return seq, b.full.note(timerStream, nil)
		}
		if !unsent(err) {
			// Where the time ended in the middle of a try, the one before says why.
			return 0, b.full.note(timerStream, errors.Join(api.UnknownOutcome(err), refusal))
		}
		refusal = api.UnknownOutcome(err)
		if _, missing := b.Stream(ctx, timerStream); errors.Is(missing, journal.ErrNotReady) {
			return 0, missing
		}
		if !retry.Wait(ctx, appendRetry) {
			return 0, b.full.note(timerStream, api.UnknownOutcome(err))
		}
	}
}

func (b *Bus) tryTimer(ctx context.Context, msg *nats.Msg) (uint64, error) {
	ack, err := b.acknowledged(b.requestStored(ctx, b.Timeout, msg))
	switch {
	case err != nil:
		return 0, err
	case ack.Error != nil:
		return 0, ack.Error
	case ack.Stream != timerStream:
		return 0, fmt.Errorf("stream %q took it and not %s: run `moorebus doctor`", ack.Stream, timerStream)
	}
	return ack.Seq, nil
}

// ConsumeTimers hands timers that fired to handle until ctx ends.
func (b *Bus) ConsumeTimers(ctx context.Context, slots int, handle func(journal.TimerDelivery)) error {
	if slots < 1 {
		return fmt.Errorf("consume timers: %d slots: at least one is needed", slots)
	}
	return b.consumeTimers(ctx, timerConsumerConfig(b.opts.AckWait, b.opts.MaxAckPending), slots, func(d journal.Delivery) {
		timer, err := b.parseTimer(d.Record())
		if err != nil {
			// It belongs to no run, so nobody waits for it.
			b.Log.Warn("ignoring a timer of no run", "subject", d.Record().Subject, "reason", err)
			_ = d.Ack()
			return
		}
		handle(journal.TimerDelivery{Delivery: d, Timer: timer})
	})
}

// consumeTimers hands what a consumer of the stream of timers has to handle until ctx ends.
func (b *Bus) consumeTimers(ctx context.Context, consumer jetstream.ConsumerConfig, slots int, handle func(journal.Delivery)) error {
	due := pull.Source{Stream: timerStream, Consumer: consumer.Durable, Prepare: func(ctx context.Context) error {
		return b.awaitConsumer(ctx, timerStream, consumer.Durable, api.InitCommand, func() error { return b.create(ctx, timerStream, consumer) })
	}}
	return b.pull(ctx, []pull.Source{due}, slots, handle)
}

func (b *Bus) parseTimer(rec journal.Record) (journal.Timer, error) {
	tokens := strings.Split(strings.TrimPrefix(rec.Subject, timerDue), ".")
	if len(tokens) != 3 || !strings.HasPrefix(rec.Subject, timerDue) {
		return journal.Timer{}, fmt.Errorf("want %s<namespace>.<run>.<kind>", timerDue)
	}
	run := events.NewRun(tokens[0], tokens[1], b.shards)
	if err := journalcheck.Timer(b.shards, run, tokens[2], rec.Body); err != nil {
		return journal.Timer{}, err
	}
	return journal.Timer{Run: run, Kind: tokens[2], Data: rec.Body}, nil
}

func (e *examiner) checkTimers(ctx context.Context) {
	info, err := e.bus.Stream(ctx, timerStream)
	if err != nil {
		e.failed(api.InitCommand, err)
		return
	}
	want := timerStreamConfig(info.Config.Replicas, info.Config.Storage)
	wrong := differences(&info.Config, &want)
	if info.Config.MaxBytes != want.MaxBytes {
		wrong = append(wrong, fmt.Sprintf("max bytes is %d, not %d", info.Config.MaxBytes, want.MaxBytes))
	}
	if len(wrong) > 0 {
		e.add(Bad, api.InitCommand, "stream %s: %s", timerStream, strings.Join(wrong, "; "))
		return
	}
	for _, want := range []jetstream.ConsumerConfig{timerConsumerConfig(0, 0), alarmConsumerConfig(0, 0)} {
		consumer, err := e.bus.Consumer(ctx, timerStream, want.Durable)
		if err != nil {
			e.failed(api.InitCommand, err)
			return
		}
		if has := consumer.CachedInfo().Config.FilterSubject; has != want.FilterSubject {
			e.add(Bad, api.InitCommand, "consumer %s of %s: it filters %q, not %q", want.Durable, timerStream, has, want.FilterSubject)
			return
		}
	}
	e.add(Good, "", "stream %s: %d timers", timerStream, info.State.Msgs)
}

// armedMark is the subject of a message that disappears with everything else when somebody removes
// all timers. A user who may set a timer can make the server store a message here, too, but not at
// the place of the one that was removed.
const armedMark = timerCancelled + "moorebus.armed.run"

// OldestTimer asks where the stream of timers begins.
func (b *Bus) OldestTimer(ctx context.Context) (seq uint64, begun time.Time, err error) {
	info, err := b.timersBelow(ctx, armedMark)
	if err != nil {
		return 0, begun, err
	}
	return info.State.FirstSeq, info.Created, nil
}

// MarkTimers stores the mark.
func (b *Bus) MarkTimers(ctx context.Context) (uint64, error) {
	return b.storeTimer(ctx, nats.NewMsg(armedMark))
}

// timersBelow returns the state of the stream of timers, with the subjects that match.
func (b *Bus) timersBelow(ctx context.Context, filter string) (*jetstream.StreamInfo, error) {
	stream, err := b.JS.Stream(ctx, timerStream)
	var info *jetstream.StreamInfo
	if err == nil {
		info, err = stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	}
	if err != nil {
		return nil, fmt.Errorf("list timers: %w", api.Classify(err))
	}
	return info, nil
}

// ArmedTimers asks for the subjects of the stream of timers. They name the timers.
func (b *Bus) ArmedTimers(ctx context.Context) (map[ports.ArmedTimer]bool, error) {
	info, err := b.timersBelow(ctx, timerSubjects)
	if err != nil {
		return nil, err
	}
	armed := make(map[ports.ArmedTimer]bool, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		name, is := strings.CutPrefix(subject, timerSet)
		if !is {
			if name, is = strings.CutPrefix(subject, timerDue); !is {
				continue
			}
		}
		if tokens := strings.Split(name, "."); len(tokens) == 3 {
			armed[ports.ArmedTimer{Namespace: tokens[0], Run: tokens[1], Kind: tokens[2]}] = true
		}
	}
	return armed, nil
}

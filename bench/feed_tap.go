package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// maxTap is the target of the tap's median.
const maxTap = 2.0 // ms

// probeEvery is the rhythm of the bare messages beside the load.
const probeEvery = 5 * time.Millisecond

// feedTap starts runs at a bounded rate and takes the time from an event's storing,
// as the server says it, to its record at two readers: the log's follower, which is
// what taps and streams read, and the live feed, which only announces records. The floor is
// a bare message over the same server at the same time.
func feedTap(ctx context.Context, s feedSettings) (figures []figure, err error) {
	f, err := s.startFeed(ctx, 5*time.Millisecond)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	f.tool.open()
	agent, err := stepsAgent(feedSteps, "slow", "{}")
	if err != nil {
		return nil, err
	}
	// All roles are known, and warm, when this one has ended.
	if _, err := f.run(ctx, agent); err != nil {
		return nil, err
	}
	if _, err := f.awaitEvents(ctx, feedEvents, readyTime); err != nil {
		return nil, err
	}
	var followed, watched, bare latencies
	stop, err := f.listen(ctx, &followed, &watched, &bare)
	if err != nil {
		return nil, err
	}
	runs := max(1, int(float64(s.rate)*s.window.Seconds()))
	began := time.Now()
	err = f.startAtRate(ctx, agent, s.rate, runs)
	if err == nil {
		_, err = f.awaitEvents(ctx, uint64(feedEvents*(1+runs)), time.Minute)
	}
	took := time.Since(began)
	stop()
	if err != nil {
		return nil, err
	}
	at := fmt.Sprintf("%.0f events/s, fsync %s", float64(feedEvents*runs)/took.Seconds(), s.fsync)
	row := func(what string, l *latencies, share float64) figure {
		return feedFigure(at, what, "ms", l.at(share))
	}
	const is = "bare publish to subscriber"
	return []figure{
		row("stored to tap, median", &followed, 0.5).most(maxTap),
		row("stored to tap, median, by the bare one", &followed, 0.5).beside(bare.at(0.5), is),
		row("stored to tap, p99", &followed, 0.99).beside(bare.at(0.99), is),
		row("stored to live feed, median", &watched, 0.5).beside(bare.at(0.5), is),
		row("stored to live feed, p99", &watched, 0.99).beside(bare.at(0.99), is),
	}, nil
}

// listen begins all three measurements; stop ends them.
func (f *fleet) listen(ctx context.Context, followed, watched, bare *latencies) (stop func(), err error) {
	last, err := f.last(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	// Each reader has its own connection, as it would in its own process.
	var open []*nats.Conn
	stop = func() {
		cancel()
		for _, conn := range open {
			conn.Close()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	connect := func() (*nats.Conn, error) {
		conn, err := natsconn.Connect(ctx, natsconn.ConnectOptions{URL: f.server.ClientURL()})
		if err == nil {
			open = append(open, conn)
		}
		return conn, err
	}
	var buses [2]*natsbus.Bus
	for n := range buses {
		conn, err := connect()
		if err != nil {
			return nil, err
		}
		if buses[n], err = natsbus.Open(ctx, conn, natsbus.Options{}); err != nil {
			return nil, err
		}
	}
	unwatch, err := buses[0].Watch(journal.Filter{}, func(rec journal.Record) { watched.add(time.Since(rec.Stored)) }, nil)
	if err != nil {
		return nil, err
	}
	unprobe, err := probe(ctx, connect, bare)
	if err != nil {
		unwatch()
		return nil, err
	}
	var readers sync.WaitGroup
	readers.Go(func() {
		for rec, err := range buses[1].Follow(ctx, 0, journal.Filter{}, last) {
			if err != nil {
				return
			}
			followed.add(time.Since(rec.Stored))
		}
	})
	closeAll := stop
	return func() { cancel(); readers.Wait(); unwatch(); unprobe(); closeAll() }, nil
}

// probe sends bare messages that say when they were sent.
func probe(ctx context.Context, connect func() (*nats.Conn, error), bare *latencies) (stop func(), err error) {
	const subject = "bench.probe"
	from, err := connect()
	if err != nil {
		return nil, err
	}
	to, err := connect()
	if err != nil {
		return nil, err
	}
	sub, err := to.Subscribe(subject, func(msg *nats.Msg) {
		if sent, err := strconv.ParseInt(string(msg.Data), 10, 64); err == nil {
			bare.add(time.Since(time.Unix(0, sent)))
		}
	})
	if err != nil {
		return nil, err
	}
	if err := to.Flush(); err != nil {
		return nil, err
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		for idle(ctx, probeEvery) {
			_ = from.Publish(subject, strconv.AppendInt(nil, time.Now().UnixNano(), 10)) // a lost one is not counted
		}
	})
	return func() { sender.Wait(); _ = sub.Unsubscribe() }, nil
}

// startAtRate starts runs at a rate. A run that takes longer than its turn delays no
// other.
func (f *fleet) startAtRate(ctx context.Context, agent json.RawMessage, rate, runs int) error {
	errs := make(chan error, runs)
	turn := time.NewTicker(time.Second / time.Duration(rate))
	defer turn.Stop()
	var all sync.WaitGroup
	for range runs {
		select {
		case <-turn.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		all.Go(func() {
			if _, err := f.run(ctx, agent); err != nil {
				errs <- err
			}
		})
	}
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// latencies are what one reader saw. The clocks are the same machine's.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
}

// at is the latency that a share of them does not exceed, in ms; 0 without any.
func (l *latencies) at(share float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	return float64(l.all[min(len(l.all)-1, int(share*float64(len(l.all))))]) / float64(time.Millisecond)
}

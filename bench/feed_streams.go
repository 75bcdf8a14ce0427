package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// watchedTool is how long the tool of watched runs takes.
	watchedTool = 100 * time.Millisecond
	// feedLimit bounds each part.
	feedLimit = 55 * time.Second
	// letGo is how much longer than its patience the gateway may take to let go of
	// clients that read nothing.
	letGo = 2 * time.Second
	// stalledBuffer is the receive buffer of such a client, in bytes: small, so that the
	// events do not wait there, but not so small that it cannot catch up.
	stalledBuffer = 64 << 10
	// maxStalled is what a client that reads nothing may cost.
	maxStalled = 1.0 // MiB
	// stalledArguments is the length of the arguments of each call in those runs, in
	// bytes: what a client does not read has to be more than the sockets hold, 4 MiB.
	stalledArguments = 24 << 10
)

// feedRuns has each client follow its own run, which continues meanwhile. The runs
// wait in their first step until all clients are there, so that the CPU time is
// that of the events and not of starting and connecting.
func feedRuns(ctx context.Context, s feedSettings) (figures []figure, err error) {
	f, agent, err := s.prepare(ctx, watchedTool)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	ctx, cancel := context.WithTimeout(ctx, feedLimit)
	defer cancel()
	ids, err := f.runs(ctx, s.clients, agent)
	if err != nil {
		return nil, err
	}
	streams := make([]*eventStream, s.clients)
	client := streamClient(0)
	for k, id := range ids {
		streams[k] = &eventStream{http: client, url: f.gateway + "/v1/runs/" + id + "/events"}
	}
	spent, err := f.watch(ctx, streams, 0, feedEvents, func() error { f.tool.open(); return nil })
	if err != nil {
		return nil, err
	}
	return spent.figures(fmt.Sprintf("%d clients, a run each, fsync %s", s.clients, s.fsync)), nil
}

// feedAll has every client follow the events of all runs, of which there are fewer.
func feedAll(ctx context.Context, s feedSettings) (figures []figure, err error) {
	f, agent, err := s.prepare(ctx, watchedTool)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	ctx, cancel := context.WithTimeout(ctx, feedLimit)
	defer cancel()
	f.tool.open()
	spent, err := f.watch(ctx, allEvents(f, s.clients, 0), 0, uint64(feedEvents*s.watched), func() error {
		_, err := f.runs(ctx, s.watched, agent)
		return err
	})
	if err != nil {
		return nil, err
	}
	return spent.figures(fmt.Sprintf("%d clients of all events, %d runs, fsync %s", s.clients, s.watched, s.fsync)), nil
}

func allEvents(f *fleet, clients, receive int) []*eventStream {
	streams := make([]*eventStream, clients)
	for k := range streams {
		streams[k] = &eventStream{http: streamClient(receive), url: f.gateway + "/v1/events"}
	}
	return streams
}

// prepare starts a fleet whose tool waits until it is opened, and returns the agent
// of the runs.
func (s feedSettings) prepare(ctx context.Context, tool time.Duration) (*fleet, json.RawMessage, error) {
	agent, err := stepsAgent(feedSteps, "slow", "{}")
	if err != nil {
		return nil, nil, err
	}
	f, err := s.startFeed(ctx, tool)
	return f, agent, err
}

// watched is what clients that followed events cost.
type watched struct {
	took            time.Duration
	gateway         time.Duration // CPU time
	events, resumed int
	memory          float64 // bytes, at the peak
}

func (w watched) figures(at string) []figure {
	return []figure{
		feedFigure(at, "events that clients saw, in order and without a gap", "1/s", float64(w.events)/w.took.Seconds()),
		feedFigure(at, "CPU time of the gateway per event and client", "µs", float64(w.gateway.Microseconds())/float64(w.events)),
		feedFigure(at, "memory of the gateway at its peak", "MiB", w.memory/bytesPerMiB),
		feedFigure(at, "streams that were cut and resumed", "", float64(w.resumed)),
	}
}

// watch connects all streams, begins, and waits until each has seen so many events
// after the number `after`. Its error names the first stream that did not.
func (f *fleet) watch(ctx context.Context, streams []*eventStream, after, want uint64, begin func() error) (watched, error) {
	gateway := f.processes[0].cmd.Process.Pid
	errs := make([]error, len(streams))
	each(streams, func(k int, s *eventStream) { errs[k] = s.connect(ctx) })
	defer each(streams, func(_ int, s *eventStream) { s.close() })
	if err := errors.Join(errs...); err != nil {
		return watched{}, err
	}
	before, err := cpuTime(gateway)
	if err != nil {
		return watched{}, err
	}
	began := time.Now()
	if err := begin(); err != nil {
		return watched{}, err
	}
	resumed := make([]int, len(streams))
	each(streams, func(k int, s *eventStream) {
		if resumed[k], errs[k] = s.see(ctx, after, want); errs[k] != nil {
			errs[k] = fmt.Errorf("client %d: %w", k, errs[k])
		}
	})
	w := watched{took: time.Since(began), events: len(streams) * int(want)}
	for k, err := range errs {
		if err != nil {
			return w, fmt.Errorf("%w%s", err, f.said())
		}
		w.resumed += resumed[k]
	}
	spent, err := cpuTime(gateway)
	if err != nil {
		return w, err
	}
	w.gateway = spent - before
	_, w.memory, err = residentSet(gateway)
	return w, err
}

// each calls fn for all streams at once and returns when all calls have.
func each(streams []*eventStream, fn func(k int, s *eventStream)) {
	var all sync.WaitGroup
	for k, s := range streams {
		all.Go(func() { fn(k, s) })
	}
	all.Wait()
}

// feedStalled has clients of all events that read nothing while runs continue, until the
// gateway lets go of them. Then they read: what they were sent, and from there on
// what they ask for anew. Each has to see every event once.
func feedStalled(ctx context.Context, s feedSettings) (figures []figure, err error) {
	f, err := s.startFeed(ctx, time.Millisecond)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	agent, err := stepsAgent(feedSteps, "slow", `{"text":"`+strings.Repeat("x", stalledArguments)+`"}`)
	if err != nil {
		return nil, err
	}
	f.tool.open()
	ctx, cancel := context.WithTimeout(ctx, feedLimit)
	defer cancel()
	events := uint64(feedEvents * s.backlog)
	// What the work itself takes is had before: as many runs without any client.
	if err := f.carry(ctx, s.backlog, agent, events); err != nil {
		return nil, err
	}
	streams := allEvents(f, s.stalled, stalledBuffer)
	errs := make([]error, len(streams))
	each(streams, func(k int, s *eventStream) { errs[k] = s.connect(ctx) })
	defer each(streams, func(_ int, s *eventStream) { s.close() })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	gateway := f.processes[0].cmd.Process.Pid
	before, _, err := residentSet(gateway)
	if err != nil {
		return nil, err
	}
	if err := f.carry(ctx, s.backlog, agent, 2*events); err != nil {
		return nil, err
	}
	after, _, err := residentSet(gateway)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := f.awaitClients(ctx, 0, s.writeTimeout+letGo); err != nil {
		return nil, err
	}
	waited := time.Since(began)
	resumed := make([]int, len(streams))
	each(streams, func(k int, s *eventStream) { resumed[k], errs[k] = s.see(ctx, events, events) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	told := 0
	for _, n := range resumed {
		told += min(n, 1)
	}
	at := fmt.Sprintf("%d clients that read nothing of %d events, given %s", s.stalled, events, s.writeTimeout)
	return []figure{
		feedFigure(at, "memory of the gateway before", "MiB", before/bytesPerMiB),
		feedFigure(at, "memory of the gateway after, per client", "MiB", max(0, after-before)/bytesPerMiB/float64(s.stalled)).most(maxStalled),
		feedFigure(at, "time after the last event until all were let go", "s", waited.Seconds()).most((s.writeTimeout + letGo).Seconds()),
		feedFigure(at, "clients that resumed and saw every event once", "", float64(told)).least(float64(s.stalled)),
	}, nil
}

// carry starts runs and waits until the log holds so many events.
func (f *fleet) carry(ctx context.Context, runs int, agent json.RawMessage, want uint64) error {
	if _, err := f.runs(ctx, runs, agent); err != nil {
		return err
	}
	_, err := f.awaitEvents(ctx, want, feedLimit)
	return err
}

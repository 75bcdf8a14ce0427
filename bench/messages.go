package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// kind is what a message that passes the server is for.
type kind string

const (
	publishes  kind = "publishes to the log"
	deliveries kind = "deliveries"
	acks       kind = "acks"
	reads      kind = "reads of the log"
	pulls      kind = "pull requests"
	others     kind = "other requests to JetStream"
)

// warmReads are the reads of the log but for the one that each run needs.
const warmReads = "reads of the log, beyond one for each run"

// messages counts the messages of a crowd, per transition. A listener to all
// subjects sees each message that a client sends, and those that a consumer
// delivers. It is not timed.
func messages(ctx context.Context, t terms, runs, steps int) (figures []figure, err error) {
	in, err := startInstallation(ctx, t)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.close()) }()
	tap, err := in.connect(false)
	if err != nil {
		return nil, err
	}
	defer tap.Close()
	counted, err := count(tap)
	if err != nil {
		return nil, err
	}
	carried := func(runs int) (events int, err error) {
		counted.reset()
		if _, err := carry(ctx, in.bus, in.host, runs, steps); err != nil {
			return 0, err
		}
		events = runs * transitions(steps)
		return events, counted.await(ctx, acks, events-runs)
	}
	// What a process does once is not counted.
	if _, err := carried(warmUp); err != nil {
		return nil, err
	}
	n, err := carried(runs)
	if err != nil {
		return nil, err
	}
	// The last event of a run wakes nobody.
	perEvent := float64(n-runs) / float64(n)
	row := rows("cost", fmt.Sprintf("%d runs, messages per transition", runs))
	of := func(k kind) figure { return row(string(k), "", float64(counted.of(k))/float64(n)) }
	// Before a run's first tool call the actor reads what the run pins, from the log
	// itself: nobody else's word is enough for that.
	warm := max(0, counted.of(reads)-runs)
	return []figure{
		of(publishes).beside(1, "one for each event").most(1),
		of(deliveries).beside(perEvent, "one for each event but the last").most(1),
		of(acks).beside(perEvent, "one for each event but the last").most(1),
		row(warmReads, "", float64(warm)/float64(n)).most(0),
		of(pulls), of(others),
	}, nil
}

// counts are the messages seen so far.
type counts struct {
	mu   sync.Mutex
	seen map[kind]int
}

// count begins to count everything that passes the connection's server.
func count(conn *nats.Conn) (*counts, error) {
	c := &counts{seen: map[kind]int{}}
	sub, err := conn.Subscribe(">", func(m *nats.Msg) {
		k := kindOf(m)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen[k]++
	})
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	return c, conn.Flush()
}

// kindOf says what a message is for; empty: something else, such as the feed.
func kindOf(m *nats.Msg) kind {
	is := func(prefix string) bool { return strings.HasPrefix(m.Subject, prefix) }
	switch {
	case is("moore.") && strings.HasPrefix(m.Reply, "$JS.ACK."):
		return deliveries
	case is("moore."):
		return publishes
	case is("$JS.ACK."):
		return acks
	case is("$JS.API.DIRECT.GET.MOORE_"), is("$JS.API.STREAM.MSG.GET.MOORE_"):
		return reads
	case is("$JS.API.CONSUMER.MSG.NEXT."):
		return pulls
	case is("$JS.API."):
		return others
	}
	return ""
}

func (c *counts) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.seen)
}

func (c *counts) of(k kind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[k]
}

// await waits until so many were seen: what was sent last may still be on its way.
func (c *counts) await(ctx context.Context, k kind, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("fewer than %d %s were seen", n, k))
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for c.of(k) < n {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

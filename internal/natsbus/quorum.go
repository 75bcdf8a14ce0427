package natsbus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// quorumTimeout is how long the streams of the log have to say that they have a quorum.
	quorumTimeout = 3500 * time.Millisecond
	// quorumFresh is how long one answer is given to all who ask.
	quorumFresh = time.Second
	// silentAfter is how long a replica may be silent towards its leader and still count. It
	// answers every second, and takes part in an election after 4 s of silence at the earliest.
	silentAfter = 5 * time.Second
)

// errNoQuorum is why a stream that says nothing stores nothing.
var errNoQuorum = fmt.Errorf("nobody has answered for it within %s: it has no leader, as most of its servers are away", quorumTimeout)

// quorum is the last answer to the question whether the log has a quorum.
type quorum struct {
	mu   sync.Mutex
	last *quorumAnswer
}

// quorumAnswer is an answer, which is there when done is closed.
type quorumAnswer struct {
	done chan struct{}
	err  error
	at   time.Time
}

// old reports whether the answer is there, and too old to be given again.
func (a *quorumAnswer) old() bool {
	select {
	case <-a.done:
		return time.Since(a.at) > quorumFresh
	default:
		return false
	}
}

// Quorum returns nil if every stream of the log has a leader and the replicas that it needs to
// store anything, and otherwise why not, within a few seconds. A user who may not ask gets
// [journal.ErrDenied]. All who ask within a second share one answer, so that the number of
// probes is no load for the servers.
func (b *Bus) Quorum(ctx context.Context) error {
	if !b.NC.IsConnected() {
		return fmt.Errorf("the bus is away: the connection is %s", b.NC.Status())
	}
	b.quorum.mu.Lock()
	a := b.quorum.last
	if a == nil || a.old() {
		a = &quorumAnswer{done: make(chan struct{})}
		b.quorum.last = a
		go func() {
			a.err = b.askQuorum(context.WithoutCancel(ctx))
			a.at = time.Now()
			close(a.done)
		}()
	}
	b.quorum.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("it is not yet known whether the log has a quorum: %w", context.Cause(ctx))
	}
}

// askQuorum asks all streams of the log at once, for quorumTimeout at most.
func (b *Bus) askQuorum(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, quorumTimeout, errNoQuorum)
	defer stop()
	answers := make(chan error, b.shards)
	for shard := range b.shards {
		go func() {
			info, err := b.shardInfo(ctx, shard)
			if err == nil {
				err = checkQuorum(info)
			}
			answers <- err
		}()
	}
	for range b.shards {
		if err := <-answers; err != nil {
			return err
		}
	}
	return nil
}

// checkQuorum says whether a stream has a leader and a majority of its replicas. A leader that
// has lost them answers for some seconds more.
func checkQuorum(info *jetstream.StreamInfo) error {
	c := info.Cluster
	if c == nil {
		return nil // a server alone
	}
	if c.Leader == "" {
		return fmt.Errorf("stream %s has no leader", info.Config.Name)
	}
	there := 1 // the leader
	for _, replica := range c.Replicas {
		if !replica.Offline && replica.Active <= silentAfter {
			there++
		}
	}
	if all := 1 + len(c.Replicas); there <= all/2 {
		return fmt.Errorf("stream %s has no quorum: %d of its %d servers are up, and it needs %d", info.Config.Name, there, all, all/2+1)
	}
	return nil
}

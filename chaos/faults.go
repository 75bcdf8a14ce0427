package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// The kinds of fault.
const (
	kill = "SIGKILL"
	stop = "SIGSTOP"
	term = "SIGTERM" // as an operator does, so that the process finishes and takes leave
)

// requestTime is how long a worker waits for an answer of the bus.
const requestTime = 5 * time.Second

// fault is one thing that goes wrong.
type fault struct {
	// after is the time since the fault before.
	after time.Duration
	kind  string
	// server says that it hits a server and not a worker; leader that it hits
	// the one that leads the log. Which of several it is, pick says.
	server, leader bool
	pick           int
	// all says that it hits everything at once, as a power cut does.
	all bool
	// down is the time until the process is started again, or continues.
	down time.Duration
}

// schedule gives the faults of a seed, one after another.
type schedule struct {
	random          *rand.Rand
	pause           time.Duration
	cluster, outage bool
}

func newSchedule(o options) *schedule {
	return &schedule{random: rand.New(rand.NewPCG(o.seed, 2)), pause: o.pause, cluster: o.cluster, outage: o.outage}
}

// next returns the next fault. Every process is hit about equally often; with
// several servers one of them is hit, mostly the leader, as soon as the last hit
// is mended: an election alone takes several seconds.
func (s *schedule) next() fault {
	r := s.random
	f := fault{
		after: s.pause/3 + time.Duration(r.Int64N(int64(s.pause)*4/3)),
		kind:  kill, pick: r.IntN(1 << 20), down: time.Duration(r.Int64N(int64(500 * time.Millisecond))),
	}
	draw := r.Float64()
	if s.cluster {
		f.server, f.leader = draw < 0.5, draw < 0.3
	} else {
		f.server = draw < 1.0/9
	}
	if r.Float64() < 0.2 {
		f.kind = stop
		f.down = ackWait + 300*time.Millisecond + time.Duration(r.Int64N(int64(1500*time.Millisecond)))
	}
	if r.Float64() < 0.15 && !f.server {
		f.kind = term
	}
	// A server that is away for longer than a request waits for its answer.
	if r.Float64() < 0.15 && f.server && !s.cluster && s.outage {
		f.kind, f.down = kill, requestTime+500*time.Millisecond+time.Duration(r.Int64N(int64(3*time.Second)))
	}
	if f.all = r.Float64() < 0.02; f.all {
		f.kind, f.server, f.leader = kill, false, false
		f.down = min(f.down, requestTime/10)
	}
	return f
}

// tormentor brings the faults of a schedule upon a fleet.
type tormentor struct {
	fleet *fleet
	// leader names the server that leads a shard, empty if nobody does. healed
	// waits until every server is a part of the log again.
	leader func(ctx context.Context, pick int) string
	healed func(context.Context)
	// died gets what ended without being killed, struck each fault.
	died   func(string)
	struck func(process, kind string, down time.Duration)

	mu    sync.Mutex
	count map[string]map[string]int // fault kind, process kind
	// skipped are faults whose victim was still suffering from another one.
	skipped int
	// serverDown is held from a fault of servers until that is mended.
	serverDown sync.Mutex
}

// torment strikes until ctx ends; when it returns every process is up.
func (t *tormentor) torment(ctx context.Context, s *schedule) {
	var suffering sync.WaitGroup
	defer suffering.Wait()
	if t.fleet.o.outage {
		suffering.Go(func() { t.outage(ctx) })
	}
	suffering.Go(func() { t.interruptExports(ctx) })
	for {
		f := s.next()
		if !pause(ctx, f.after) {
			return
		}
		victims := t.victims(ctx, f)
		if len(victims) == 0 {
			t.skipped++
			continue
		}
		suffering.Go(func() { t.strikeAll(ctx, victims, f) })
	}
}

// victims claims what a fault hits; nothing if that suffers already. Servers are
// claimed for one fault at a time, so that a majority of them lives unless all
// are hit.
func (t *tormentor) victims(ctx context.Context, f fault) []*process {
	hit := t.fleet.all()
	if !f.all {
		hit = []*process{t.victim(ctx, f)}
	}
	if f.hitsServers() && !t.serverDown.TryLock() {
		return nil
	}
	var claimed []*process
	for _, p := range hit {
		if p != nil && p.claim() {
			claimed = append(claimed, p)
		}
	}
	if len(claimed) == 0 && f.hitsServers() {
		t.serverDown.Unlock()
	}
	return claimed
}

// An outage begins when work for the pool has begun too, and is longer than an
// actor counts as living after it died and its pool is then waited for.
const (
	outageAfter = 1500 * time.Millisecond
	outageTime  = 30*time.Second + poolWait + 6*time.Second
)

// outage kills the only actor of a pool for long.
func (t *tormentor) outage(ctx context.Context) {
	if !pause(ctx, outageAfter) {
		return
	}
	for !t.fleet.lone.claim() {
		if !pause(ctx, 50*time.Millisecond) {
			return
		}
	}
	t.strike(t.fleet.lone, fault{kind: kill, down: outageTime})
}

// exportTime is how long the exporter lives between the kills that are meant for it. It is the
// only process that has to be killed in every game; another one gets its lease only later.
const exportTime = 3 * time.Second

// interruptExports kills the exporter again and again.
func (t *tormentor) interruptExports(ctx context.Context) {
	for pause(ctx, exportTime) {
		if t.fleet.exporter.claim() {
			t.strike(t.fleet.exporter, fault{kind: kill, down: 100 * time.Millisecond})
		}
	}
}

func (f fault) hitsServers() bool { return f.server || f.all }

// strikeAll strikes the victims at the same time.
func (t *tormentor) strikeAll(ctx context.Context, victims []*process, f fault) {
	var striking sync.WaitGroup
	for _, p := range victims {
		striking.Go(func() { t.strike(p, f) })
	}
	striking.Wait()
	if f.hitsServers() {
		t.healed(ctx)
		t.serverDown.Unlock()
	}
}

func (t *tormentor) victim(ctx context.Context, f fault) *process {
	if !f.server {
		return t.fleet.workers[f.pick%len(t.fleet.workers)]
	}
	if f.leader {
		name := t.leader(ctx, f.pick)
		for _, p := range t.fleet.servers {
			if p.name == name {
				return p
			}
		}
		return nil
	}
	return t.fleet.servers[f.pick%len(t.fleet.servers)]
}

func (t *tormentor) note(p *process, f fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count[f.kind] == nil {
		t.count[f.kind] = map[string]int{}
	}
	t.count[f.kind][p.kind]++
	t.struck(p.name, f.kind, f.down)
}

// strike does it and undoes it.
func (t *tormentor) strike(p *process, f fault) {
	defer p.giveBack()
	if alive, how := p.alive(); !alive {
		t.died(fmt.Sprintf("%s ended by itself: %s", p.name, how))
	}
	t.note(p, f)
	if f.kind == stop {
		p.suspend()
		time.Sleep(f.down)
		p.resume()
		return
	}
	if f.kind == term {
		if err := p.leave(); err != nil {
			t.died(err.Error())
		}
	} else {
		p.kill()
	}
	time.Sleep(f.down)
	if err := p.start(); err != nil {
		t.died(err.Error())
	}
}

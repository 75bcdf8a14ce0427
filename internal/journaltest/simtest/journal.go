package simtest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/groupcommit"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var (
	_ journal.Log     = (*Process)(nil)
	_ journal.Feed    = (*Process)(nil)
	_ journal.Queue   = (*Process)(nil)
	_ journal.Timers  = (*Process)(nil)
	_ journal.Blobs   = (*Process)(nil)
	_ ports.Peers     = (*Process)(nil)
	_ ports.Questions = (*Process)(nil)
	_ ports.Alarms    = (*Process)(nil)
	_ ports.Leases    = (*Process)(nil)

	_ ports.Snapshots = (*Process)(nil)
	_ ports.Runless   = (*Process)(nil)
)

// Journal is the simulated bus. All methods are safe for concurrent use.
type Journal struct {
	*Process
	opts Options

	mu      sync.Mutex
	shards  []*shard
	inboxes map[string]*inbox
	changed changed
	// tries counts appends under the same condition, so that one that is
	// repeated meets another fate.
	tries map[try]int
	// fetches counts how often each record was fetched.
	fetches  map[try]int
	watchers map[*watcher]struct{}
	stores   stores
	timers   timers
	alarms   timers
	// offers are who takes loans, by pool and name.
	offers map[string][]*offer
	// answerers are who answers questions, by topic.
	answerers map[string][]*answerer
}

// try is what an append tries: to be the record at a place of a run.
type try struct {
	run string
	nth int
}

// shard is one ordered log. Records are only appended, so a prefix of them can
// be read without the lock.
type shard struct {
	records []journal.Record
	// runs holds the places of each run's records.
	runs map[string][]int
	// grown is closed and replaced when a record is appended.
	grown chan struct{}
	// disk is held by who appends, where that takes time.
	disk chan struct{}
}

// Process is one process's connection to the journal.
type Process struct {
	j    *Journal
	once sync.Once
	dead chan struct{}
	// groups gather the appends to each shard; none: each goes at once.
	groups []*groupcommit.Group
	// atOnce counts the appends of a run that are in flight.
	atOnce map[events.Run]int
	// stalled are the runs whose next read fails, see AppendThen.
	stalled sync.Map
}

// New returns an empty journal.
func New(o Options) *Journal {
	j := &Journal{
		opts: o.withDefaults(), inboxes: make(map[string]*inbox),
		tries: make(map[try]int), fetches: make(map[try]int), watchers: make(map[*watcher]struct{}), stores: newStores(),
		offers: make(map[string][]*offer), answerers: make(map[string][]*answerer),
	}
	j.changed.channel = make(chan struct{})
	j.timers, j.alarms = newTimers("timers", &j.changed), newTimers("alarms", &j.changed)
	for range j.opts.Shards {
		j.shards = append(j.shards, &shard{runs: make(map[string][]int), grown: make(chan struct{}), disk: make(chan struct{}, 1)})
	}
	j.Process = j.NewProcess()
	return j
}

// NewProcess connects another process.
func (j *Journal) NewProcess() *Process {
	p := &Process{j: j, dead: make(chan struct{}), atOnce: map[events.Run]int{}}
	if j.opts.GroupCommit {
		for shard := range j.opts.Shards {
			p.groups = append(p.groups, groupcommit.New(&appender{p, shard}, 2))
		}
	}
	return p
}

// Kill makes the process die: what it does from now on has no effect and fails
// with [ErrCrashed]. What it had not finished is delivered to others after the ack
// wait.
func (p *Process) Kill() { p.once.Do(func() { close(p.dead) }) }

// Dead is closed when the process was killed or crashed.
func (p *Process) Dead() <-chan struct{} { return p.dead }

func (p *Process) alive() error {
	select {
	case <-p.dead:
		return ErrCrashed
	default:
		return nil
	}
}

// crash kills the process if it is to crash at this point, or reports that it is
// dead already.
func (p *Process) crash(at Moment) error {
	if err := p.alive(); err != nil {
		return err
	}
	at.Process = p
	if p.j.opts.Crash != nil && p.j.opts.Crash(at) {
		p.Kill()
		return fmt.Errorf("%s: %w", at.Point, ErrCrashed)
	}
	return nil
}

// Shards returns the number of shards.
func (p *Process) Shards() int { return p.j.opts.Shards }

func runKey(namespace, id string) string { return namespace + "." + id }

// Append stores the entries under the condition that the run's log ends at last.
func (p *Process) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	if err := journalcheck.Append(p.Shards(), run, entries); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to run %s: %w", run.ID, err)
	}
	pending := groupcommit.Pending{Run: run, Last: last, Entries: entries}
	if p.groups != nil {
		return p.group(ctx, pending)
	}
	return p.append(pending)
}

// append stores what one run appends by itself.
func (p *Process) append(a groupcommit.Pending) (uint64, error) {
	at := p.j.moment(a.Run, a.Entries)
	if err := p.crash(at); err != nil {
		return 0, err
	}
	seq, err := p.j.append(at, a.Last, a.Entries)
	if err != nil {
		return 0, fmt.Errorf("append to run %s after %d: %w", a.Run.ID, a.Last, err)
	}
	at.Point = AfterAppend
	if err := p.crash(at); err != nil {
		return 0, err
	}
	return seq, nil
}

// moment counts a try to append at the end of a run.
func (j *Journal) moment(run events.Run, entries []journal.Entry) Moment {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := runKey(run.Namespace, run.ID)
	nth := len(j.shards[run.Shard].runs[key])
	j.tries[try{key, nth}]++
	at := Moment{Point: BeforeAppend, Run: run, Nth: nth + len(entries) - 1, Attempt: j.tries[try{key, nth}]}
	if j.opts.Crash != nil {
		last := entries[len(entries)-1]
		at.Record = journal.Record{Subject: last.Subject.String(), Body: last.Body}
	}
	return at
}

func (j *Journal) append(at Moment, last uint64, entries []journal.Entry) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	run := at.Run
	if j.opts.happens(j.opts.Faults.Lost, "lost", run.ID, at.Nth, at.Attempt) {
		return 0, journal.ErrUnknownOutcome
	}
	if err := j.expect(run, last); err != nil {
		return 0, err
	}
	s := j.shards[run.Shard]
	before := len(s.records)
	seq := j.storeAll(groupcommit.Pending{Run: run, Last: last, Entries: entries}, false)
	j.announce(run.Shard, before)
	if j.opts.happens(j.opts.Faults.UnknownOutcome, "in doubt", run.ID, at.Nth, at.Attempt) {
		return 0, journal.ErrUnknownOutcome
	}
	return seq, nil
}

// storeAll stores what one run appends, and returns the last one's sequence
// number; behind says that it is stored together with others that stand before it. The
// lock is held.
func (j *Journal) storeAll(a groupcommit.Pending, behind bool) (seq uint64) {
	for i, e := range a.Entries {
		under := condition{after: a.Last, proves: !behind && i == 0}
		seq = j.store(a.Run.Shard, e.Subject.String(), e.Body, under)
	}
	return seq
}

// condition is what a record was appended under: that its run ends at after. It
// proves that nothing of the run stands before a first record, unless others were
// stored together with it and before it.
type condition struct {
	after  uint64
	proves bool
}

// expect reports a conflict unless the run ends at last. The lock is held.
func (j *Journal) expect(run events.Run, last uint64) error {
	s := j.shards[run.Shard]
	var head uint64
	if places := s.runs[runKey(run.Namespace, run.ID)]; len(places) > 0 {
		head = s.records[places[len(places)-1]].Seq
	}
	if head != last {
		return fmt.Errorf("%w: the run ends at %d", journal.ErrConflict, head)
	}
	return nil
}

// Outstanding counts the deliveries that were not acknowledged, over all
// inboxes that were consumed.
func (j *Journal) Outstanding() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, in := range j.inboxes {
		n += len(in.items)
	}
	return n
}

// Inject stores a record with any subject and body and without a condition, as
// somebody could who publishes on the log's subjects with other tools. It returns
// its sequence number.
func (j *Journal) Inject(shard int, subject string, body []byte) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.announce(shard, len(j.shards[shard].records))
	return j.store(shard, subject, body, condition{})
}

// store appends a record and queues its deliveries. The lock is held.
func (j *Journal) store(shard int, subject string, body []byte, under condition) uint64 {
	s := j.shards[shard]
	rec := journal.Record{
		Subject: subject, Seq: uint64(len(s.records)) + 1,
		Body: append([]byte{}, body...), Stored: time.Now().UTC(),
	}
	nth := 0
	if run, ok := runOf(subject); ok {
		nth = len(s.runs[run])
		rec.After, rec.First = under.after, under.proves && nth == 0
		s.runs[run] = append(s.runs[run], len(s.records))
	}
	s.records = append(s.records, rec)
	for _, in := range j.inboxes {
		in.offer(j.opts, rec, nth)
	}
	for w := range j.watchers {
		w.offer(rec)
	}
	return rec.Seq
}

// announce tells of the records from a place on and wakes the followers of a
// shard. The lock is held.
func (j *Journal) announce(shard, from int) {
	s := j.shards[shard]
	if j.opts.Observer != nil {
		j.opts.Observer.Appended(s.records[from:len(s.records):len(s.records)])
	}
	close(s.grown)
	s.grown = make(chan struct{})
}

// Read yields the run's records after the given sequence number.
func (p *Process) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := p.readable(ctx, journalcheck.Run(p.Shards(), run)); err != nil {
			yield(journal.Record{}, fmt.Errorf("read run %s: %w", run.ID, err))
			return
		}
		if _, stalled := p.stalled.LoadAndDelete(run); stalled {
			yield(journal.Record{}, fmt.Errorf("read run %s: the disk stalls", run.ID))
			return
		}
		for _, rec := range p.j.run(run) {
			if rec.Seq <= after {
				continue
			}
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// readable returns the first reason not to read.
func (p *Process) readable(ctx context.Context, reason error) error {
	if reason != nil {
		return reason
	}
	if err := p.alive(); err != nil {
		return err
	}
	return ctx.Err()
}

// run copies a run's records.
func (j *Journal) run(run events.Run) []journal.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.shards[run.Shard]
	places := s.runs[runKey(run.Namespace, run.ID)]
	recs := make([]journal.Record, len(places))
	for i, place := range places {
		recs[i] = s.records[place]
	}
	return recs
}

// Head returns the run's last record.
func (p *Process) Head(ctx context.Context, run events.Run) (journal.Record, error) {
	if err := p.readable(ctx, journalcheck.Run(p.Shards(), run)); err != nil {
		return journal.Record{}, fmt.Errorf("head of run %s: %w", run.ID, err)
	}
	recs := p.j.run(run)
	if len(recs) == 0 {
		return journal.Record{}, fmt.Errorf("head of run %s: %w", run.ID, journal.ErrNotFound)
	}
	return recs[len(recs)-1], nil
}

// MaxBody returns the largest body of an event.
func (p *Process) MaxBody() int { return journal.MaxBody }

// Newest returns the shard's last record that matches.
func (p *Process) Newest(ctx context.Context, shard int, filter journal.Filter) (journal.Record, error) {
	if err := p.readable(ctx, journalcheck.Shard(p.Shards(), shard)); err != nil {
		return journal.Record{}, err
	}
	recs, _ := p.j.records(shard)
	for _, rec := range slices.Backward(recs) {
		if filter.Match(rec.Subject) {
			return rec, nil
		}
	}
	return journal.Record{}, fmt.Errorf("newest of %s: %w", filter.Subject(shard), journal.ErrNotFound)
}

// Last returns the sequence number of the shard's last record.
func (p *Process) Last(ctx context.Context, shard int) (uint64, error) {
	if err := p.readable(ctx, journalcheck.Shard(p.Shards(), shard)); err != nil {
		return 0, err
	}
	recs, _ := p.j.records(shard)
	return uint64(len(recs)), nil
}

// records returns a shard's records as they are and what is closed when there
// are more.
func (j *Journal) records(shard int) ([]journal.Record, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.shards[shard]
	return s.records[:len(s.records):len(s.records)], s.grown
}

// Scan yields a shard's records that match.
func (p *Process) Scan(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := p.readable(ctx, journalcheck.Shard(p.Shards(), shard)); err != nil {
			yield(journal.Record{}, err)
			return
		}
		recs, _ := p.j.records(shard)
		p.scan(ctx, recs, filter, after, yield)
	}
}

// Runless yields a shard's records that belong to no run.
func (p *Process) Runless(ctx context.Context, shard int) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := p.readable(ctx, journalcheck.Shard(p.Shards(), shard)); err != nil {
			yield(journal.Record{}, fmt.Errorf("messages of no run in shard %d: %w", shard, err))
			return
		}
		recs, _ := p.j.records(shard)
		for _, rec := range recs {
			if journalcheck.Subject(p.Shards(), rec.Subject) != nil && !yield(rec, nil) {
				return
			}
		}
	}
}

// scan yields what matches and reports whether more is wanted.
func (p *Process) scan(ctx context.Context, recs []journal.Record, filter journal.Filter, after uint64, yield func(journal.Record, error) bool) bool {
	for i := after; i < uint64(len(recs)); i++ {
		if err := p.readable(ctx, nil); err != nil {
			yield(journal.Record{}, err)
			return false
		}
		if filter.Match(recs[i].Subject) && !yield(recs[i], nil) {
			return false
		}
	}
	return true
}

// Follow yields a shard's records that match, forever.
func (p *Process) Follow(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := p.readable(ctx, journalcheck.Shard(p.Shards(), shard)); err != nil {
			yield(journal.Record{}, err)
			return
		}
		for {
			recs, grown := p.j.records(shard)
			if !p.scan(ctx, recs, filter, after, yield) {
				return
			}
			after = max(after, uint64(len(recs)))
			select {
			case <-grown:
			case <-p.dead:
				yield(journal.Record{}, ErrCrashed)
				return
			case <-ctx.Done():
				yield(journal.Record{}, ctx.Err())
				return
			}
		}
	}
}

package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// maxPending bounds what waits for a webhook. Beyond it, its reader pauses.
	maxPending = 1000
	// noteEvery is how often changes are noted, longer by as much for each notesLonger notices
	// that wait, which are noted, too. idleEvery is how often it is noted only that more was
	// read. After a crash, what was delivered since is delivered again.
	noteEvery   = 100 * time.Millisecond
	notesLonger = 100
	idleEvery   = 30 * time.Second
	// pauseAfter is the pause after the bus failed.
	pauseAfter = time.Second
	// lingerTime bounds the attempts and noteTime the last note of a reader that ends. Together
	// they are shorter than what is left of a lease that was lost.
	lingerTime = 2 * time.Second
	noteTime   = 2 * time.Second
	// maxReason bounds what is noted of a failure, in bytes.
	maxReason = 200
	// keepDead is how long notices that were given up are kept.
	keepDead = 30 * 24 * time.Hour
)

// again is a notice that was given up and is to be tried again, with where that is asked for.
type again struct {
	pending
	key      string
	revision uint64
}

// reader reads the log for a webhook and delivers. All of it but reading and posting is done by the
// goroutine of run.
type reader struct {
	*Hooks
	hook         *hook
	hookRevision uint64
	log          journal.Log
	logger       *slog.Logger
	places       chan struct{}

	state    *state
	revision uint64
	// since and owed are those of the state, and never change.
	since time.Time
	owed  []string
	// seen is up to where each shard was read.
	seen []atomic.Uint64
	// waiting are those of state.Pending, and busy the runs of those that are on the way.
	waiting []*pending
	busy    map[string]bool
	// told is how many of them Hooks.queued counts.
	told int
	// changed says that the state is to be noted, and noted when it was.
	changed bool
	noted   time.Time
	// health is what the log says of the receiver, down that the bus failed the last notice.
	health health
	down   bool
	// asked are requests to try again that are fulfilled once the state is noted.
	asked []again

	found chan pending
	done  chan result
	again chan []again
}

// tell makes n the number of waiting notices that metrics see.
func (r *reader) tell(n int) {
	r.queued.Add(int64(n - r.told))
	r.told = n
}

// result is how an attempt went.
type result struct {
	p *pending
	// gone says that the notice needs no more attempts, closed that the receiver wants none at all.
	gone, closed bool
	// health is what the attempt says of the receiver, of the bus, or of neither.
	health health
	// failed is why the attempt failed; empty: it did not, or does not count.
	failed string
	after  time.Duration
}

func newReader(h *Hooks, log journal.Log, w *hook, revision uint64) *reader {
	return &reader{
		Hooks: h, hook: w, hookRevision: revision, log: log, logger: h.cfg.Logger.With("namespace", w.Namespace, "webhook", w.Name),
		busy: map[string]bool{}, found: make(chan pending), done: make(chan result, PerHost), again: make(chan []again),
	}
}

// run delivers until ctx ends, or until another process notes something for the webhook.
func (r *reader) run(ctx context.Context) (err error) {
	if r.state, r.revision, err = r.Hooks.state(ctx, r.hook); err != nil {
		return err
	}
	born, err := r.cfg.KV.Born(ctx)
	if err != nil {
		return err
	}
	if shards := r.log.Shards(); !r.state.Log.Equal(born) || len(r.state.Read) != shards {
		r.logger.Info("the log was restored: a webhook is told what its receiver may not know", "since", r.state.Noted, "pending", len(r.state.Pending))
		r.state, r.changed = r.state.moved(born, shards), true
	}
	r.since, r.owed = r.state.Since, r.state.Owed
	for i := range r.state.Pending {
		r.waiting = append(r.waiting, &r.state.Pending[i])
	}
	var leave func()
	r.places, leave = r.sender.Enter(r.hook.URL)
	defer leave()
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	r.seen = make([]atomic.Uint64, len(r.state.Read))
	updates, owes := r.updates.Load(), len(r.state.Pending) > 0
	for shard, after := range r.state.Read {
		r.seen[shard].Store(after)
		if r.hook.Push == nil {
			all.Go(func() { r.read(ctx, shard, after) })
		} else {
			all.Go(func() { r.readPush(ctx, *updates, shard, after, owes) })
		}
	}
	r.noted = time.Now()
	err = r.loop(ctx, &all)
	stop()
	go func() {
		all.Wait()
		close(r.done)
	}()
	for res := range r.done {
		r.finish(res)
	}
	switch {
	case errors.Is(err, journal.ErrConflict):
		return err
	case errors.Is(err, errOver):
		return nil // there is nothing to note
	}
	last, end := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
	defer end()
	return errors.Join(err, r.note(last))
}

// errClosed says that the receiver wants no more notices.
var errClosed = errors.New("the receiver answers 410 Gone")

func (r *reader) loop(ctx context.Context, all *sync.WaitGroup) error {
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	defer r.tell(0)
	for {
		r.tell(len(r.waiting))
		wake := r.send(ctx, all)
		found := r.found
		if len(r.waiting) >= r.most {
			found = nil
		}
		select {
		case p := <-found:
			r.waiting, r.changed = append(r.waiting, &p), true
			if r.seen[p.Shard].Load() < p.Seq {
				r.seen[p.Shard].Store(p.Seq) // else it would be noted as pending and be read again
			}
		case asked := <-r.again:
			r.accept(asked)
		case res := <-r.done:
			if r.finish(res) {
				return r.disable(ctx)
			}
		case <-wake:
		case <-tick.C:
			if err := r.noteIfDue(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// read hands on what the webhook is to be told of a shard.
func (r *reader) read(ctx context.Context, shard int, after uint64) {
	for rec, err := range r.log.Follow(ctx, shard, journal.Filter{Namespace: r.hook.Namespace}, after) {
		if err != nil {
			return // ctx ended
		}
		p, wanted, err := r.wanted(ctx, shard, rec)
		if err != nil {
			return // ctx ended
		}
		if wanted {
			select {
			case r.found <- p:
			case <-ctx.Done():
				return
			}
		}
		r.seen[shard].Store(rec.Seq)
	}
}

// wanted reports whether the webhook is to be told of a record. It fails only when ctx ends.
func (r *reader) wanted(ctx context.Context, shard int, rec journal.Record) (p pending, wanted bool, err error) {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil || s.CheckShard(r.log.Shards()) != nil || !ofPeople(s.To) {
		return p, false, nil
	}
	e := r.runs.Decode(rec)
	if e == nil || !events.ValidToken(e.ID) || r.isOld(e) {
		return p, false, nil
	}
	if kind, _ := kindOf(e); kind == "" || !r.hook.wants(kind) {
		return p, false, nil
	}
	if !r.hook.SubRuns || len(r.hook.Agents) > 0 {
		var f fact
		err := retry.Policy{First: pauseAfter}.Do(ctx, func(ctx context.Context) (err error) {
			f, err = r.facts.of(ctx, s.Run)
			return err
		}, func(err error, _ time.Duration) {
			r.logger.Warn("a run cannot be read", "run", s.Run.ID, "reason", err)
		})
		if err != nil {
			return p, false, err
		}
		if f.parent != "" && !r.hook.SubRuns || len(r.hook.Agents) > 0 && !slices.Contains(r.hook.Agents, f.agent) {
			return p, false, nil
		}
	}
	return pending{Event: e.ID, Run: s.Run.ID, Shard: shard, Seq: rec.Seq}, true, nil
}

// isOld reports whether an event was told before, or happened before the webhook was made.
func (r *reader) isOld(e *events.Event) bool {
	if slices.Contains(r.owed, e.ID) {
		return false
	}
	return e.Time.Before(r.hook.Made.Add(-clockSkew)) || e.Time.Before(r.since.Add(-clockSkew))
}

// clockSkew is how much earlier than the webhook an event may be, by the clock of who made it. An
// import brings older ones.
const clockSkew = time.Minute

// ofPeople reports whether records that lead to a state may be of a kind.
func ofPeople(to events.State) bool {
	switch to {
	case events.WaitingForHuman, events.WaitingForUser, events.Done, events.Errored, events.Cancelled:
		return true
	}
	return false
}

// send begins with what is due. The channel gets something when more is.
func (r *reader) send(ctx context.Context, all *sync.WaitGroup) <-chan time.Time {
	now, next := time.Now(), time.Time{}
	first := map[string]bool{}
	for _, p := range r.waiting {
		if len(r.busy) >= PerHost {
			return nil // an attempt that ends leads here again
		}
		if first[p.Run] || r.busy[p.Run] {
			continue
		}
		first[p.Run] = true
		if p.Next.After(now) {
			if next.IsZero() || p.Next.Before(next) {
				next = p.Next
			}
			continue
		}
		r.busy[p.Run] = true
		all.Go(func() { r.done <- r.attempt(ctx, *p, p) })
	}
	if next.IsZero() {
		return nil
	}
	return time.After(next.Sub(now))
}

// attempt makes one attempt.
func (r *reader) attempt(ctx context.Context, was pending, p *pending) result {
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	case <-ctx.Done():
		return result{p: p}
	}
	message, typ, err := r.message(ctx, was)
	if errors.Is(err, journal.ErrNotFound) {
		r.logger.Warn("a notice is not sent: its run is not in the log any more", "run", was.Run, "event", was.Event)
		return result{p: p, gone: true}
	}
	switch {
	case ctx.Err() != nil:
		return result{p: p}
	case err != nil:
		return result{p: p, failed: err.Error(), after: -1}
	}
	posting, stop := lingering(ctx)
	defer stop()
	o := r.sender.Post(posting, message)
	logger := r.logger.With("run", was.Run, "event", was.Event, "type", typ, "attempt", was.Attempts+1)
	reason := truncate.Prefix(o.Reason(), maxReason)
	count := func(outcome string) { meter.Add(r.runs.Store.Meter(), row.Tries, 1, outcome) }
	switch {
	case o.Delivered():
		count("delivered")
		logger.Debug("a notice is delivered", "took", o.Took)
		return result{p: p, gone: true, health: delivers}
	case ctx.Err() != nil:
		return result{p: p}
	case o.Gone():
		count("closed")
		return result{p: p, closed: true, failed: errClosed.Error()}
	}
	if was.Attempts < len(r.Retries) {
		count("failed")
		after := max(r.Retries[was.Attempts], o.After)
		logger.Debug("a notice is not delivered, and is tried again", "reason", reason, "retry_in", after)
		return result{p: p, health: fails, failed: reason, after: after}
	}
	was.Attempts, was.Error = was.Attempts+1, reason
	if err := r.giveUp(ctx, was, typ); err != nil {
		return result{p: p, failed: err.Error(), after: -1}
	}
	count("given_up")
	logger.Debug("a notice is given up", "reason", reason)
	if r.hook.Push != nil {
		return result{p: p, gone: true, health: fails, failed: reason} // nobody can have it tried again
	}
	return result{p: p, gone: true, health: givesUp, failed: reason}
}

// message makes the notice of an event, and says of what type it is.
func (r *reader) message(ctx context.Context, p pending) (m Message, typ string, err error) {
	id := p.Event + "_" + r.hook.Name
	if push := r.hook.Push; push != nil {
		body, media, err := (*r.updates.Load()).Update(ctx, r.hook.Namespace, *push, p.Event)
		m = r.hook.message(id, body)
		address(push, &m, media)
		return m, "push", err
	}
	notice, err := r.notice(ctx, p)
	if err != nil {
		return m, "", err
	}
	body, err := notice.body(r.hook.Form)
	return r.hook.message(id, body), notice.Type, err
}

// lingering returns a context that ends some time after ctx, so that a receiver's answer that is on
// the way counts.
func lingering(ctx context.Context) (longer context.Context, stop func()) {
	longer, end := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		retry.Wait(longer, lingerTime)
		end()
	})
	return longer, func() { unhook(); end() }
}

// notice makes the notice of an event. An event that is not in the log is [journal.ErrNotFound].
func (r *reader) notice(ctx context.Context, p pending) (Notice, error) {
	run := r.runs.Store.Place(r.hook.Namespace, p.Run)
	e, err := r.event(ctx, run, p, p.Seq-1)
	if errors.Is(err, journal.ErrNotFound) {
		// A replica lagged, or the run was imported again.
		e, err = r.event(ctx, run, p, 0)
	}
	if err != nil {
		return Notice{}, err
	}
	f, err := r.facts.of(ctx, run)
	if err != nil {
		return Notice{}, err
	}
	data := Data{Namespace: r.hook.Namespace, Webhook: r.hook.Name, Run: p.Run, Agent: f.agent, Parent: f.parent}
	if r.ConsoleURL != "" {
		data.URL = r.ConsoleURL + "/runs/" + p.Run
	}
	n, ok := newNotice(e, data)
	if !ok {
		return n, journal.ErrNotFound
	}
	return n, nil
}

// event returns the event of a notice if it is in the log behind a sequence number.
func (r *reader) event(ctx context.Context, run events.Run, p pending, after uint64) (*events.Event, error) {
	for rec, err := range r.runs.Log.Read(ctx, run, after) {
		if err != nil {
			return nil, err
		}
		if e := r.runs.Decode(rec); e != nil && e.ID == p.Event {
			return e, nil
		}
		if after > 0 {
			break
		}
	}
	return nil, journal.ErrNotFound
}

// giveUp stores a notice among those that were given up.
func (r *reader) giveUp(ctx context.Context, p pending, typ string) error {
	if r.hook.Push != nil {
		return nil // nobody could have it delivered later
	}
	p.Next = time.Time{}
	data, err := json.Marshal(deadLetter{pending: p, Type: typ, At: time.Now().UTC()})
	if err != nil {
		return err
	}
	_, err = r.putValue(ctx, key(kindDead, r.hook.Namespace, r.hook.Name, p.Event), data, 0, keepDead)
	if errors.Is(err, journal.ErrConflict) {
		return nil // it was, before a crash
	}
	return err
}

// finish notes how an attempt went. It reports whether the receiver wants no more.
func (r *reader) finish(res result) (closed bool) {
	delete(r.busy, res.p.Run)
	r.tellHealth(res)
	switch {
	case res.gone:
		r.waiting = slices.DeleteFunc(r.waiting, func(p *pending) bool { return p == res.p })
	case res.after < 0:
		res.p.Next = time.Now().Add(pauseAfter)
		return false
	case res.failed != "":
		res.p.Attempts++
		res.p.Error, res.p.Next = res.failed, time.Now().Add(res.after).UTC()
	default:
		return false
	}
	r.changed = true
	return res.closed || res.gone && res.p.Last
}

// accept takes what is to be tried again, as far as there is room.
func (r *reader) accept(all []again) {
	for _, a := range all {
		known := slices.ContainsFunc(r.waiting, func(p *pending) bool { return p.Event == a.Event })
		if slices.ContainsFunc(r.asked, func(o again) bool { return o.key == a.key }) || !known && len(r.waiting) >= r.most {
			continue
		}
		if !known {
			p := a.pending
			p.Attempts, p.Error, p.Next = 0, "", time.Time{}
			r.waiting = append(r.waiting, &p)
		}
		r.asked, r.changed = append(r.asked, a), true
	}
}

// noteIfDue notes how far the reader is, if that matters. A failure of the bus is for the next time.
func (r *reader) noteIfDue(ctx context.Context) error {
	moved := false
	for shard := range r.seen {
		moved = moved || r.seen[shard].Load() != r.state.Read[shard]
	}
	since, every := time.Since(r.noted), noteEvery*time.Duration(1+len(r.waiting)/notesLonger)
	if since < every || !r.changed && (!moved || since < idleEvery) {
		return nil
	}
	err := r.note(ctx)
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		r.logger.Warn("how far delivery is cannot be noted; after a crash, notices are delivered again", "reason", err)
		r.noted = time.Now().Add(pauseAfter)
		return nil
	}
	return err
}

// note stores how far the reader is. What was asked to be tried again is safe then.
func (r *reader) note(ctx context.Context) error {
	s := &state{Made: r.hook.Made, Log: r.state.Log, Read: make([]uint64, len(r.seen)), Noted: time.Now().UTC(), Since: r.since, Owed: r.owed}
	if len(r.waiting) >= r.most {
		s.Noted = r.state.Noted // the reader pauses
	}
	for shard := range r.seen {
		s.Read[shard] = r.seen[shard].Load()
	}
	for _, p := range r.waiting {
		s.Pending = append(s.Pending, *p)
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	lifetime := time.Duration(0)
	if r.hook.Push != nil {
		lifetime = keepPush
	}
	revision, err := r.putValue(ctx, key(kindState, r.hook.Namespace, r.hook.Name), data, r.revision, lifetime)
	if err != nil {
		return err
	}
	r.state, r.revision, r.changed, r.noted = s, revision, false, time.Now()
	asked := r.asked
	r.asked = nil
	for _, a := range asked {
		if err := r.deleteValue(ctx, a.key, a.revision); err != nil && !errors.Is(err, journal.ErrConflict) {
			return fmt.Errorf("a request to try again: %w", err) // it is found again
		}
	}
	return nil
}

// disable gives up what waits and says in the webhook that its receiver is gone. The error is
// errClosed, or that of the bus, after which the receiver is asked again.
func (r *reader) disable(ctx context.Context) error {
	if r.hook.Push != nil {
		return r.endPush(ctx)
	}
	for _, p := range r.waiting {
		dead := *p
		dead.Error = errClosed.Error()
		typ := ""
		if n, err := r.notice(ctx, dead); err == nil {
			typ = n.Type
		}
		if err := r.giveUp(ctx, dead, typ); err != nil {
			return err
		}
	}
	r.waiting = nil
	closed := *r.hook
	closed.Disabled = errClosed.Error()
	if err := r.put(ctx, &closed, r.hookRevision); err != nil {
		return err
	}
	r.logger.Error("a webhook is disabled; put it again to enable it", "reason", errClosed)
	return errClosed
}

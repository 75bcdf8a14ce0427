package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// history is one run as the log has it.
type history struct {
	run    string
	events []*event
	// hashes are those of the bodies.
	hashes []string
	end    *event
	// scenario says what the run should do. It is nil until the audit compares the run with it.
	scenario *scenario
}

// origin is what a fork says of where it comes from.
type origin struct {
	Run  string `json:"run"`
	At   uint64 `json:"at"`
	Hash string `json:"hash"`
}

// origin returns a fork's origin; nil of any other run.
func (h *history) origin() *origin {
	if len(h.events) == 0 || h.events[0].Type != "Forked" {
		return nil
	}
	o := new(origin)
	_ = decode(h.events[0], o) // what is not there is no run
	return o
}

// audit holds the log to what has to be in it. It shares no code with what
// wrote the log.
type audit struct {
	found    func(string)
	runs     map[string]*history
	ids      map[string]uint64
	executed map[string][]execution
	// subruns are the runs that answer each call of an agent, by `run/call`.
	subruns map[string][]*history
	// refs are the large results that the log points to, with a run that does.
	refs map[ref]string
	// outcomes counts what became of calls, where it is out of the ordinary.
	outcomes map[string]int
}

func newAudit(found func(string), executed map[string][]execution) *audit {
	return &audit{found: found, runs: map[string]*history{}, ids: map[string]uint64{}, executed: executed, subruns: map[string][]*history{}, refs: map[ref]string{}, outcomes: map[string]int{}}
}

// read takes every record in and checks what holds for all events: that the
// subject fits the body, that n counts and prev chains, and that no id is there
// twice.
func (a *audit) read(records []record) {
	for i := range records {
		r := &records[i]
		e, err := r.parse()
		if err != nil {
			a.found(fmt.Sprintf("shard %d seq %d: not an event: %v", r.shard, r.seq, err))
			continue
		}
		say := func(format string, args ...any) {
			a.found(fmt.Sprintf("shard %d seq %d, run %s: %s", r.shard, r.seq, e.Subject, fmt.Sprintf(format, args...)))
		}
		// moore.<shard>.<ns>.<from>.<to>.<pool>.<run>
		if parts := strings.Split(r.subject, "."); len(parts) != 7 || parts[6] != e.Subject || !owns(parts[3], e) {
			say("%s from %s stands on %s", e.Type, e.From, r.subject)
		}
		if before, twice := a.ids[e.ID]; twice {
			say("id %s is that of seq %d too", e.ID, before)
		}
		a.ids[e.ID] = r.seq
		h := a.runs[e.Subject]
		if h == nil {
			h = &history{run: e.Subject}
			a.runs[e.Subject] = h
		}
		if want := uint64(len(h.events) + 1); e.N != want {
			say("n is %d where %d is due", e.N, want)
		}
		if prev := h.hash(uint64(len(h.hashes))); e.Prev != prev {
			say("prev is %q, the event before has %q", e.Prev, prev)
		}
		if h.end != nil {
			say("%s follows the end, %s", e.Type, h.end.Type)
		}
		sum := sha256.Sum256(r.body)
		if by := e.parent(); by != nil {
			a.subruns[by.call()] = append(a.subruns[by.call()], h)
		}
		h.events, h.hashes = append(h.events, e), append(h.hashes, hex.EncodeToString(sum[:]))
		if e.terminal() {
			h.end = e
		}
	}
}

// hash is the hash of the run's n-th event, empty if there is none.
func (h *history) hash(n uint64) string {
	if h == nil || n == 0 || n > uint64(len(h.hashes)) {
		return ""
	}
	return h.hashes[n-1]
}

// before returns what a fork has of its parent's events, and so on; nothing for
// any other run.
func (a *audit) before(h *history) []*event {
	o := h.origin()
	if o == nil {
		return nil
	}
	parent := a.runs[o.Run]
	if parent == nil || o.At > uint64(len(parent.events)) {
		return nil
	}
	return append(a.before(parent), parent.events[:o.At]...)
}

// owns reports whether who owns a state, or control, may have published the
// event: the dispatch of calls is the planner's, though the state is not, and so is the bill of
// a reply that the run did not wait for.
func owns(publisher string, e *event) bool {
	var data struct{ Kind string }
	_ = decode(e, &data) // without a kind it is another event
	dispatch := e.Type == "ToolCallDispatched" || e.Type == "LlmAttemptFailed" && (e.From == "parallel_acting" || data.Kind == "interrupted")
	return publisher == e.From || publisher == "control" || dispatch && publisher == "planning"
}

// check holds every run to its scenario.
func (a *audit) check(carriers []*carrier) {
	if len(a.runs) != len(carriers) {
		a.found(fmt.Sprintf("the log has %d runs, %d were started or forked", len(a.runs), len(carriers)))
	}
	for _, c := range carriers {
		h := a.runs[c.scenario.run]
		if h == nil {
			c.found("is not in the log")
			continue
		}
		h.scenario = c.scenario
		say := func(format string, args ...any) { c.found(fmt.Sprintf(format, args...) + "\n" + h.String()) }
		if h.end == nil {
			say("has not ended")
		} else {
			a.checkEnd(c, h, say)
		}
		if o := h.origin(); o != nil && (o.Hash == "" || o.Hash != a.runs[o.Run].hash(o.At)) {
			say("is forked from event %d of run %s with hash %s, which it has not", o.At, o.Run, o.Hash)
		}
		a.checkParent(c.scenario, say)
		a.checkCalls(c, h, say)
		c.checkMessages(a.before(h), h, say)
		c.checkReplies(h, say)
	}
}

// checkEnd holds a run's end to what the scenario leads to.
func (a *audit) checkEnd(c *carrier, h *history, say func(string, ...any)) {
	expected := "done"
	if c.scenario.fails {
		expected = "error"
	}
	if h.end.To == expected || h.end.To == "cancelled" && (c.scenario.mayCancel() || a.abandoned(c.scenario)) {
		return
	}
	if c.scenario.wall > 0 && h.end.To == "error" && h.end.code() == "budget_wall_time" {
		if took := since(h.events[0].Time, h.end.Time); took < c.scenario.wall || took > c.scenario.wall+mostLate {
			say("ended for its wall time of %s after %s", c.scenario.wall, took)
		}
		return
	}
	// A scenario that fails may not get that far: a worker may be lost too often.
	if h.end.To == "error" && h.end.code() == "attempts_exhausted" {
		return
	}
	say("ended as %s by %s, %s was due", h.end.To, h.end.Type, expected)
}

// mostLate is how late what has a time may happen: the gateway is killed or asleep
// for some seconds, and a cluster has to elect leaders.
const mostLate = 30 * time.Second

func (p *scenario) mayCancel() bool {
	for _, m := range p.meddling {
		if m.kind == "cancel" {
			return true
		}
	}
	return false
}

// code is the code in an event's data.
func (e *event) code() string {
	var data struct {
		Code string `json:"code"`
	}
	_ = decode(e, &data)
	return data.Code
}

// checkMessages: each message that was accepted is in the log, and none twice.
func (c *carrier) checkMessages(before []*event, h *history, say func(string, ...any)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := said(slices.Concat(before, h.events), "")
	for id, count := range seen {
		if count > 1 {
			say("message %s is in the log %d times", id, count)
		}
	}
	for id, m := range c.messages {
		if m.accepted && seen[id] == 0 {
			say("message %s was accepted and is not in the log", id)
		}
	}
	if h.end != nil && h.end.Type == "Closed" && len(seen) < c.scenario.turns {
		say("was closed after %d of %d messages", len(seen), c.scenario.turns)
	}
}

// checkViews holds what the gateway says of each run to the log.
func (a *audit) checkViews(ctx context.Context, client *client) {
	for id, h := range a.runs {
		var view struct {
			State string `json:"state"`
			N     int    `json:"n"`
		}
		if err := client.do(ctx, http.MethodGet, "/v1/runs/"+id, nil, &view); err != nil {
			a.found("run " + id + ": " + err.Error())
			continue
		}
		if last := h.events[len(h.events)-1]; view.State != last.To || view.N != len(h.events) {
			a.found(fmt.Sprintf("run %s: the gateway says %s at %d, the log %s at %d", id, view.State, view.N, last.To, len(h.events)))
		}
	}
}

// checkResults reads every large result that the log points to.
func (a *audit) checkResults(ctx context.Context, b *bus) {
	for r, run := range a.refs {
		data, err := b.object(ctx, r.Bucket, r.Key)
		if sum := sha256.Sum256(data); err == nil && (len(data) != r.Size || hex.EncodeToString(sum[:]) != r.SHA256) {
			err = fmt.Errorf("its %d bytes are others than the log says", len(data))
		}
		if err != nil {
			a.found(fmt.Sprintf("run %s: result %s: %v", run, r.Key, err))
		}
	}
}

// String lists a run's events.
func (h *history) String() string {
	var b strings.Builder
	for _, e := range h.events {
		data := string(e.Data)
		if len(data) > 160 {
			data = data[:160] + "…"
		}
		_, _ = fmt.Fprintf(&b, "    %3d %s %s→%s %s %s %s\n", e.N, e.Time, e.From, e.To, e.Type, e.Source, data)
	}
	return b.String()
}

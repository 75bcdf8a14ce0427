package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// report is what a game came to.
type report struct {
	o        options
	faults   map[string]map[string]int
	skipped  int
	states   map[string]int // runs by their last state
	failures map[string]int // LlmAttemptFailed and ends in error, by kind or code
	events   int
	again    int // redeliveries
	races    int // appends that lost
	resumed  int // event streams taken up again
	calls    int // executions of tools
	refused  int // requests that the model refused in a storm
	forks    int
	// snapshots is how many there were at most, verified how often the runs were
	// verified while they continued.
	snapshots, verified int
	outcomes            map[string]int
	large               int // results outside the log
	// transitions is how many of the events the metrics counted, spans how many there are and
	// how many came, notices how many came for the ends of runs.
	transitions, spans, sent, notices int
	// scheduled is how many runs a schedule started.
	scheduled int
	silence   silence
	phases    []phase

	mu       sync.Mutex
	findings []string
}

// silence is how long a run that had something to do did nothing.
type silence struct {
	took  time.Duration
	run   string
	after *event
}

type phase struct {
	name string
	took time.Duration
}

// found notes something that is wrong.
func (r *report) found(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.findings = append(r.findings, text)
}

// mostFindings bounds how many findings are printed in full.
const mostFindings = 20

func (r *report) print(w io.Writer) {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(&b, "%-14s %s\n", name, fmt.Sprintf(format, args...))
	}
	for i, text := range r.findings {
		if i == mostFindings {
			_, _ = fmt.Fprintf(&b, "FOUND: and %d more\n", len(r.findings)-i)
			break
		}
		_, _ = fmt.Fprintf(&b, "FOUND: %s\n", strings.TrimSuffix(text, "\n"))
	}
	line("seed", "%d", r.o.seed)
	line("runs", "%d: %s", r.o.runs, counts(r.states))
	for _, kind := range slices.Sorted(maps.Keys(r.faults)) {
		total := 0
		for _, n := range r.faults[kind] {
			total += n
		}
		line(kind, "%d: %s", total, counts(r.faults[kind]))
	}
	line("skipped", "%d faults of a process that suffered from another one", r.skipped)
	line("events", "%d, tools executed %d times, %d large results", r.events, r.calls, r.large)
	line("redeliveries", "%d", r.again)
	line("lost races", "%d", r.races)
	line("forks", "%d", r.forks)
	line("calls", "%s", counts(r.outcomes))
	line("storms", "%d requests met one", r.refused)
	line("snapshots", "%d at once at most, verified %d times meanwhile", r.snapshots, r.verified)
	line("feed", "taken up again %d times", r.resumed)
	if s := r.silence; s.after != nil {
		line("silence", "%.1fs at most: run %s after event %d, %s", s.took.Seconds(), s.run, s.after.N, s.after.Type)
	}
	line("metrics", "%d of %d events counted; the last ones before a kill are lost", r.transitions, r.events)
	line("traces", "%d spans, sent %d times", r.spans, r.sent)
	line("webhooks", "%d notices", r.notices)
	line("schedule", "%d runs, each admitted once by a quota", r.scheduled)
	line("failures", "%s", counts(r.failures))
	for _, p := range r.phases {
		line("time", "%6.1fs %s", p.took.Seconds(), p.name)
	}
	line("findings", "%d", len(r.findings))
	_, _ = io.WriteString(w, b.String())
}

// counts writes a map of counts in order.
func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// tally counts what the log has.
func (r *report) tally(a *audit) {
	r.states, r.failures, r.outcomes = map[string]int{}, map[string]int{}, a.outcomes
	for _, h := range a.runs {
		if h.origin() != nil {
			r.forks++
		}
		r.events += len(h.events)
		r.states[h.events[len(h.events)-1].To]++
		r.listen(h)
		for _, e := range h.events {
			var data struct{ Kind, Code string }
			_ = json.Unmarshal(e.Data, &data)
			switch {
			case e.Type == "LlmAttemptFailed":
				r.failures[data.Kind]++
			case e.To == "error" && e.terminal() || data.Code == "outcome_unknown":
				r.failures[data.Code]++
			}
		}
	}
	if r.silence.took > r.o.mostSilence() {
		r.found(fmt.Sprintf("run %s was silent for %s after event %d\n%s", r.silence.run, r.silence.took, r.silence.after.N, a.runs[r.silence.run]))
	}
	r.large = len(a.refs)
	for _, done := range a.executed {
		r.calls += len(done)
	}
}

// mostSilence is how long a run may do nothing, though its workers die several
// times in a row; a cluster that loses its leader has to elect another one first.
func (o options) mostSilence() time.Duration {
	if o.cluster {
		return 90 * time.Second
	}
	return 30 * time.Second
}

// listen looks for the longest silence that nothing explains: no human, no pause,
// and no actor that is away for long.
func (r *report) listen(h *history) {
	explained := time.Duration(0)
	if r.o.outage && h.scenario != nil && h.scenario.kind == "lonely" {
		explained = outageTime
	}
	if h.scenario != nil && h.scenario.delegates() {
		explained = r.o.mostSilence() // its sub-runs are listened to themselves
	}
	paused, deadline := false, ""
	for i, e := range h.events {
		if i > 0 && !paused {
			took := quiet(h.events[i-1], e, deadline) - explained
			if e.Type == "Admitted" {
				took -= r.o.faultTime // a gateway that is killed keeps the queue for 12 s, so several leave no time to admit runs
			}
			if took > r.silence.took {
				r.silence = silence{took, h.run, h.events[i-1]}
			}
		}
		paused = e.Type == "Paused" || paused && e.Type != "Resumed"
		if e.Type == "HumanApprovalRequired" {
			var asked struct{ Deadline string }
			_ = decode(e, &asked) // then there is none
			deadline = asked.Deadline
		}
	}
}

// quiet is how long something was due between two events of a run: where a human
// is waited for, from the deadline on.
func quiet(before, after *event, deadline string) time.Duration {
	switch {
	case before.To == "waiting_for_user", before.To == "waiting_for_human" && deadline == "":
		return 0
	case before.To == "waiting_for_human":
		return since(max(deadline, before.Time), after.Time)
	}
	return since(before.Time, after.Time)
}

// lostRace is what natsbus logs for an append that lost.
const lostRace = "an append lost its race"

// countRaces counts them in the logs of all processes.
func (r *report) countRaces(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	if err != nil {
		return err
	}
	for _, path := range logs {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if strings.Contains(lines.Text(), lostRace) {
				r.races++
			}
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}

// hanging describes the runs that are not over: where each stands, and what the
// consumers have before them.
func (r *report) hanging(ctx context.Context, b *bus, carriers []*carrier) {
	for _, c := range carriers {
		c.mu.Lock()
		last, ended := c.last, c.ended
		c.mu.Unlock()
		switch {
		case ended != nil:
		case !c.started.Load():
			c.found("was not started")
		case last == nil:
			c.found("hangs: the feed has shown no event of it")
		default:
			c.found(fmt.Sprintf("hangs: the feed's last event is %d, %s %s→%s at %s", last.N, last.Type, last.From, last.To, last.Time))
		}
	}
	all, err := b.consumers(ctx)
	if err != nil {
		r.found("consumers: " + err.Error())
	}
	for _, info := range all {
		if info.NumPending > 0 || info.NumAckPending > 0 {
			r.found(describe(info))
		}
	}
}

func describe(info *jetstream.ConsumerInfo) string {
	return fmt.Sprintf("consumer %s: %d not delivered, %d not acknowledged, %d of them delivered again, %d pulls wait, ack floor %d",
		info.Name, info.NumPending, info.NumAckPending, info.NumRedelivered, info.NumWaiting, info.AckFloor.Stream)
}

package main

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metrics are the counters of all processes, as they were when each life of a process was
// scraped last. What a process counted after that is lost with it.
type metrics struct {
	http    *http.Client
	workers []*process

	mu    sync.Mutex
	lives map[life]counters
}

// counters are what a life counted: events by what they are, and appends whose answer was lost.
type counters struct {
	transitions map[string]int
	unknown     int
}

// life is a process from one start to its end.
type life struct {
	process string
	began   time.Time
}

// scrapeEvery is the pause between two scrapes of everything.
const scrapeEvery = 200 * time.Millisecond

func newMetrics(workers []*process) *metrics {
	workers = slices.DeleteFunc(slices.Clone(workers), func(p *process) bool { return p.metrics == "" })
	return &metrics{http: &http.Client{Timeout: time.Second}, workers: workers, lives: map[life]counters{}}
}

// watch scrapes until ctx ends.
func (m *metrics) watch(ctx context.Context) {
	defer m.http.CloseIdleConnections()
	for pause(ctx, scrapeEvery) {
		m.scrape(ctx)
	}
}

// scrape asks every process, and leaves out those that are away or asleep.
func (m *metrics) scrape(ctx context.Context) {
	var asking sync.WaitGroup
	for _, p := range m.workers {
		asking.Go(func() {
			began := p.life()
			counts, err := m.read(ctx, p)
			if err != nil || p.life() != began {
				return
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.lives[life{p.name, began}] = counts
		})
	}
	asking.Wait()
}

// read reads the counters of a process.
func (m *metrics) read(ctx context.Context, p *process) (c counters, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.metrics+"/metrics", nil)
	if err != nil {
		return c, err
	}
	response, err := m.http.Do(request)
	if err != nil {
		return c, err
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return c, err
	}
	c.transitions = map[string]int{}
	for _, metric := range families["moorebus_unknown_appends_total"].GetMetric() {
		c.unknown += int(metric.GetCounter().GetValue())
	}
	for _, metric := range families["moorebus_transitions_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range metric.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		c.transitions[transition(labels["from"], labels["to"], labels["type"])] = int(metric.GetCounter().GetValue())
	}
	return c, nil
}

func transition(from, to, typ string) string { return from + "→" + to + " " + typ }

// countTime is how long a process may take to count what the log has from it.
const countTime = 15 * time.Second

// check holds the counters to the log. No event is counted twice, over all lives of all
// processes. And the present life of each process has counted every event that the log has from
// it since its start, and nothing else: without a restart nothing is lost. Only an append whose
// answer was lost may be stored without its process learning of it.
func (m *metrics) check(ctx context.Context, a *audit, r *report) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	var wrong []string
	for {
		m.scrape(ctx)
		if wrong, r.transitions = m.compare(a); len(wrong) == 0 || !pause(ctx, scrapeEvery) {
			break
		}
	}
	for _, text := range wrong {
		r.found("metrics: " + text)
	}
}

// compare says what differs, and how many events are counted.
func (m *metrics) compare(a *audit) (wrong []string, total int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counted, logged := map[string]int{}, map[string]int{}
	for _, counts := range m.lives {
		for kind, n := range counts.transitions {
			counted[kind] += n
			total += n
		}
	}
	byInstance := map[string][]*event{}
	for _, h := range a.runs {
		for _, e := range h.events {
			logged[transition(e.From, e.To, e.Type)]++
			// An actor may be a sub-agent, too: sources are moorebus/<role>/<instance>.
			instance := path.Base(e.Source)
			byInstance[instance] = append(byInstance[instance], e)
		}
	}
	for kind, n := range counted {
		if n > logged[kind] {
			wrong = append(wrong, fmt.Sprintf("%s is counted %d times and %d times in the log", kind, n, logged[kind]))
		}
	}
	for _, p := range m.workers {
		began, have, want := p.life(), 0, 0
		counts, scraped := m.lives[life{p.name, began}]
		if !scraped {
			wrong = append(wrong, p.name+" has no metrics")
		}
		for _, n := range counts.transitions {
			have += n
		}
		var late []string
		for _, e := range byInstance[p.name] {
			if at, err := time.Parse(time.RFC3339Nano, e.Time); err == nil && !at.Before(began.Truncate(time.Millisecond)) {
				want++
				late = append(late, e.Subject+" "+e.Type)
			}
		}
		if scraped && (have > want || have < want && counts.unknown == 0) {
			wrong = append(wrong, fmt.Sprintf("%s counted %d events since its start, the log has %d: %s", p.name, have, want, strings.Join(late, ", ")))
		}
	}
	return wrong, total
}

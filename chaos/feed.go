package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// event is an event as anybody can read it, without this project's codec.
type event struct {
	ID      string          `json:"id"`
	Type    string          `json:"type"`
	Source  string          `json:"source"`
	Subject string          `json:"subject"`
	Time    string          `json:"time"`
	N       uint64          `json:"n"`
	From    string          `json:"from"`
	To      string          `json:"to"`
	Prev    string          `json:"prev"`
	Data    json.RawMessage `json:"data"`
}

func (e *event) terminal() bool { return e.To == "done" || e.To == "error" || e.To == "cancelled" }

// feed follows all runs over one event stream of the gateway, and takes it up
// again where it broke off.
type feed struct {
	client *client
	found  func(string)

	// unknown makes the follower of a run that the driver did not name; nil if
	// there must be no such run.
	unknown func(*event) *follower
	// delivered counts the events.
	delivered atomic.Uint64
	// last is the position of the last event, at first the beginning.
	last string

	mu   sync.Mutex
	runs map[string]*follower
	// resumed counts how often the stream was taken up again.
	resumed int
}

// follower gets one run's events in order.
type follower struct {
	mu sync.Mutex
	// events are all that came, read is how many of them were taken.
	events []*event
	read   int
	wake   chan struct{}
}

// newFeed follows from the beginning: shards that a position does not name are
// read from theirs.
func newFeed(c *client, found func(string)) *feed {
	return &feed{client: c, found: found, last: "0:0", runs: map[string]*follower{}}
}

// follower returns the follower of a run, and makes it the first time.
func (f *feed) follower(run string) *follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.runs[run]
	if w == nil {
		w = &follower{wake: make(chan struct{}, 1)}
		f.runs[run] = w
	}
	return w
}

func (f *feed) known(run string) *follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[run]
}

// first returns the run's first n events.
func (w *follower) first(n uint64) []*event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events[:min(n, uint64(len(w.events)))])
}

// next waits for the run's next event; nil if ctx ends first.
func (w *follower) next(ctx context.Context) *event {
	for {
		w.mu.Lock()
		if w.read < len(w.events) {
			e := w.events[w.read]
			w.read++
			w.mu.Unlock()
			return e
		}
		w.mu.Unlock()
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// follow continues until ctx ends.
func (f *feed) follow(ctx context.Context) {
	for {
		_ = f.stream(ctx) // the gateway is away or was killed
		if !pause(ctx, 50*time.Millisecond) {
			return
		}
	}
}

func (f *feed) stream(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.client.base+"/v1/events", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Last-Event-ID", f.last)
	response, err := f.client.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP %d", response.StatusCode)
	}
	if f.delivered.Load() > 0 {
		f.resumed++
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 4<<20)
	var id string
	var body []byte
	for lines.Scan() {
		field, value, _ := bytes.Cut(lines.Bytes(), []byte(": "))
		switch string(field) {
		case "id":
			id = string(value)
		case "data":
			body = bytes.Clone(value)
		case "":
			if body != nil {
				f.deliver(id, body)
			}
			body = nil
		}
	}
	return lines.Err()
}

// deliver hands an event to its run, once it is sure that it is the next one.
func (f *feed) deliver(id string, body []byte) {
	f.last = id
	e := new(event)
	if err := json.Unmarshal(body, e); err != nil {
		f.found(fmt.Sprintf("feed: %s: %v", id, err))
		return
	}
	defer f.delivered.Add(1)
	w := f.known(e.Subject)
	if w == nil && f.unknown != nil {
		w = f.unknown(e)
	}
	if w == nil {
		f.found(fmt.Sprintf("feed: %s: an event of run %s, which nobody started", id, e.Subject))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.N != uint64(len(w.events))+1 {
		f.found(fmt.Sprintf("feed: run %s: event %d follows %d", e.Subject, e.N, len(w.events)))
	}
	w.events = append(w.events, e)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

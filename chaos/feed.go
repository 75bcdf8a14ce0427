package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
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

	runs map[string]*follower
	// last is the position of the last event.
	last string
	// resumed counts how often the stream was taken up again.
	resumed int
}

// follower gets one run's events in order.
type follower struct {
	mu     sync.Mutex
	events []*event
	n      uint64
	wake   chan struct{}
}

func newFeed(c *client, plans []*plan, found func(string)) *feed {
	f := &feed{client: c, found: found, runs: map[string]*follower{}}
	for _, p := range plans {
		f.runs[p.run] = &follower{wake: make(chan struct{}, 1)}
	}
	return f
}

// next waits for the run's next event; nil if ctx ends first.
func (w *follower) next(ctx context.Context) *event {
	for {
		w.mu.Lock()
		if len(w.events) > 0 {
			e := w.events[0]
			w.events = w.events[1:]
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

// follow goes on until ctx ends.
func (f *feed) follow(ctx context.Context) {
	for {
		_ = f.stream(ctx) // the gateway is away or was killed
		if !pause(ctx, 50*time.Millisecond) {
			return
		}
	}
}

func (f *feed) stream(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.client.base+"/v1/events?from_seq=0:0", nil)
	if err != nil {
		return err
	}
	if f.last != "" {
		request.Header.Set("Last-Event-ID", f.last)
	}
	response, err := f.client.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP %d", response.StatusCode)
	}
	if f.last != "" {
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
	w := f.runs[e.Subject]
	if w == nil {
		f.found(fmt.Sprintf("feed: %s: an event of run %s, which nobody started", id, e.Subject))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.N != w.n+1 {
		f.found(fmt.Sprintf("feed: run %s: event %d follows %d", e.Subject, e.N, w.n))
	}
	w.n = e.N
	w.events = append(w.events, e)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

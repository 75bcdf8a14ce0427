package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// load is how many runs there are, how many of them are in progress at any time, of how
// many steps, and how many go before those that are measured.
type load struct{ runs, atOnce, steps, warm int }

// loadLimit bounds the runs of one round.
const loadLimit = 2 * time.Minute

// carriedLoad is what runs took: all of them, and each from the request that started it
// until its last event was received.
type carriedLoad struct {
	took time.Duration
	each []time.Duration
}

func (c carriedLoad) rate() float64 { return float64(len(c.each)) / c.took.Seconds() }

// quantile is in milliseconds.
func (c carriedLoad) quantile(q float64) float64 {
	sorted := slices.Sorted(slices.Values(c.each))
	return sorted[int(q*float64(len(sorted)-1))].Seconds() * 1e3
}

// carry starts runs of the stored agent over HTTP and reads their ends from one stream
// of server-sent events. It fails unless every run ends once in the state done.
func (u *userSite) carry(ctx context.Context, l load) (done carriedLoad, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, loadLimit, fmt.Errorf("%d runs did not end within %s", l.runs, loadLimit))
	defer cancel()
	ends := &runEnds{stream: endStream{client: u.streams, url: u.url + "/v1/events?state=done"}, at: map[string]time.Time{}, waits: map[string]chan<- time.Time{}}
	if err := ends.stream.connect(ctx); err != nil {
		return done, err
	}
	var reading sync.WaitGroup
	reading.Go(func() { ends.read(ctx) })
	defer reading.Wait()
	defer cancel()

	done.each = make([]time.Duration, l.runs)
	errs := make([]error, l.atOnce)
	next := make(chan int, l.runs)
	for k := range l.runs {
		next <- k
	}
	close(next)
	began := time.Now()
	var clients sync.WaitGroup
	for c := range l.atOnce {
		clients.Go(func() {
			for k := range next {
				if done.each[k], errs[c] = u.carryOne(ctx, ends); errs[c] != nil {
					return
				}
			}
		})
	}
	clients.Wait()
	done.took = time.Since(began)
	return done, errors.Join(append(errs, ends.failed())...)
}

// carryOne starts a run and waits for its end.
func (u *userSite) carryOne(ctx context.Context, ends *runEnds) (time.Duration, error) {
	began := time.Now()
	id, err := u.start(ctx)
	if err != nil {
		return 0, err
	}
	select {
	case end := <-ends.of(id):
		return end.Sub(began), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("run %s: its end was not received: %w", id, context.Cause(ctx))
	}
}

// start starts a run of the stored agent.
func (u *userSite) start(ctx context.Context) (id string, err error) {
	var started struct {
		RunID string `json:"run_id"`
	}
	err = u.request(ctx, http.MethodPost, "/v1/runs", u.task, http.StatusCreated, &started)
	return started.RunID, err
}

// request sends JSON and reads the answer, whose status must be the wanted one.
func (u *userSite) request(ctx context.Context, method, path string, body []byte, want int, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, u.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := u.client.Do(request)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode != want {
		return fmt.Errorf("%s %s: HTTP %d: %s", method, path, answer.StatusCode, bytes.TrimSpace(text))
	}
	return json.Unmarshal(text, into)
}

// runEnds hands ends of runs from the stream to those who wait for them. An end may come
// before the answer to the request that started its run.
type runEnds struct {
	stream endStream

	mu    sync.Mutex
	at    map[string]time.Time
	waits map[string]chan<- time.Time
	err   error
}

// of returns a channel that receives when the run ended.
func (e *runEnds) of(id string) <-chan time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	end := make(chan time.Time, 1)
	if at, there := e.at[id]; there {
		end <- at
	} else {
		e.waits[id] = end
	}
	return end
}

// read reads the stream until ctx ends.
func (e *runEnds) read(ctx context.Context) {
	for {
		id, err := e.stream.next(ctx)
		if ctx.Err() != nil {
			return
		}
		e.mu.Lock()
		if err == nil && !e.at[id].IsZero() {
			err = fmt.Errorf("the feed says twice that run %s ended", id)
		}
		if err != nil {
			e.err = err
			e.mu.Unlock()
			return
		}
		e.at[id] = time.Now()
		if wait := e.waits[id]; wait != nil {
			wait <- e.at[id]
			delete(e.waits, id)
		}
		e.mu.Unlock()
	}
}

func (e *runEnds) failed() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// endStream is a client of /v1/events that resumes after a cut, as a browser does.
type endStream struct {
	client *http.Client
	url    string
	last   string
	body   io.ReadCloser
	lines  *bufio.Reader
}

func (s *endStream) connect(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/event-stream")
	if s.last != "" {
		request.Header.Set("Last-Event-ID", s.last)
	}
	answer, err := s.client.Do(request)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("GET %s: HTTP %d", s.url, answer.StatusCode), answer.Body.Close())
	}
	s.body, s.lines = answer.Body, bufio.NewReaderSize(answer.Body, 64<<10)
	return nil
}

// next returns the run of the next event. What a cut stream had of an event is dropped: it
// comes again.
func (s *endStream) next(ctx context.Context) (run string, err error) {
	for {
		if run, err = s.read(); err == nil {
			return run, nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if !errors.Is(err, errCut) {
			return "", err
		}
		_ = s.body.Close()
		if err := s.connect(ctx); err != nil {
			return "", err
		}
	}
}

// errCut says that the stream ended.
var errCut = errors.New("the stream ended")

// read returns the run of the next event, or errCut.
func (s *endStream) read() (run string, err error) {
	var id string
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return "", errCut
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch {
		case name == "id":
			id = value
		case name == "data":
			var event struct {
				Subject string `json:"subject"`
			}
			if err := json.Unmarshal([]byte(value), &event); err != nil {
				return "", err
			}
			run = event.Subject
		case name == "" && value == "" && id != "":
			s.last = id
			return run, nil
		}
	}
}

package gatewaylog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// recordsOf selects the records of a run from a number on.
func recordsOf(ns, id string, from uint64) requests.EventsOf {
	return requests.EventsOf{Run: requests.Run{Scope: requests.Scope{Namespace: ns}, ID: id}, From: from, View: new(requests.ViewRecords)}
}

// Events yields the records of a run from a number on. The answer is open until they were ranged over.
func (c *Client) Events(ctx context.Context, ns, id string, from uint64) (iter.Seq2[journal.Record, error], error) {
	r, err := requests.RunEvents.Request(ctx, c.API, recordsOf(ns, id, from))
	if err != nil {
		return nil, err
	}
	resp, err := c.API.Send(r)
	if err != nil {
		return nil, err
	}
	return c.records(resp), nil
}

// records yields the records of an answer and closes it.
func (c *Client) records(resp *http.Response) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		defer func() { _ = resp.Body.Close() }() // it was only read
		body := alive(resp.Body, silence, func() { _ = resp.Body.Close() })
		defer body.stop()
		scan := bufio.NewScanner(body)
		scan.Buffer(nil, recordline.Max)
		for scan.Scan() {
			rec, err := recordline.Parse(scan.Bytes())
			if !yield(rec, err) || err != nil {
				return
			}
		}
		if err := scan.Err(); err != nil {
			yield(journal.Record{}, fmt.Errorf("reading events from %s: %w", c.API.URL, err))
		}
	}
}

// alive calls dead when nothing was read for a time.
func alive(r io.Reader, longest time.Duration, dead func()) *livingReader {
	return &livingReader{r, time.AfterFunc(longest, dead), longest}
}

type livingReader struct {
	io.Reader
	timer   *time.Timer
	longest time.Duration
}

// Read reads and begins the time anew.
func (r *livingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.timer.Reset(r.longest)
	return n, err
}

func (r *livingReader) stop() { r.timer.Stop() }

// missing turns the refusal of what is not there into journal.ErrNotFound.
func missing(err error) error {
	if runs.IsMissing(err) {
		return fmt.Errorf("%w: %w", journal.ErrNotFound, err)
	}
	return err
}

// onlyOnBus is the error of what a gateway does not show.
func onlyOnBus(what string) error {
	return fmt.Errorf("%s needs the bus: %w", what, journal.ErrDenied)
}

// Shards is that of [journal.Log].
func (c *Client) Shards() int { return c.shards }

// Append fails: only the gateway appends.
func (c *Client) Append(context.Context, events.Run, uint64, ...journal.Entry) (uint64, error) {
	return 0, onlyOnBus("appending")
}

// MaxBody returns the largest body of an event that a bus takes.
func (c *Client) MaxBody() int { return journal.MaxBody }

// Read is that of [journal.Log].
func (c *Client) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		n := c.mark(run, after)
		records, err := c.Events(ctx, run.Namespace, run.ID, n+1)
		switch {
		case runs.IsMissing(err) && after == 0:
			return
		case err != nil:
			yield(journal.Record{}, missing(err))
			return
		}
		for rec, err := range records {
			if n++; err == nil && rec.Seq <= after {
				continue
			}
			c.setMark(run, rec.Seq, n)
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

// mark returns the number in the run of its record seq, 0 if it is not known.
func (c *Client) mark(run events.Run, seq uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.marks[run]; at.seq == seq {
		return at.n
	}
	return 0
}

func (c *Client) setMark(run events.Run, seq, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marks[run] = mark{seq, n}
}

// Head is that of [journal.Log].
func (c *Client) Head(ctx context.Context, run events.Run) (last journal.Record, err error) {
	state, err := requests.GetRun.Call(ctx, c.API, requests.RunAt{Run: requests.Run{Scope: requests.Scope{Namespace: run.Namespace}, ID: run.ID}})
	if err != nil {
		return last, missing(err)
	}
	records, err := c.Events(ctx, run.Namespace, run.ID, state.N)
	if err != nil {
		return last, missing(err)
	}
	for last, err = range records {
		if err != nil {
			return journal.Record{}, err
		}
	}
	return last, nil
}

// Newest is Head of the run that the filter names. Other filters need the bus.
func (c *Client) Newest(ctx context.Context, _ int, filter journal.Filter) (journal.Record, error) {
	if filter != (journal.Filter{Namespace: filter.Namespace, Run: filter.Run}) || filter.Run == "" {
		return journal.Record{}, onlyOnBus("looking for events")
	}
	return c.Head(ctx, events.NewRun(filter.Namespace, filter.Run, c.shards))
}

// Scan fails: it needs the bus.
func (c *Client) Scan(context.Context, int, journal.Filter, uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) { yield(journal.Record{}, onlyOnBus("reading all events")) }
}

// Last is that of [journal.Log].
func (c *Client) Last(ctx context.Context, shard int) (uint64, error) {
	at, err := c.position(ctx)
	if err != nil || shard >= len(at) {
		return 0, err
	}
	return at[shard], nil
}

// Follow is that of [journal.Log] for a filter that names a run and nothing else. It also yields,
// and ends with, what the gateway refuses for good.
func (c *Client) Follow(ctx context.Context, _ int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if filter != (journal.Filter{Namespace: filter.Namespace, Run: filter.Run}) || filter.Run == "" {
			yield(journal.Record{}, onlyOnBus("following these events"))
			return
		}
		run := events.NewRun(filter.Namespace, filter.Run, c.shards)
		c.yieldRecords(ctx, c.eventsOf(recordsOf(run.Namespace, run.ID, c.mark(run, after)+1)), after, yield)
	}
}

// FollowAll yields the records of all runs of a namespace after a position, in the order of each
// shard, until ctx ends or the gateway refuses.
func (c *Client) FollowAll(ctx context.Context, ns string, from logwalk.Position) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		open := func(ctx context.Context, last string) (*http.Request, error) {
			return requests.FollowEvents.Request(ctx, c.API, requests.AllEvents{
				Scope: requests.Scope{Namespace: ns}, FromSeq: new(from.String()), View: new(requests.ViewRecords), LastEventID: last,
			})
		}
		c.yieldRecords(ctx, open, 0, yield)
	}
}

// errEnough ends a stream whose records nobody wants any more.
var errEnough = errors.New("enough")

func (c *Client) yieldRecords(ctx context.Context, open opener, after uint64, yield func(journal.Record, error) bool) {
	err := c.stream(ctx, open, func(m message) error {
		if m.id == "" || m.event == "state" {
			return nil // it is no record
		}
		rec, err := recordline.Parse(m.data)
		if err != nil {
			return err
		}
		if rec.Seq > after && !yield(rec, nil) {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		yield(journal.Record{}, err)
	}
}

// Watch fails: it needs the bus.
func (c *Client) Watch(journal.Filter, func(journal.Record), func()) (func(), error) {
	return nil, onlyOnBus("watching")
}

// PublishChunk fails: it needs the bus.
func (c *Client) PublishChunk(events.Run, []byte) error { return onlyOnBus("publishing") }

// WatchAsks fails: it needs the bus.
func (c *Client) WatchAsks(func(events.Run)) (func(), error) { return nil, onlyOnBus("watching") }

// AskCatchUp does nothing: the gateway asks for every client that comes.
func (c *Client) AskCatchUp(events.Run) error { return nil }

// WatchChunks is that of [journal.Feed].
func (c *Client) WatchChunks(run events.Run, fn func(data []byte)) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	from := recordsOf(run.Namespace, run.ID, math.MaxInt64)
	from.View = nil
	go func() {
		defer close(ended)
		// The words are a courtesy: without them the reply comes as an event.
		_ = c.stream(ctx, c.eventsOf(from), func(m message) error {
			if m.event == "chunk" || m.event == "tool_call_delta" {
				fn(m.data)
			}
			return nil
		})
	}()
	return func() { cancel(); <-ended }, nil
}

package gateway

import (
	"bytes"
	"context"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// chunkBuffer is how many chunks wait for a slow client before some are lost; the
// client gets their text once it keeps up.
const chunkBuffer = 64

// readAhead is how many records are read ahead of a client, so that what comes at
// the same moment is sent together.
const readAhead = 8

func (g *Gateway) getRunEvents(w http.ResponseWriter, r *http.Request) error {
	want, err := readWish(r)
	if err != nil {
		return err
	}
	if wantsStream(r) {
		return g.streamRun(w, r, want)
	}
	return g.writeEvents(w, r, want)
}

func wantsStream(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			if media, _, err := mime.ParseMediaType(part); err == nil && media == "text/event-stream" {
				return true
			}
		}
	}
	return false
}

// writeEvents answers with JSON lines, to the head.
func (g *Gateway) writeEvents(w http.ResponseWriter, r *http.Request, want wish) error {
	state, err := g.stateBefore(r.Context(), namespace(r), r.PathValue("id"), &want)
	if err != nil {
		return err
	}
	records, err := g.Events(r.Context(), namespace(r), r.PathValue("id"), want.from)
	if err != nil {
		return err
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	began := state != nil
	if began {
		_ = control.SetWriteDeadline(time.Now().Add(g.cfg.WriteTimeout))
		if _, err := w.Write(append(state, '\n')); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	for rec, err := range records {
		if err != nil && !began {
			return err
		}
		if err != nil {
			// Only a broken connection tells the client that this is not all.
			g.cfg.Logger.Warn("events were cut short", "run", r.PathValue("id"), "reason", err)
			panic(http.ErrAbortHandler)
		}
		began = true
		_ = control.SetWriteDeadline(time.Now().Add(g.cfg.WriteTimeout))
		if _, err := w.Write(append(oneLine(rec.Body), '\n')); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	return nil
}

// oneLine returns a body as it can stand on one line. Bodies that Moorebus wrote
// are as they are, and not copied; in JSON that somebody else put into the log a
// line's end is only white space.
func oneLine(body []byte) []byte {
	if !bytes.ContainsAny(body, "\r\n") {
		return slices.Clip(body) // nobody appends to it
	}
	line := slices.Clone(body)
	for i, c := range line {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	return line
}

// streamRun answers with server-sent events, until the run ends.
func (g *Gateway) streamRun(w http.ResponseWriter, r *http.Request, want wish) error {
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.ParseUint(last, 10, 63)
		if err != nil {
			return badRequest(CodeBadParameter, "Last-Event-ID: %.100q is not an event's number", last)
		}
		want.resume(n)
	}
	state, err := g.stateBefore(r.Context(), namespace(r), r.PathValue("id"), &want)
	if err != nil {
		return err
	}
	p, err := g.end(r.Context(), namespace(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		streamHeader(w)
		return nil
	}
	done, err := g.streams.open(r)
	if err != nil {
		return err
	}
	defer done()
	if p.ended() {
		return g.streamEnded(w, r, p.run, want.from, state)
	}
	if want.from <= p.n {
		p = g.start(p.run)
	}
	return g.streamLive(w, r, p, want.from, state)
}

// streamEnded streams the events of a run that has ended; nothing at all (204)
// to a reader that has them, so that it does not come back.
func (g *Gateway) streamEnded(w http.ResponseWriter, r *http.Request, run events.Run, from uint64, state []byte) error {
	p := g.start(run)
	s := g.newStream(w)
	defer s.end()
	if s.state(state, from) != nil {
		return nil // the client is gone
	}
	for rec, err := range g.log.Read(r.Context(), run, 0) {
		if err != nil && !s.began {
			return err
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client resumes where it was
		}
		if stray(rec) {
			continue
		}
		f := newFrame(g.machine.Codec(), rec)
		if p.next(f); p.n >= from && s.event(f.typ(), strconv.FormatUint(p.n, 10), f.line) != nil {
			return nil // the client is gone
		}
		if p.ended() {
			break
		}
	}
	if !s.began {
		w.WriteHeader(http.StatusNoContent)
	}
	return nil
}

// streamLive streams a run's events after p, and its chunks, until it ends.
func (g *Gateway) streamLive(w http.ResponseWriter, r *http.Request, p position, from uint64, state []byte) error {
	ctx, stop := g.streaming(r)
	defer stop()
	chunks := make(chan []byte, chunkBuffer)
	unwatch, err := g.cfg.Feed.WatchChunks(p.run, func(data []byte) {
		select {
		case chunks <- data:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer unwatch()
	heard := livetext.NewListener(g.cfg.Feed, p.run)
	heard.Ask()
	records := make(chan shardRecord, readAhead)
	done := g.goFollow(ctx, p.run.Shard, journal.Filter{Namespace: p.run.Namespace, Run: p.run.ID}, p.seq, records)
	defer func() { stop(); <-done }()

	s := g.newStream(w)
	defer s.end()
	heartbeat := time.NewTicker(g.cfg.Heartbeat)
	defer heartbeat.Stop()
	if s.state(state, from) != nil {
		return nil
	}
	for err := s.comment(); err == nil && !p.ended(); {
		select {
		case rec := <-records:
			if stray(rec.Record) {
				break
			}
			// What was said before the event goes out before it.
			for len(chunks) > 0 && err == nil {
				err = s.chunk(heard, <-chunks)
			}
			f := g.frames.of(rec.shard, rec.Record)
			if news, ok := heard.Rest(f.speech()); ok && err == nil {
				err = s.event(eventChunk, "", news)
			}
			if p.next(f); p.n >= from && err == nil {
				err = s.add(f.typ(), strconv.FormatUint(p.n, 10), f.line)
			}
		case data := <-chunks:
			err = s.chunk(heard, data)
		case <-heartbeat.C:
			err = s.comment()
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err == nil {
			err = s.flushSome(len(records) > 0 && !p.ended())
		}
	}
	return nil
}

// streaming is the context of a stream: it ends with the request, and when the
// gateway does.
func (g *Gateway) streaming(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(r.Context())
	ended := make(chan struct{})
	go func() {
		select {
		case <-g.closing:
			stop()
		case <-ctx.Done():
		}
		close(ended)
	}()
	return ctx, func() { stop(); <-ended }
}

// goFollow follows in a goroutine; done is closed when that has ended.
func (g *Gateway) goFollow(ctx context.Context, shard int, filter journal.Filter, after uint64, out chan<- shardRecord) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		if err := g.follow(ctx, shard, filter, after, out); err != nil && ctx.Err() == nil {
			g.cfg.Logger.Warn("an event stream was cut short", "shard", shard, "reason", err)
		}
	}()
	return done
}

// stream writes server-sent events. Each write has its own deadline, so that a
// client that does not read is dropped. An error means that the client is gone.
type stream struct {
	g       *Gateway
	w       http.ResponseWriter
	control *http.ResponseController
	// buf is what is sent next; nil: nothing.
	buf   *bytes.Buffer
	began bool
}

// streamBuffers are buffers of streams: one that waits for events has none.
var streamBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// out returns the buffer of what is sent next.
func (s *stream) out() *bytes.Buffer {
	if s.buf == nil {
		s.buf = streamBuffers.Get().(*bytes.Buffer)
	}
	return s.buf
}

func (g *Gateway) newStream(w http.ResponseWriter) *stream {
	return &stream{g: g, w: w, control: http.NewResponseController(w)}
}

// streamHeader begins the answer.
func streamHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
}

// end counts the client no more.
func (s *stream) end() {
	if s.began {
		s.g.counts.clients.Add(-1)
	}
}

// comment sends a comment, which keeps the connection open.
func (s *stream) comment() error {
	s.out().WriteString(": moorebus\n\n")
	return s.flush()
}

// chunk sends what a part of a model's text or of a call says that the client has
// not heard.
func (s *stream) chunk(heard *livetext.Listener, data []byte) error {
	news, ok := heard.News(data)
	if !ok {
		return nil
	}
	name := chunkEvent(news)
	if name == "" {
		return nil
	}
	return s.event(name, "", oneLine(news)) // anybody may have said it
}

// event sends one event; an empty id leaves the client's as it is. Data is one
// line.
func (s *stream) event(typ, id string, data []byte) error {
	if err := s.add(typ, id, data); err != nil {
		return err
	}
	return s.flush()
}

// add writes an event to what is sent next. Data that is large is sent as it is,
// which all clients share, and not copied.
func (s *stream) add(typ, id string, data []byte) error {
	buf := s.out()
	buf.WriteString("event: ")
	buf.WriteString(typ)
	if id != "" {
		buf.WriteString("\nid: ")
		buf.WriteString(id)
	}
	buf.WriteString("\ndata: ")
	if len(data) < together {
		buf.Write(data)
	} else {
		err := s.send()
		if err == nil {
			err = s.write(data)
		}
		if err != nil {
			return err
		}
	}
	s.out().WriteString("\n\n")
	return nil
}

// together is how much of what comes at the same moment is sent at once, in bytes.
const together = 32 << 10

// flushSome sends what was added, unless more is there to go with it.
func (s *stream) flushSome(more bool) error {
	if s.buf == nil || more && s.buf.Len() < together {
		return nil
	}
	return s.flush()
}

// flush sends what was added, and has nothing wait on the way.
func (s *stream) flush() error {
	if err := s.send(); err != nil {
		return err
	}
	return s.sent(s.control.Flush())
}

// send writes what was added.
func (s *stream) send() error {
	err := s.write(s.buf.Bytes())
	s.buf.Reset()
	streamBuffers.Put(s.buf)
	s.buf = nil
	return err
}

func (s *stream) write(data []byte) error {
	if !s.began {
		s.began = true
		s.g.counts.clients.Add(1)
		streamHeader(s.w)
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(s.g.cfg.WriteTimeout))
	_, err := s.w.Write(data)
	return s.sent(err)
}

// sent counts a client that could not be written to.
func (s *stream) sent(err error) error {
	if err != nil {
		s.g.counts.dropped.Add(1)
	}
	return err
}

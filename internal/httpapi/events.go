package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// options select a run's events: those from a number on, and before them the state, if it is
// wanted.
type options struct {
	from uint64
	// given says that the request names from.
	given bool
	state bool
	// records has events shown as records of the log.
	records bool
}

// line is an event as the client wants it.
func (o *options) line(f *frame) []byte {
	if o.records {
		return recordLine(f.record)
	}
	return f.line
}

// recordLine is a record on one line, see package recordline.
func recordLine(rec journal.Record) []byte {
	text, err := recordline.Append(nil, rec)
	if err != nil {
		return nil // a subject of the log is text
	}
	return bytes.TrimSuffix(text, []byte("\n"))
}

func optionsOf(in requests.EventsOf) (options, error) {
	o := options{from: max(in.From, 1), given: in.From > 0}
	if in.View != nil {
		o.state, o.records = *in.View == requests.ViewState, *in.View == requests.ViewRecords
		if !o.state && !o.records {
			return o, route.BadParameter("view: %.100q is not a view; there are: state, records", *in.View)
		}
	}
	return o, nil
}

// stateBefore returns the state before the wanted events, or nil if it is not wanted. A request
// without from gets the events after the head.
func (s *Server) stateBefore(ctx context.Context, ns, id string, o *options) ([]byte, error) {
	if !o.state {
		return nil, nil
	}
	var state runs.RunState
	var err error
	switch {
	case !o.given:
		if state, err = s.control.State(ctx, ns, id, 0); err == nil {
			o.from = state.N + 1
		}
	case o.from <= 1:
		err = s.control.View(ctx, ns, id, func(run *runlog.Run) (err error) {
			state, err = runs.NewRunState(s.control.Store.Machine().Initial(run.ID.ID))
			return err
		})
	default:
		state, err = s.control.State(ctx, ns, id, o.from-1)
		if refusal.Is(err, refusal.CodeBadParameter) {
			err = route.BadParameter("from: the run has no state before event %d yet", o.from)
		}
	}
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(state)
	if err != nil {
		return nil, refusal.Fault("state of run %s: %w", id, err)
	}
	return data, nil
}

func (s *Server) getRunEvents(w http.ResponseWriter, r *http.Request, in requests.EventsOf) error {
	o, err := optionsOf(in)
	if err != nil {
		return err
	}
	if wantsStream(r) {
		return s.streamRun(w, r, in, o)
	}
	return s.writeEvents(w, r, in.Run, o)
}

func wantsStream(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			if media, _, err := mime.ParseMediaType(part); err == nil && media == requests.EventStream {
				return true
			}
		}
	}
	return false
}

// writeEvents answers with JSON lines, to the head.
func (s *Server) writeEvents(w http.ResponseWriter, r *http.Request, run requests.Run, o options) error {
	ns, id := run.Namespace, run.ID
	state, err := s.stateBefore(r.Context(), ns, id, &o)
	if err != nil {
		return err
	}
	records, err := s.control.Events(r.Context(), ns, id, o.from)
	if err != nil {
		return err
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", requests.Lines)
	began := false
	write := func(line []byte) {
		began = true
		_ = control.SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout))
		if _, err := w.Write(append(line, '\n')); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if state != nil {
		write(state)
	}
	for rec, err := range records {
		if err != nil && !began {
			return err
		}
		if err != nil {
			// Only a broken connection shows the client that events are missing.
			s.cfg.Logger.Warn("an answer with events was interrupted", "run", id, "reason", err)
			panic(http.ErrAbortHandler)
		}
		if o.records {
			write(recordLine(rec))
		} else {
			write(sse.OneLine(rec.Body))
		}
	}
	return nil
}

// streamRun answers with server-sent events, until the run ends.
func (s *Server) streamRun(w http.ResponseWriter, r *http.Request, in requests.EventsOf, o options) error {
	if last := in.LastEventID; last != "" {
		n, err := strconv.ParseUint(last, 10, 63)
		if err != nil {
			return route.BadParameter("Last-Event-ID: %.100q is not an event's number", last)
		}
		o = options{from: n + 1, given: true, records: o.records} // the client has the state already
	}
	state, err := s.stateBefore(r.Context(), in.Namespace, in.ID, &o)
	if err != nil {
		return err
	}
	var t tail
	var seq uint64
	err = s.control.View(r.Context(), in.Namespace, in.ID, func(run *runlog.Run) error {
		mem := run.Memory()
		t, seq = s.newTail(run.ID), run.Seq()
		t.n, t.head, t.state, t.poisoned = mem.N, mem.Control.Head, mem.State, mem.Control.Poison != nil
		return nil
	})
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		sse.WriteHeader(w)
		return nil
	}
	done, err := s.streams.Open(r)
	if err != nil {
		return err
	}
	defer done()
	if t.ended() {
		return s.streamEnded(w, r, t.run, o, state)
	}
	if o.from <= t.n {
		t, seq = s.newTail(t.run), 0
	}
	return s.streamLive(w, r, t, seq, o, state)
}

// streamEnded streams the events of a run that has ended. A client that has them all gets 204,
// so it does not reconnect.
func (s *Server) streamEnded(w http.ResponseWriter, r *http.Request, run events.Run, o options, state []byte) error {
	t := s.newTail(run)
	st := s.streams.Stream(w)
	defer st.Stop()
	if sendState(st, state, o.from) != nil {
		return nil // the client is gone
	}
	for rec, err := range s.control.Log.Read(r.Context(), run, 0) {
		if err != nil && !st.Began() {
			return err
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client reconnects and resumes
		}
		if runs.NotOfLog(rec) {
			continue
		}
		f := newFrame(s.codec(), rec)
		if t.advance(f); t.n >= o.from && st.Event(f.typ(), strconv.FormatUint(t.n, 10), o.line(f)) != nil {
			return nil // the client is gone
		}
		if t.ended() {
			break
		}
	}
	if !st.Began() {
		w.WriteHeader(http.StatusNoContent)
	}
	return nil
}

// streamLive streams a run's chunks, and its events after seq, until the run ends. t is the
// run's tail at seq.
func (s *Server) streamLive(w http.ResponseWriter, r *http.Request, t tail, seq uint64, o options, state []byte) error {
	ctx, stop := s.streams.Context(r)
	defer stop()
	chunks, stopChunks, err := livetext.Watch(s.cfg.Feed, t.run)
	if err != nil {
		return err
	}
	defer stopChunks()
	heard := livetext.NewListener(s.cfg.Feed, t.run)
	heard.Ask()
	records := make(chan sse.Record, sse.ReadAhead)
	done := s.streams.Follow(ctx, t.run.Shard, journal.Filter{Namespace: t.run.Namespace, Run: t.run.ID}, seq, records)
	defer func() { stop(); <-done }()

	st := s.streams.Stream(w)
	defer st.Stop()
	heartbeat := s.streams.Heartbeat()
	defer heartbeat.Stop()
	if sendState(st, state, o.from) != nil {
		return nil
	}
	waiting := asks{s: s, ns: t.run.Namespace, id: t.run.ID}
	err = st.Comment()
	if seq > 0 && err == nil { // else the records tell
		waiting.see(ctx, nil)
		err = waiting.tell(ctx, st, &t)
	}
	for err == nil && !t.ended() {
		select {
		case rec := <-records:
			if runs.NotOfLog(rec.Record) {
				break
			}
			// Chunks that came before the event are sent before it.
			for len(chunks) > 0 && err == nil {
				err = sendChunk(st, heard, <-chunks)
			}
			f := s.frames.of(rec.Shard, rec.Record)
			if news, ok := heard.Rest(f.messageText()); ok && err == nil {
				err = st.Event(eventChunk, "", news)
			}
			if t.advance(f); t.n >= o.from && err == nil {
				err = st.Add(f.typ(), strconv.FormatUint(t.n, 10), o.line(f))
			}
			if err == nil {
				if f.event != nil {
					waiting.see(ctx, f.event)
				}
				err = waiting.tell(ctx, st, &t)
			}
		case data := <-chunks:
			err = sendChunk(st, heard, data)
		case <-heartbeat.C:
			if err = st.Comment(); err == nil {
				err = waiting.again(ctx, st, &t)
			}
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err == nil {
			err = st.FlushSome(len(records) > 0 && !t.ended())
		}
	}
	return nil
}

package httpapi

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// span is a range of a run's events, both included; to 0 is the last one.
type span struct {
	run      events.Run
	from, to uint64
	// told says that the client has the memory after event from.
	told bool
}

// getStates answers with the run's memory after an event, and the patches that follow.
func (s *Server) getStates(w http.ResponseWriter, r *http.Request, in requests.StatesOf) error {
	if wantsStream(r) {
		return s.streamStates(w, r, in)
	}
	return s.writeStates(w, r, in)
}

// writeStates answers with JSON lines, up to the head.
func (s *Server) writeStates(w http.ResponseWriter, r *http.Request, in requests.StatesOf) error {
	states, err := s.control.States(r.Context(), in.Namespace, in.ID, max(in.From, 1), in.To)
	if err != nil {
		return err
	}
	out := newLines(w, r, s.cfg.WriteTimeout)
	for now, err := range states {
		if err == nil {
			err = out.encoder.Encode(now)
		}
		if err != nil && !out.began {
			return err
		}
		if err != nil {
			// Only a broken connection shows the client that events are missing.
			s.cfg.Logger.Warn("an answer with states was interrupted", "run", in.ID, "reason", err)
			panic(http.ErrAbortHandler)
		}
	}
	out.close()
	return nil
}

// lines writes JSON lines, compressed if the client takes that.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	began   bool
	zip     *gzip.Writer
	encoder *json.Encoder
}

func newLines(w http.ResponseWriter, r *http.Request, timeout time.Duration) *lines {
	l := &lines{w: w, control: http.NewResponseController(w), timeout: timeout}
	w.Header().Set("Content-Type", requests.Lines)
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	var to io.Writer = l
	if takesGzip(r) {
		l.zip, _ = gzip.NewWriterLevel(l, gzip.BestSpeed) // the level is known
		to = l.zip
	}
	l.encoder = json.NewEncoder(to)
	l.encoder.SetEscapeHTML(false)
	return l
}

// Write writes to the client. Each write has a deadline.
func (l *lines) Write(data []byte) (int, error) {
	if !l.began && l.zip != nil {
		l.w.Header().Set("Content-Encoding", "gzip")
	}
	l.began = true
	_ = l.control.SetWriteDeadline(time.Now().Add(l.timeout))
	return l.w.Write(data)
}

func (l *lines) close() {
	if l.zip != nil {
		_ = l.zip.Close() // a client that is gone needs no error
	}
}

func takesGzip(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(accept, ",") {
			name, params, err := mime.ParseMediaType(part)
			if quality, err2 := strconv.ParseFloat(params["q"], 64); err == nil && name == "gzip" && (err2 != nil || quality > 0) {
				return true
			}
		}
	}
	return false
}

// streamStates answers with server-sent events, until the run ends or event to.
func (s *Server) streamStates(w http.ResponseWriter, r *http.Request, in requests.StatesOf) error {
	want := span{from: max(in.From, 1), to: in.To}
	if last := in.LastEventID; last != "" {
		n, err := strconv.ParseUint(last, 10, 63)
		if err != nil || n == 0 {
			return route.BadParameter("Last-Event-ID: %.100q is not an event's number", last)
		}
		want.from, want.told = n, true
	}
	all := false
	err := s.control.View(r.Context(), in.Namespace, in.ID, func(run *runlog.Run) error {
		mem := run.Memory()
		want.run = run.ID
		over := s.control.Table.Terminal(mem.State)
		all = want.told && (over && want.from >= mem.N || want.to > 0 && want.from >= want.to)
		from, to := want.from, cmp.Or(want.to, mem.N)
		if want.told {
			from = min(from, to, mem.N)
		}
		if !over && from <= mem.N {
			return record.CheckRange(from, to, max(mem.N, to)) // what is not there is to come
		}
		return record.CheckRange(from, to, mem.N)
	})
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		sse.WriteHeader(w)
		return nil
	}
	if all {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	done, err := s.streams.Open(r)
	if err != nil {
		return err
	}
	defer done()
	return s.followStates(w, r, want)
}

func (s *Server) followStates(w http.ResponseWriter, r *http.Request, want span) error {
	ctx, stop := s.streams.Context(r)
	defer stop()
	records := make(chan sse.Record, sse.ReadAhead)
	followed := s.streams.Follow(ctx, want.run.Shard, journal.Filter{Namespace: want.run.Namespace, Run: want.run.ID}, 0, records)
	defer func() { stop(); <-followed }()
	st := s.streams.Stream(w)
	defer st.Stop()
	heartbeat := s.streams.Heartbeat()
	defer heartbeat.Stop()
	moments := s.control.Moments(want.run, want.from, want.told)
	err := st.Comment()
	for over := false; err == nil && !over; {
		select {
		case rec := <-records:
			if err = sendMoment(ctx, st, moments, rec.Record); err == nil {
				mem := moments.Memory()
				over = s.control.Table.Terminal(mem.State) || want.to > 0 && mem.N >= want.to
				err = st.FlushSome(len(records) > 0 && !over)
			}
		case <-heartbeat.C:
			err = st.Comment()
		case <-followed:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Debug("a stream of states ended early", "run", want.run.ID, "reason", err)
	}
	return nil // the client is gone, or reconnects and gets the error
}

// sendMoment adds the moment after a record to what is sent.
func sendMoment(ctx context.Context, st *sse.Stream, moments *record.Moments, rec journal.Record) error {
	now, err := moments.Next(ctx, rec)
	if now == nil || err != nil {
		return err
	}
	data, err := json.Marshal(now)
	if err != nil {
		return refusal.Fault("states: %w", err)
	}
	kind := "delta"
	if now.Memory != nil {
		kind = "memory"
	}
	return st.Add(kind, strconv.FormatUint(now.N, 10), data)
}

package agui

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// RunHeader is the header of an answer that names the thread's run.
const RunHeader = "Moorebus-Run"

const (
	// openTimeout limits the time until a stream begins.
	openTimeout = 30 * time.Second
	// liveWait is how long a client that joins waits for the text that a model is writing.
	liveWait = 250 * time.Millisecond
)

// Config configures a [Face]. Logger and Leases may be nil, and Now is time.Now by default;
// everything else is required. Without leases no thread is forgotten.
type Config struct {
	Control *control.Controller
	Feed    journal.Feed
	KV      kv.Store
	Leases  ports.Leases
	Logger  *slog.Logger
	Now     func() time.Time
}

// Face has the requests of the protocol. It is a [route.Face].
type Face struct{ cfg Config }

// New returns a Face.
func New(cfg Config) *Face {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Face{cfg}
}

// server answers requests with streams.
type server struct {
	Config
	streams *sse.Streams
}

// Routes returns the requests, whose answers are among streams.
func (f *Face) Routes(streams *sse.Streams) []route.Route {
	s := &server{f.cfg, streams}
	media := []string{"text/event-stream"}
	return []route.Route{
		{
			Pattern: "POST /v1/ag-ui/{agent}", Handle: s.post, Summary: "Opens a turn of an AG-UI thread and streams it. The same turn again streams it again.", Body: Input{}, OpenBody: true, Streams: media,
			Codes: slices.Concat(route.PinCodes, route.InputCodes, route.DecisionCodes, []string{
				refusal.CodeAgentNotFound, refusal.CodeTurnOpen, refusal.CodeInterrupted, refusal.CodeToolsChanged, refusal.CodeTooManyStreams, refusal.CodeBadParameter,
			}),
			Example: `{"threadId": "thread-1", "runId": "turn-1", "state": {}, "messages": [{"id": "m1", "role": "user", "content": "Hello."}], "tools": [], "context": [], "forwardedProps": {}}`,
		},
		{
			Pattern: "GET /v1/ag-ui/{agent}/{threadId}", Handle: s.get, Summary: "Joins an AG-UI thread after an event, and streams what follows.", Streams: media,
			Query:   []route.Parameter{{Name: "from", Description: "The number of the last event that the client has. Default: the newest."}},
			Headers: []route.Parameter{{Name: "Last-Event-ID", Description: "As from. It goes before it."}},
			Codes:   slices.Concat(route.RunCodes, []string{refusal.CodeAgentNotFound, refusal.CodeThreadNotFound, refusal.CodeTooManyStreams}),
		},
	}
}

func (s *server) post(w http.ResponseWriter, r *http.Request) error {
	if _, err := route.Parameters(r); err != nil {
		return err
	}
	data, err := (&route.Request{Request: r, W: w}).Body()
	if err != nil {
		return err
	}
	in, err := parse(data)
	if err != nil {
		return err
	}
	of, err := s.ownerOf(r)
	if err != nil {
		return err
	}
	done, err := s.streams.Open(r) // before anything is appended
	if err != nil {
		return err
	}
	defer done()
	ctx, stop := context.WithTimeout(r.Context(), openTimeout)
	defer stop()
	var p place
	err = s.Control.WhileQuorum(ctx, func(ctx context.Context) error {
		p, err = s.open(ctx, of, in)
		return err
	})
	if err != nil {
		return err
	}
	req := &Request{}
	for _, m := range in.messages {
		req.Messages = append(req.Messages, Message{ID: m.ID, Role: m.Role, Raw: m.raw})
	}
	if p.again {
		t, err := s.history(ctx, p.run)
		if err != nil {
			return err
		}
		req.Made = map[string]bool{}
		for _, m := range t.script.messages {
			req.Made[m.ID] = true
		}
	}
	head, err := s.head(ctx, p.run)
	if err != nil {
		return err
	}
	return s.stream(w, r, follower{run: p.run, t: NewTranslator(s.Control.Table, in.ThreadID, req), after: p.first - 1, head: head})
}

func (s *server) get(w http.ResponseWriter, r *http.Request) error {
	values, err := route.Parameters(r, "from")
	if err != nil {
		return err
	}
	of, err := s.ownerOf(r)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(r.Context(), openTimeout)
	defer stop()
	id := r.PathValue("threadId")
	t, _, err := s.thread(ctx, of, id)
	if err != nil {
		return err
	}
	var head uint64
	if len(t.Runs) > 0 {
		head, err = s.head(ctx, s.Control.Store.Place(of.Namespace, t.Runs[len(t.Runs)-1]))
	}
	if len(t.Runs) == 0 || runs.IsMissing(err) {
		return refusal.New(refusal.NotFound, refusal.CodeThreadNotFound, "agent %q has no thread %.100q in this namespace", of.Agent, id)
	}
	if err != nil {
		return err
	}
	run := s.Control.Store.Place(of.Namespace, t.Runs[len(t.Runs)-1])
	from, given := values["from"]
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		from, given = last, true
	}
	after := head
	if given {
		if after, err = strconv.ParseUint(from, 10, 63); err != nil || after > head {
			return route.BadParameter("from: %.100q is not the number of an event; the run has %d", from, head)
		}
	}
	if r.Method == http.MethodHead {
		w.Header().Set(RunHeader, run.ID)
		sse.WriteHeader(w)
		return nil
	}
	done, err := s.streams.Open(r)
	if err != nil {
		return err
	}
	defer done()
	return s.stream(w, r, follower{run: run, t: NewTranslator(s.Control.Table, id, nil), after: after, head: head, joins: true})
}

func (s *server) ownerOf(r *http.Request) (owner, error) {
	ns, err := s.Control.CheckNamespace(route.Namespace(r))
	of := owner{Namespace: ns, Agent: r.PathValue("agent")}
	if err == nil && !events.ValidToken(of.Agent) {
		err = refusal.New(refusal.NotFound, refusal.CodeAgentNotFound, "there is no agent %.100q in this namespace", of.Agent)
	}
	return of, err
}

func (s *server) head(ctx context.Context, at events.Run) (n uint64, err error) {
	err = s.Control.View(ctx, at.Namespace, at.ID, func(run *runlog.Run) error {
		n = run.Memory().N
		return nil
	})
	return n, err
}

// follower follows a run for one client: a turn from the event behind after on, or, if it
// joins, everything behind after. head is the run's number of events at the beginning.
type follower struct {
	run         events.Run
	t           *Translator
	after, head uint64
	joins       bool

	log   journal.Log
	fold  *runlog.Fold
	heard *livetext.Listener
	// seq is the last record that was folded. held is live text of the message writing, which
	// is translated when the record needs was folded.
	seq, needs uint64
	writing    string
	held       []livetext.Chunk
	// began says that events may come out.
	began bool
	below *watcher
}

// stream answers with the events of a run, until the turn is over.
func (s *server) stream(w http.ResponseWriter, r *http.Request, f follower) error {
	ctx, stop := s.streams.Context(r)
	defer stop()
	chunks, stopChunks, err := livetext.Watch(s.Feed, f.run)
	if err != nil {
		return err
	}
	defer stopChunks()
	f.heard = livetext.NewListener(s.Feed, f.run)
	f.log = s.Control.Log
	f.fold = runlog.NewFold(f.log, s.Control.Store.Machine(), f.run)
	records := make(chan sse.Record, sse.ReadAhead)
	f.below = s.newWatcher()
	defer f.below.all.Wait()
	followed := s.streams.Follow(ctx, f.run.Shard, journal.Filter{Namespace: f.run.Namespace, Run: f.run.ID}, 0, records)
	defer func() { stop(); <-followed }()

	w.Header().Set(RunHeader, f.run.ID)
	st := s.streams.Stream(w)
	defer st.Stop()
	heartbeat := s.streams.Heartbeat()
	defer heartbeat.Stop()
	err = st.Comment()
	if err == nil {
		err = f.reach(ctx, chunks)
	}
	for over := false; err == nil && !over; {
		select {
		case rec := <-records:
			for len(chunks) > 0 {
				f.chunk(ctx, <-chunks)
			}
			f.seq = rec.Seq
			if err = f.t.record(ctx, f.fold, rec.Record); err == nil {
				err = f.reach(ctx, chunks)
			}
			message, _ := livetext.MessageOf(rec.Body)
			f.heard.Over(message)
			f.release()
			s.suspend(ctx, &f)
		case <-f.below.changed:
			s.suspend(ctx, &f)
		case data := <-chunks:
			f.chunk(ctx, data)
		case <-heartbeat.C:
			s.suspend(ctx, &f)
			err = st.Comment()
		case <-followed:
			return nil
		case <-ctx.Done():
			return nil
		}
		over = f.over()
		if err == nil {
			err = send(st, f.t.Take(), len(records) > 0 && !over)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.Logger.Debug("a stream of AG-UI ended early", "run", f.run.ID, "reason", err)
	}
	return nil
}

// send sends events. more says that others follow at once.
func send(st *sse.Stream, all []Event, more bool) error {
	for _, e := range all {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		id := ""
		if e.N > 0 {
			id = strconv.FormatUint(e.N, 10)
		}
		if err := st.Add("", id, data); err != nil {
			return err
		}
	}
	return st.FlushSome(more)
}

// reach lets events come out if the client has all events up to now.
func (f *follower) reach(ctx context.Context, chunks <-chan []byte) error {
	mem := f.fold.Memory()
	if mem.N == f.head {
		f.heard.Ask()
	}
	if f.began || mem.N < f.after {
		return nil
	}
	f.began = true
	if !f.joins {
		f.t.Answer()
		return nil
	}
	if mem.N == f.head && mem.State == events.Planning {
		f.catchUp(ctx, chunks)
	}
	return f.t.Join(mem, mem.N < f.head)
}

// catchUp waits a moment for the text that the model has written.
func (f *follower) catchUp(ctx context.Context, chunks <-chan []byte) {
	wait := time.NewTimer(liveWait)
	defer wait.Stop()
	for f.t.live.id == "" {
		select {
		case data := <-chunks:
			f.chunk(ctx, data)
		case <-wait.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// chunk translates live text, if the run was read that far.
func (f *follower) chunk(ctx context.Context, data []byte) {
	if f.fold.Memory().N < f.head {
		return
	}
	c, ok := f.heard.Hear(data)
	if !ok {
		return
	}
	if c.MessageID != f.writing {
		// Text may be faster than the events before it, which are in the log by now.
		head, err := f.log.Head(ctx, f.run)
		if err != nil {
			return // the reply's event has the text
		}
		f.writing, f.needs, f.held = c.MessageID, head.Seq, nil
	}
	f.held = append(f.held, c)
	f.release()
}

// release translates the live text if the events before it are known.
func (f *follower) release() {
	if f.seq < f.needs || f.fold.Memory().State != events.Planning {
		return
	}
	for _, c := range f.held {
		f.t.Chunk(c)
	}
	f.held = nil
}

// over reports whether the client was sent all there is.
func (f *follower) over() bool {
	n := f.fold.Memory().N
	switch {
	case !f.began || f.t.Open():
		return false
	case f.joins:
		return n >= f.head
	}
	return n > f.after
}

var _ route.Face = (*Face)(nil)

// On returns the Face of a gateway on a bus.
func On(c *control.Controller, bus journal.Bus, logger *slog.Logger) *Face {
	leases, _ := bus.(ports.Leases) // none: nothing is forgotten
	return New(Config{Control: c, Feed: bus, KV: bus, Leases: leases, Logger: logger})
}

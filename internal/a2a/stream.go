package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// postSend sends a message and answers with the task.
func (f *Face) postSend(w http.ResponseWriter, r *http.Request) error {
	data, err := (&route.Request{Request: r, W: w}).Body()
	if err != nil {
		return err
	}
	answer, err := f.sendMessage(r, data)
	if err != nil {
		return err
	}
	return write(w, http.StatusOK, mediaType, answer)
}

// sendMessage carries out a request that sends a message, and returns the task.
func (f *Face) sendMessage(r *http.Request, data []byte) (any, error) {
	s, to, err := f.deliver(r, data)
	if err != nil {
		return nil, err
	}
	var t task1
	if s.Configuration.ReturnImmediately {
		t, err = f.whole(r.Context(), to, s.Configuration.HistoryLength)
	} else {
		t, err = f.await(r, to, s.Configuration.HistoryLength)
	}
	return sendResponse{&t}, err
}

// deliver reads a request and sends its message.
func (f *Face) deliver(r *http.Request, data []byte) (*sendRequest, target, error) {
	ctx, stop := context.WithTimeout(r.Context(), requestTimeout)
	defer stop()
	s, err := readSend(data)
	if err != nil {
		return nil, target{}, err
	}
	push := s.Configuration.Push
	if push != nil { // what is wrong with it is said before anything happens
		if _, err := f.push(ctx, push); err != nil {
			return nil, target{}, err
		}
	}
	var to target
	err = f.cfg.Control.WhileQuorum(ctx, func(ctx context.Context) error {
		to, err = f.send(ctx, r, s.Message)
		if err == nil && push != nil {
			_, err = f.putPush(ctx, to, *push, to.before)
		}
		return err
	})
	return s, to, err
}

// await waits until a task ends or needs input. It counts as a stream.
func (f *Face) await(r *http.Request, to target, history *int) (t task1, err error) {
	done, err := f.streams.Open(r)
	if err != nil {
		return t, err
	}
	defer done()
	ctx, stop := f.streams.Context(r)
	defer stop()
	l := f.follow(ctx, to)
	defer func() { stop(); <-l.done }()
	for {
		select {
		case rec := <-l.records:
			if err := l.apply(ctx, rec); err != nil {
				return t, err
			}
			if mem := l.fold.Memory(); mem.N >= to.n && f.rests(mem, l.names) {
				t = f.taskOf(mem, l.names, history)
				f.fill(ctx, t.Artifacts)
				return t, nil
			}
		case <-l.done:
			return t, refusal.New(refusal.Unavailable, refusal.CodeUnavailable,
				"the gateway no longer waits for the task; get it, or send the same message again").With(map[string]any{"run": to.run})
		}
	}
}

// rests reports whether nothing happens to a task without its client.
func (f *Face) rests(mem *reducer.Memory, c conversation) bool {
	state := f.statusOf(mem, c).State
	return state.terminal() || state == inputRequired
}

// ends reports whether a task has ended.
func (f *Face) ends(mem *reducer.Memory, c conversation) bool {
	return f.statusOf(mem, c).State.terminal()
}

// follower folds a run from its first event on.
type follower struct {
	fold    *runlog.Fold
	names   conversation
	records chan sse.Record
	done    chan struct{}
}

func (f *Face) follow(ctx context.Context, to target) *follower {
	c := f.cfg.Control
	run := c.Store.Place(to.ns, to.run)
	l := &follower{
		fold: runlog.NewFold(c.Log, c.Store.Machine(), run), names: conversationOf(to.run, to.base, nil), records: make(chan sse.Record, sse.ReadAhead),
	}
	l.done = f.streams.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0, l.records)
	return l
}

// apply folds the next record.
func (l *follower) apply(ctx context.Context, rec sse.Record) error {
	if runs.NotOfLog(rec.Record) {
		return nil
	}
	e, err := l.fold.Apply(ctx, rec.Record)
	if err != nil && !runlog.Refused(err) {
		return err
	}
	if e != nil && e.N == 1 {
		l.names = conversationOf(l.names.run, l.names.base, e.Data)
	}
	return nil
}

// postStream sends a message and streams its task until it ends or needs input.
func (f *Face) postStream(w http.ResponseWriter, r *http.Request) error {
	data, err := (&route.Request{Request: r, W: w}).Body()
	if err != nil {
		return err
	}
	return f.streamMessage(w, r, data, plain)
}

// streamMessage carries out a request that sends a message and streams its task.
func (f *Face) streamMessage(w http.ResponseWriter, r *http.Request, data []byte, as form) error {
	s, to, err := f.deliver(r, data)
	if err != nil {
		return err
	}
	return f.stream(w, r, to, s.Configuration.HistoryLength, f.rests, as)
}

// form is how a binding has an update.
type form func(u update) any

// plain is the form of HTTP+JSON.
func plain(u update) any { return u }

// subscribe streams a task until it ends. The header Last-Event-ID resumes a stream: it begins
// with the task as it was then. Without it, a task that has ended has no stream.
func (f *Face) subscribe(w http.ResponseWriter, r *http.Request, id string, as form) error {
	to := targetOf(r, id)
	var err error
	if to.ns, err = f.cfg.Control.CheckNamespace(to.ns); err != nil {
		return err
	}
	err = f.view(r.Context(), to.ns, to.agent, id, func(run *runlog.Run) error {
		last := r.Header.Get("Last-Event-ID")
		if last == "" {
			if to.n = run.Memory().N; run.Terminal() {
				return refusal.New(refusal.Invalid, refusal.CodeUnsupported, "the task has ended; get it instead").With(map[string]any{"run": id})
			}
			return nil
		}
		n, err := strconv.ParseUint(last, 10, 63)
		if err != nil || n == 0 || n > run.Memory().N {
			return route.BadParameter("Last-Event-ID: %.100q is not an event's number", last)
		}
		to.n = n
		return nil
	})
	if err != nil {
		return err
	}
	return f.stream(w, r, to, nil, f.ends, as)
}

// stream sends a task as it is at event n, and what changes, until over.
func (f *Face) stream(w http.ResponseWriter, r *http.Request, to target, history *int, over func(*reducer.Memory, conversation) bool, as form) error {
	var err error
	if to.ns, err = f.cfg.Control.CheckNamespace(to.ns); err != nil {
		return err
	}
	done, err := f.streams.Open(r)
	if err != nil {
		return err
	}
	defer done()
	ctx, stop := f.streams.Context(r)
	defer stop()
	place := f.cfg.Control.Store.Place(to.ns, to.run)
	chunks, stopChunks, err := livetext.Watch(f.cfg.Feed, place)
	if err != nil {
		return err
	}
	defer stopChunks()
	l := f.follow(ctx, to)
	defer func() { stop(); <-l.done }()
	s := &sender{f: f, to: to, history: history, over: over, follower: l, as: as, sent: map[string]bool{}, heard: livetext.NewListener(f.cfg.Feed, place), out: f.streams.Stream(w)}
	s.heard.Ask()
	defer s.out.Stop()
	heartbeat := f.streams.Heartbeat()
	defer heartbeat.Stop()
	for err := s.out.Comment(); err == nil && !s.ended; {
		var live <-chan []byte // text waits for the task, which comes first
		if s.began {
			live = chunks
		}
		select {
		case rec := <-l.records:
			for len(live) > 0 && err == nil { // what came before the event
				err = s.chunk(<-live)
			}
			if err == nil {
				err = s.record(ctx, rec)
			}
		case data := <-live:
			err = s.chunk(data)
		case <-heartbeat.C:
			err = s.out.Comment()
		case <-l.done:
			return nil
		}
		if err == nil {
			err = s.out.FlushSome(len(l.records) > 0 && !s.ended)
		}
	}
	return nil
}

// sender writes one stream. Its status is what the client knows.
type sender struct {
	*follower
	f       *Face
	to      target
	history *int
	over    func(*reducer.Memory, conversation) bool
	as      form
	heard   *livetext.Listener
	out     *sse.Stream

	began, ended bool
	// sent are the files that the client has, by their artifacts.
	sent    map[string]bool
	known   status
	replies int
	// wrote is the message whose text the answer's artifact holds so far, streamed its length.
	wrote    string
	streamed int
}

// record sends what a record changes.
func (s *sender) record(ctx context.Context, rec sse.Record) error {
	if err := s.apply(ctx, rec); err != nil {
		return err
	}
	mem := s.fold.Memory()
	if message, text := livetext.MessageOf(rec.Body); message != "" && s.began {
		if news, ok := s.heard.Rest(message, text); ok {
			var c livetext.Chunk
			if json.Unmarshal(news, &c) == nil {
				if err := s.text(c); err != nil {
					return err
				}
			}
		}
	}
	if mem.N < s.to.n {
		return nil
	}
	now := s.f.statusOf(mem, s.names)
	defer func() { s.known, s.ended = now, s.over(mem, s.names); s.replies = len(mem.Messages) }()
	if !s.began {
		s.began = true
		t := s.f.taskOf(mem, s.names, s.history)
		for _, a := range t.Artifacts {
			s.sent[a.ArtifactID] = true
		}
		s.f.fill(ctx, t.Artifacts)
		return s.add(mem.N, update{Task: &t})
	}
	if err := s.files(ctx, mem); err != nil {
		return err
	}
	if now.State.terminal() {
		if err := s.answer(mem); err != nil {
			return err
		}
	}
	if last := lastReply(mem); last != nil && now.State == working && len(mem.Messages) > s.replies {
		now.Message = &message{MessageID: last.ID, ContextID: s.names.contextID, TaskID: s.names.run, Role: roleAgent, Parts: []part{textPart(last.Content)}}
	}
	if now.State == s.known.State && (now.Message == nil || s.known.Message != nil && now.Message.MessageID == s.known.Message.MessageID) {
		return nil
	}
	return s.add(mem.N, update{Status: s.status(now)})
}

func (s *sender) status(now status) *statusUpdate {
	return &statusUpdate{TaskID: s.names.run, ContextID: s.names.contextID, Status: now}
}

// answer sends the final answer. A client that has its text gets the end only.
func (s *sender) answer(mem *reducer.Memory) error {
	for _, a := range answerOf(mem) {
		u := artifactUpdate{TaskID: s.names.run, ContextID: s.names.contextID, Artifact: a, LastChunk: true}
		if last := lastReply(mem); last != nil && last.ID == s.wrote && s.streamed == len(*mem.FinalAnswer) && a.Parts[0].Text != nil {
			u.Append, u.Artifact.Parts = true, []part{textPart("")}
		}
		if err := s.add(mem.N, update{Artifact: &u}); err != nil {
			return err
		}
	}
	return nil
}

// files sends the files that the client does not have.
func (s *sender) files(ctx context.Context, mem *reducer.Memory) error {
	files := filesOf(mem, s.names.base)
	files = slices.DeleteFunc(files, func(a artifact) bool { return s.sent[a.ArtifactID] })
	s.f.fill(ctx, files)
	for _, a := range files {
		s.sent[a.ArtifactID] = true
		u := artifactUpdate{TaskID: s.names.run, ContextID: s.names.contextID, Artifact: a, LastChunk: true}
		if err := s.add(mem.N, update{Artifact: &u}); err != nil {
			return err
		}
	}
	return nil
}

// chunk sends a piece of text that the model is writing.
func (s *sender) chunk(data []byte) error {
	c, ok := s.heard.Hear(data)
	if !ok || c.Kind != livetext.KindText {
		return nil
	}
	return s.text(c)
}

// text sends a piece of text: in a chat as a message of the status, otherwise as a part of the
// answer. Text that turns out to be none of the answer is replaced by it.
func (s *sender) text(c livetext.Chunk) error {
	mem := s.fold.Memory()
	if len(mem.Control.Agent.OutputSchema) > 0 {
		return nil // pieces of JSON are no data
	}
	if mem.Mode == events.ModeChat {
		now := status{State: working, Message: &message{
			MessageID: fmt.Sprintf("%s/%d", c.MessageID, c.Offset), ContextID: s.names.contextID, TaskID: s.names.run,
			Role: roleAgent, Parts: []part{textPart(c.Text)},
		}}
		u := s.status(now)
		u.Metadata = map[string]any{"moorebus": map[string]any{"chunk_of": c.MessageID, "offset": c.Offset}}
		return s.flush(update{Status: u})
	}
	switch {
	case c.Offset == 0:
		s.wrote, s.streamed = c.MessageID, 0
	case c.MessageID != s.wrote || c.Offset != s.streamed:
		return nil // its beginning was missed
	}
	s.streamed += len(c.Text)
	return s.flush(update{Artifact: &artifactUpdate{
		TaskID: s.names.run, ContextID: s.names.contextID, Append: c.Offset > 0,
		Artifact: artifact{ArtifactID: answerID, Name: answerID, Parts: []part{textPart(c.Text)}},
	}})
}

// add adds what an event of the run came to.
func (s *sender) add(n uint64, u update) error {
	data, err := json.Marshal(s.as(u))
	if err != nil {
		return fmt.Errorf("an update: %w", err)
	}
	return s.out.Add("", strconv.FormatUint(n, 10), data)
}

// flush sends what no event of the run says.
func (s *sender) flush(u update) error {
	data, err := json.Marshal(s.as(u))
	if err != nil {
		return fmt.Errorf("an update: %w", err)
	}
	return s.out.Event("", "", data)
}

package mcpserve

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// MetaRun is the key of a result's `_meta` that has the run's id.
const MetaRun = "io.moorebus/run"

const (
	// cancelTimeout bounds the attempt to cancel the run of a call that has ended.
	cancelTimeout = 5 * time.Second
	// startGrace is how long the start of a run continues after its client has gone. A start
	// that is interrupted could create the run after the attempt to cancel it.
	startGrace = 5 * time.Second
	// openFor is how long the end of the server cancels a run whose client does not call again.
	// After that the run has only the deadline of its question.
	openFor = 24 * time.Hour
	// cancelsAtOnce bounds the runs that are cancelled at the same time.
	cancelsAtOnce = 16
)

// outcome is the structured content of a result.
type outcome struct {
	RunID  string       `json:"run_id,omitempty"`
	State  events.State `json:"state,omitempty"`
	Answer *string      `json:"answer,omitempty"`
	// Incomplete says that the answer was truncated.
	Incomplete bool   `json:"incomplete,omitempty"`
	Code       string `json:"code,omitempty"`
	Message    string `json:"message,omitempty"`
}

func (s *Server) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if !s.begin() {
		return nil, errEnding
	}
	defer s.calls.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	c := newCaller(req)
	if req.Params.RequestState != "" {
		run, err := s.resume(ctx, c)
		if err != nil {
			return s.refused(ctx, err)
		}
		return s.finish(ctx, c, run)
	}
	task, err := taskOf(req.Params.Arguments)
	if err != nil {
		return failed(outcome{Code: "invalid_arguments", Message: err.Error()}), nil
	}
	// With the id chosen here, the run can be cancelled even if its start is not answered.
	run := s.o.Store.Place(s.o.Namespace, s.o.Store.NewID())
	start := control.StartRequest{AgentName: req.Params.Name, Task: task, Mode: events.ModeTask, RunID: run.ID}
	if s.o.Agent != nil {
		start.AgentName, start.Agent = "", s.o.Agent
	}
	if err := s.start(traced(ctx, req), start); err != nil {
		if mayExist(err) {
			s.cancel(ctx, run)
		}
		return s.refused(ctx, err)
	}
	return s.finish(ctx, c, run)
}

// traced returns the context with the trace context of the request: that of its _meta, or of
// the HTTP request that brought it.
func traced(ctx context.Context, req *mcp.CallToolRequest) context.Context {
	text, _ := req.Params.Meta[tracecontext.Header].(string)
	if !tracecontext.Valid(text) && req.Extra != nil {
		text = req.Extra.Header.Get(tracecontext.Header)
	}
	if !tracecontext.Valid(text) {
		return ctx
	}
	return tracecontext.With(ctx, text)
}

// finish waits for the end of the run, or until the client has to be asked.
func (s *Server) finish(ctx context.Context, c *caller, run events.Run) (*mcp.CallToolResult, error) {
	s.setOpen(run, false)
	mem, err := s.follow(ctx, run, c)
	var asks *asksError
	if errors.As(err, &asks) {
		s.setOpen(run, true)
		return s.asks(c, run, asks.requests, mem.Control.Agent.Name), nil
	}
	if err != nil {
		s.cancel(ctx, run)
		return nil, err
	}
	return result(run.ID, mem), nil
}

// openRun is a run whose client was asked something, and when.
type openRun struct {
	run   events.Run
	since time.Time
}

// setOpen notes whether the run's client is to call again.
func (s *Server) setOpen(run events.Run, open bool) {
	s.asking.Lock()
	defer s.asking.Unlock()
	delete(s.open, run.ID)
	if open {
		now := time.Now()
		maps.DeleteFunc(s.open, func(_ string, o openRun) bool { return now.Sub(o.since) > openFor })
		s.open[run.ID] = openRun{run, now}
	}
}

// cancelOpen cancels the runs whose clients cannot call again, all within cancelTimeout.
func (s *Server) cancelOpen(ctx context.Context) {
	s.asking.Lock()
	defer s.asking.Unlock()
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	var cancelling sync.WaitGroup
	slots := make(chan struct{}, cancelsAtOnce)
	for _, o := range s.open {
		slots <- struct{}{}
		cancelling.Go(func() { s.tryCancel(ctx, o.run); <-slots })
	}
	cancelling.Wait()
	clear(s.open)
}

// takeover is how a start is repeated while the bus is away: when the process that serves a
// shared data directory ends, another one takes over within seconds.
var takeover = retry.Policy{First: 300 * time.Millisecond, Budget: 10 * time.Second}

// start starts the run, even if the client disconnects meanwhile or the bus is away for a
// moment. The id of the run is chosen, so that a repeated start starts it once.
func (s *Server) start(ctx context.Context, req control.StartRequest) error {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		defer time.AfterFunc(startGrace, cancel).Stop()
		<-lasting.Done()
	})()
	again := false
	return takeover.Do(lasting, func(ctx context.Context) error {
		err := s.o.Control.WhileQuorum(ctx, func(ctx context.Context) error {
			_, err := s.o.Control.Start(ctx, s.o.Namespace, req)
			return err
		})
		if again && refusal.Is(err, refusal.CodeRunExists) {
			return nil // an earlier attempt started it
		}
		again = true
		if err != nil && !mayExist(err) {
			return retry.Stop(err)
		}
		return err
	}, nil)
}

// mayExist reports whether a run may exist although its start failed with err: the start was
// not refused.
func mayExist(err error) bool {
	var known *refusal.Error
	return !errors.As(err, &known) || known.Code == refusal.CodeUnavailable
}

// refused is the result of a call whose run did not start.
func (s *Server) refused(ctx context.Context, err error) (*mcp.CallToolResult, error) {
	var known *refusal.Error
	if errors.As(err, &known) {
		return failed(outcome{Code: known.Code, Message: known.Message}), nil
	}
	if ctx.Err() == nil {
		s.o.Logger.Warn("a run could not be started", "reason", err)
	}
	return nil, err
}

// follow reads the run to its end. It reports what happens, and asks the client what the run
// asks a human, see [Server.ask].
func (s *Server) follow(ctx context.Context, run events.Run, c *caller) (*reducer.Memory, error) {
	fold := runlog.NewFold(s.o.Log, s.machine(), run)
	mem := fold.Memory()
	report := notifier(ctx, c.req)
	var began time.Time
	defer func() { c.stop() }()
	err := fold.Follow(ctx, run, func(_ journal.Record, e *events.Event, refused error) error {
		if refused != nil {
			return nil
		}
		if began.IsZero() {
			began = e.Time
		}
		report(e.N, print.EventLine(e, began))
		if mem.State != events.WaitingForHuman {
			c.stop()
			return nil
		}
		return s.ask(ctx, c, run)
	})
	return mem, err
}

// notifier returns what reports a call's progress to the client, if it asked for that.
func notifier(ctx context.Context, req *mcp.CallToolRequest) func(n uint64, what string) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func(uint64, string) {}
	}
	return func(n uint64, what string) {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout) // it goes to the stream of the call
		defer stop()
		// A client may miss a notification: nothing depends on it.
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(n), Message: what})
	}
}

// cancel cancels the run of a call whose client has gone.
func (s *Server) cancel(ctx context.Context, run events.Run) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	s.tryCancel(ctx, run)
}

// tryCancel is cancel within ctx.
func (s *Server) tryCancel(ctx context.Context, run events.Run) {
	_, err := s.o.Control.Cancel(ctx, run.Namespace, run.ID, events.By{Reason: "the MCP client no longer waits for it"})
	if err != nil && !refusal.Is(err, refusal.CodeRunEnded, refusal.CodeRunNotFound) {
		s.o.Logger.Warn("a run without a client could not be cancelled and continues", "run", run.ID, "reason", err)
	}
}

func result(id string, mem *reducer.Memory) *mcp.CallToolResult {
	o := outcome{RunID: id, State: mem.State}
	switch {
	case mem.State == events.Cancelled:
		o.Code, o.Message = "cancelled", "the run was cancelled"
	case mem.Error != nil:
		o.Code, o.Message = mem.Error.Code, mem.Error.Message
	case mem.State != events.Done:
		o.Code, o.Message = string(mem.State), "the run ended without an answer"
	case mem.FinalAnswer != nil:
		o.Answer, o.Incomplete = mem.FinalAnswer, mem.Control.Incomplete
	}
	if o.Code == "" && givesObject(mem.Control.Agent.OutputSchema) {
		return structured(o)
	}
	if o.Code != "" {
		return failed(o)
	}
	text := ""
	if o.Answer != nil {
		text = *o.Answer
	}
	res := finished(o, text)
	if o.Incomplete {
		res.Content = append(res.Content, &mcp.TextContent{Text: "The answer is incomplete: it was cut off."})
	}
	return res
}

// structured is the result of an agent with an output schema: its answer is the structured
// content.
func structured(o outcome) *mcp.CallToolResult {
	if o.Answer == nil || o.Incomplete || !json.Valid([]byte(*o.Answer)) {
		o.Code, o.Message = "incomplete", "the answer was cut off and does not fit the agent's output schema"
		return failed(o)
	}
	res := finished(o, *o.Answer)
	res.StructuredContent = json.RawMessage(*o.Answer)
	return res
}

func failed(o outcome) *mcp.CallToolResult {
	res := finished(o, o.Code+": "+o.Message)
	res.IsError = true
	return res
}

func finished(o outcome, text string) *mcp.CallToolResult {
	res := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: o}
	if o.RunID != "" {
		res.Meta = mcp.Meta{MetaRun: o.RunID}
	}
	return res
}

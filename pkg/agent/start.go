package agent

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// StartOption says what a run is for, see [Agent.Start] and [Run.Fork].
type StartOption func(*starting)

// starting is how a run is to be started.
type starting struct {
	task, taskType, id string
	parts              []events.Part
	messages           []Message
	priority           events.Priority
	labels             events.Labels
	patch              map[string]any
}

// Task sets the task, with images and files if there are any.
func Task(text string, more ...events.Part) StartOption {
	return func(s *starting) { s.task, s.parts = text, more }
}

// TaskType sets the type of the task, which chooses the model, see [Builder.ModelFor].
func TaskType(taskType string) StartOption { return func(s *starting) { s.taskType = taskType } }

// RunID sets the run's id, a lower-case UUIDv7 that no run has. Default: a new one. A start
// that is repeated with the same id is a *[Refused] with the code run_exists; then
// [Agent.Attach] returns the run.
func RunID(id string) StartOption { return func(s *starting) { s.id = id } }

// Priority sets the run's place in the queue where it has to wait for its start; a fork does not wait.
// Default: [events.PriorityNormal].
func Priority(priority events.Priority) StartOption {
	return func(s *starting) { s.priority = priority }
}

// Labels sets labels by which the run is found. They go before those of the agent, key by key; a fork has
// those of its parent. There may be 32 at most.
func Labels(labels map[string]string) StartOption {
	return func(s *starting) { s.labels = maps.Clone(labels) }
}

// Message is a message of the user: a text, with images and files if there are any. A run
// takes a message with a known ID once only. Default: a new ID.
type Message struct {
	ID, Text string
	Parts    []events.Part
}

// Messages adds messages of the user that follow the task. The run begins with all of them:
// its model is not asked before.
func Messages(messages ...Message) StartOption {
	return func(s *starting) { s.messages = append(s.messages, messages...) }
}

// Patch changes the agent's definition for a fork, see [Run.Fork]. It is a JSON merge patch
// (RFC 7396) over the keys of an agent file.
func Patch(patch map[string]any) StartOption {
	return func(s *starting) { s.patch = maps.Clone(patch) }
}

func startingWith(options []StartOption) starting {
	var s starting
	for _, option := range options {
		option(&s)
	}
	return s
}

func (a *Agent) start(ctx context.Context, s *service, release func() error, options []StartOption) (*Run, error) {
	wanted := startingWith(options)
	req, err := a.request(ctx, wanted)
	if err != nil {
		_ = release() // nothing was started
		return nil, err
	}
	at := s.host.Store().Place(a.namespace, req.RunID)
	return a.begin(ctx, s, release, at, wanted.id == "", func() error {
		_, err := s.host.Gateway().Start(ctx, at.Namespace, req)
		if answer, is := errors.AsType[*refusal.Error](err); is && (answer.Kind == refusal.Unprocessable || answer.Code == refusal.CodeBadAgent) {
			return &BuildError{refused(err)}
		}
		return refused(err)
	})
}

// begin begins a run by create, and watches it. If it is unknown whether a run began whose id
// is unused, the run is cancelled.
func (a *Agent) begin(ctx context.Context, s *service, release func() error, at events.Run, unused bool, create func() error) (*Run, error) {
	r := a.open(s, release, at) // before the start, so that nothing is missed
	s.host.Store().Bind(at, ctx)
	if err := create(); err != nil {
		if unused && (ctx.Err() != nil || errors.Is(err, journal.ErrUnknownOutcome)) {
			err = also(err, r.callOff(ctx))
		}
		s.host.Store().Unbind(at)
		_ = r.Release() // the start has failed
		return nil, err
	}
	return r, nil
}

// request is the start of a run of the agent.
func (a *Agent) request(ctx context.Context, s starting) (control.StartRequest, error) {
	if s.patch != nil {
		return control.StartRequest{}, &BuildError{errors.New("Patch is for forks: build an agent with the other settings")}
	}
	def := a.def
	r := control.StartRequest{Agent: &def, TaskType: s.taskType, RunID: s.id, Priority: s.priority, Labels: s.labels}
	if r.RunID == "" {
		r.RunID = runlog.NewID()
	} else if err := events.CheckID(r.RunID); err != nil {
		return r, &Refused{Code: refusal.CodeBadRunID, Message: "RunID: " + err.Error()}
	}
	r.Task, r.Parts = content(s.task, s.parts)
	for _, m := range s.messages {
		message := control.UserMessage{MessageID: m.ID}
		message.Content, message.Parts = content(m.Text, m.Parts)
		r.Messages = append(r.Messages, message)
	}
	deadline, limited := ctx.Deadline()
	if !limited {
		return r, nil
	}
	left := time.Until(deadline)
	if left <= 0 {
		return r, context.DeadlineExceeded
	}
	budget := events.Budget{}
	if def.Budget != nil {
		budget = *def.Budget
	}
	if budget.MaxWallTime == 0 || left < time.Duration(budget.MaxWallTime) {
		budget.MaxWallTime = events.Duration(left)
	}
	def.Budget = &budget
	return r, nil
}

// content is a text with images and files: as text if there are none, else as parts.
func content(text string, more []events.Part) (string, []events.Part) {
	switch {
	case len(more) == 0:
		return text, nil
	case text == "":
		return "", more
	}
	return "", append([]events.Part{{Type: events.PartText, Text: text}}, more...)
}

// Fork starts a run that continues from event at of this one, which does not change and may
// have ended. Options change what the fork is for: [Task] and [TaskType] replace those of
// the run, [Patch] changes its agent, [RunID] sets the fork's id. The fork has the log's
// deadline, not that of ctx.
func (r *Run) Fork(ctx context.Context, at uint64, options ...StartOption) (*Run, error) {
	s := startingWith(options)
	req := forking.Request{At: at, RunID: s.id}
	if req.RunID == "" {
		req.RunID = runlog.NewID()
	}
	if len(s.messages) > 0 || len(s.parts) > 0 {
		return nil, &Refused{Code: refusal.CodeBadRequest, Message: "a fork takes no messages and parts: post them to it"}
	}
	patch := s.patch
	if patch == nil {
		patch = map[string]any{}
	}
	if s.task != "" {
		patch["task"] = s.task
	}
	if s.taskType != "" {
		patch["task_type"] = s.taskType
	}
	if len(patch) > 0 {
		text, err := json.Marshal(patch)
		if err != nil {
			return nil, &BuildError{err}
		}
		req.Patch = text
	}
	if r.agent == nil || r.service.conduct == stepping {
		return nil, ErrStepwise
	}
	service, release, err := r.agent.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return r.agent.begin(ctx, service, release, service.host.Store().Place(r.at.Namespace, req.RunID), s.id == "", func() error {
		_, err := service.host.Gateway().Fork(ctx, r.at.Namespace, r.at.ID, req)
		return refused(err)
	})
}

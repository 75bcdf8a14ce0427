package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/httpapi/inputs"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/media"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// by is who decides where a client does not say.
const by = "a2a"

// readSend reads a request that sends a message. Keys that are not known are ignored.
func readSend(data []byte) (*sendRequest, error) {
	if !utf8.Valid(data) {
		return nil, badRequest("the body is not valid UTF-8")
	}
	var s sendRequest
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, badRequest("the body is not a SendMessageRequest: %s", err.Error())
	}
	m := s.Message
	switch {
	case s.Tenant != "":
		return nil, badRequest("tenant: is not supported; the header Moorebus-Namespace names the namespace")
	case m == nil:
		return nil, badRequest("message: is missing")
	case m.MessageID == "" || len(m.MessageID) > control.MaxMessageID:
		return nil, badRequest("message.messageId: must have 1 to %d bytes", control.MaxMessageID)
	case m.Role != roleUser:
		return nil, badRequest("message.role: %.50q is not %s", m.Role, roleUser)
	case len(m.Parts) == 0:
		return nil, badRequest("message.parts: is empty")
	case s.Configuration.HistoryLength != nil && *s.Configuration.HistoryLength < 0:
		return nil, badRequest("configuration.historyLength: must not be negative")
	}
	return &s, nil
}

// said is what a message holds: answers to what a task waits for, and what is new.
type said struct {
	decisions []events.Decision
	inputs    []control.Input
	content   []events.Part
}

// readParts reads a message's parts. With answers, data with a decision or a type is an answer.
// Other data is text.
func readParts(m *message, answers bool) (s said, err error) {
	for i := range m.Parts {
		p := &m.Parts[i]
		given := 0
		for _, is := range []bool{p.Text != nil, p.Raw != nil, p.URL != "", len(p.Data) > 0} {
			if is {
				given++
			}
		}
		if given != 1 {
			return s, badRequest("message.parts[%d]: has %d of text, raw, url and data; give exactly one", i, given)
		}
		switch {
		case p.Text != nil:
			if *p.Text != "" {
				s.content = append(s.content, events.Part{Type: events.PartText, Text: *p.Text})
			}
		case len(p.Data) > 0:
			if err := s.addData(p.Data, answers); err != nil {
				return s, err
			}
		default:
			file := events.Part{Type: events.PartFile, MediaType: p.MediaType, Data: p.Raw, URL: p.URL, Name: p.Filename}
			if bare, _, err := mime.ParseMediaType(p.MediaType); err == nil {
				file.MediaType = bare // such as text/plain; charset=utf-8
			}
			if media.IsImage(file.MediaType) {
				file.Type = events.PartImage
			}
			if err := file.Check(); err != nil {
				return s, refusal.New(refusal.Invalid, refusal.CodeContentType, "message.parts[%d]: %s", i, err.Error())
			}
			s.content = append(s.content, file)
		}
	}
	return s, nil
}

func (s *said) addData(data json.RawMessage, answers bool) error {
	node, err := strict.ParseJSON(data)
	if err != nil {
		return badRequest("%s", err.Error())
	}
	answers = answers && node.Kind == strict.Object
	switch {
	case answers && node.Get("decision") != nil:
		d, err := inputs.Decision(node)
		if err != nil {
			return err
		}
		d.By = cmp.Or(d.By, by)
		s.decisions = append(s.decisions, d)
	case answers && node.Get("type") != nil:
		more, err := inputs.Parse([]byte("[" + string(data) + "]"))
		if err != nil {
			return err
		}
		s.inputs = append(s.inputs, more...)
	default:
		s.content = append(s.content, events.Part{Type: events.PartText, Text: string(data)})
	}
	return nil
}

// text returns the content if it is text alone.
func (s *said) text() (string, bool) {
	for i := range s.content {
		if s.content[i].Type != events.PartText {
			return "", false
		}
	}
	return events.TextOf(s.content), true
}

// target is the run that a request is about. base is where the client reached the gateway. n is
// the run's last event then, and before the one before the message; 0: the message began the run.
type target struct {
	ns, agent, run, base string
	n, before            uint64
}

func targetOf(r *http.Request, run string) target {
	return target{ns: route.Namespace(r), agent: r.PathValue("agent"), run: run, base: baseURL(r)}
}

// send carries out a request and returns where its message went. A repeated request changes
// nothing.
func (f *Face) send(ctx context.Context, r *http.Request, m *message) (target, error) {
	to := targetOf(r, "")
	open, err := f.openTask(ctx, to, m)
	if err != nil {
		return to, err
	}
	s, err := readParts(m, open != "")
	if err != nil {
		return to, err
	}
	if open != "" {
		to.run = open
		err = f.tell(ctx, &to, m, s)
	} else {
		err = f.start(ctx, &to, m, s)
	}
	return to, err
}

// openTask returns the task that a message is for, empty if it is for a new one.
func (f *Face) openTask(ctx context.Context, to target, m *message) (string, error) {
	if m.TaskID != "" {
		c, err := f.conversation(ctx, target{ns: to.ns, run: m.TaskID})
		if refusal.Is(err, refusal.CodeRunNotFound) {
			return "", taskNotFound(m.TaskID)
		}
		if err == nil && m.ContextID != "" && m.ContextID != c.contextID {
			err = badRequest("message.contextId: task %s belongs to another context; leave it out", m.TaskID)
		}
		return m.TaskID, err
	}
	if events.CheckID(m.ContextID) != nil {
		return "", nil
	}
	// A conversation is one run as long as it is open.
	open := ""
	err := f.view(ctx, to.ns, to.agent, m.ContextID, func(run *runlog.Run) error {
		mem := run.Memory()
		if mem.Mode == events.ModeChat && (!run.Terminal() || mem.Knows(m.MessageID)) {
			open = m.ContextID
		}
		return nil
	})
	if refusal.Is(err, refusal.CodeTaskNotFound, refusal.CodeRunPurged) {
		err = nil
	}
	return open, err
}

// start starts the run of a message, or finds the one that it started.
func (f *Face) start(ctx context.Context, to *target, m *message, s said) error {
	before, err := f.startedBefore(ctx, to, m, s)
	if before || err != nil {
		return err
	}
	ns, err := f.cfg.Control.CheckNamespace(to.ns)
	if err == nil {
		to.run, err = runOf(ns, to.agent, m)
	}
	if err != nil {
		return err
	}
	found, err := f.started(ctx, to, nil)
	if found || err != nil {
		return err
	}
	labels, err := m.labels()
	if err != nil {
		return err
	}
	req := control.StartRequest{
		AgentName: to.agent, RunID: to.run, MessageID: m.MessageID, Custom: customOf(m.ContextID), Labels: labels,
	}
	if text, only := s.text(); only {
		req.Task = text
	} else {
		req.Parts = s.content
	}
	result, err := f.cfg.Control.Start(ctx, to.ns, req)
	to.n = result.N
	if refusal.Is(err, refusal.CodeRunExists) {
		_, err = f.started(ctx, to, nil) // by the same request
	}
	return err
}

// runOf returns the id of the run that a message starts. It is derived from the entire message:
// the same message again finds its run, and a client that knows or guesses the id of another
// client's message learns nothing about that client's task.
func runOf(ns, agent string, m *message) (string, error) {
	said := struct {
		Message, Context string
		Parts            []part
	}{m.MessageID, m.ContextID, slices.Clone(m.Parts)}
	for i := range said.Parts {
		if len(said.Parts[i].Data) == 0 {
			continue
		}
		// A client may write the same data with other blanks, and its keys in another order.
		var data any
		err := codec.Strict(said.Parts[i].Data, &data)
		if err == nil {
			said.Parts[i].Data, err = json.Marshal(data)
		}
		if err != nil {
			return "", badRequest("message.parts[%d].data: %s", i, err.Error())
		}
	}
	all, err := json.Marshal(said)
	return runid.Request(ns+"\x00"+agent, string(all)), err
}

// startedBefore is started for a message that came first to an earlier build, where the id of a run
// followed from that of the message alone. A run of another message is none.
func (f *Face) startedBefore(ctx context.Context, to *target, m *message, s said) (bool, error) {
	to.run = runid.Request(to.agent, m.MessageID)
	task := ""
	found, err := f.started(ctx, to, &task)
	if refusal.Is(err, refusal.CodeRunPurged, refusal.CodeUnknownTable, refusal.CodeParentGone) {
		return false, nil
	}
	if !found || err != nil || task != events.TextOf(s.content) {
		return false, err
	}
	c, err := f.conversation(ctx, *to)
	return c.contextID == cmp.Or(m.ContextID, to.run), err
}

// started reports whether the run of a message is there. task gets its task; may be nil.
func (f *Face) started(ctx context.Context, to *target, task *string) (found bool, err error) {
	err = f.view(ctx, to.ns, to.agent, to.run, func(run *runlog.Run) error {
		found, to.n = true, run.Memory().N
		if task != nil {
			*task = run.Memory().Task
		}
		return nil
	})
	if refusal.Is(err, refusal.CodeTaskNotFound) {
		err = nil
	}
	return found, err
}

// tell gives a message to an open task: it answers what the task waits for, or goes to the agent.
func (f *Face) tell(ctx context.Context, to *target, m *message, s said) error {
	ended, known := false, false
	answer := s
	var unclear error
	err := f.view(ctx, to.ns, to.agent, to.run, func(run *runlog.Run) error {
		mem := run.Memory()
		ended, known, to.n, to.before = run.Terminal(), mem.Knows(m.MessageID), mem.N, mem.N
		if !ended && !known && len(s.decisions) == 0 {
			unclear = answer.answerPending(mem, m.MessageID)
		}
		return nil
	})
	if err != nil || known {
		return err
	}
	// The log is read after the memory: a decision of this message may have been made meanwhile,
	// and what waits then is another call.
	decided, err := f.decided(ctx, to, m, &s)
	switch {
	case err != nil:
		return err
	case decided:
		s.content = nil
	case unclear != nil:
		return unclear
	default:
		s = answer
	}
	switch {
	case ended && len(s.content) > 0:
		return refusal.New(refusal.Invalid, refusal.CodeUnsupported, "the task has ended and takes no messages; leave out taskId to start another one").
			With(map[string]any{"run": to.run})
	}
	for _, d := range s.decisions {
		result, err := f.cfg.Control.Decide(ctx, to.ns, to.run, d)
		if err != nil && !repeats(err, d) {
			return err
		}
		to.n = max(to.n, result.N)
	}
	if len(s.content) > 0 {
		said := control.UserMessage{MessageID: m.MessageID}
		if text, only := s.text(); only {
			said.Content = text
		} else {
			said.Parts = s.content
		}
		s.inputs = append(s.inputs, said)
	}
	if len(s.inputs) == 0 {
		return nil
	}
	result, err := f.cfg.Control.Inputs(ctx, to.ns, to.run, s.inputs)
	to.n = max(to.n, result.N)
	return err
}

// repeats reports whether a refused decision is the one that was made.
func repeats(err error, d events.Decision) bool {
	var e *refusal.Error
	if !errors.As(err, &e) {
		return false
	}
	switch made := e.Fields["decision"].(type) {
	case events.Decision:
		return made.Decision == d.Decision && made.Arguments == d.Arguments
	case *events.Decision:
		return made != nil && made.Decision == d.Decision && made.Arguments == d.Arguments
	}
	return false
}

// byMessage is the `by` of a decision that the text of a message makes. It identifies the message
// when it is repeated.
func byMessage(id string) string { return by + " message " + id }

// decided reports whether the text of the message has approved or rejected a call of the run.
func (f *Face) decided(ctx context.Context, to *target, m *message, s *said) (bool, error) {
	if text, only := s.text(); !only || text == "" {
		return false, nil
	}
	records, err := f.cfg.Control.Events(ctx, to.ns, to.run, 1)
	if err != nil {
		return false, err
	}
	for rec, err := range records {
		if err != nil {
			return false, err
		}
		e := f.cfg.Control.Decode(rec)
		if e == nil {
			continue
		}
		if d := decisions.Of(e.Data); d != nil && d.By == byMessage(m.MessageID) {
			return true, nil
		}
	}
	return false, nil
}

// answerPending turns the text of a message into the decision that the run waits for, if it waits
// for one.
func (s *said) answerPending(mem *reducer.Memory, messageID string) error {
	waits := decisions.Undecided(mem.PendingApproval)
	if mem.State != events.WaitingForHuman || len(waits) == 0 {
		return nil
	}
	needed := refusal.New(refusal.Unprocessable, refusal.CodeAnswerNeeded,
		"the task waits for %d decisions; answer with a data part {call_id, decision: approved|rejected|modified, arguments?, by} for each", len(waits)).
		With(map[string]any{"run": mem.RunID})
	text, only := s.text()
	text = strings.TrimSpace(text)
	if len(waits) != 1 || !only || text == "" {
		return needed
	}
	d := events.Decision{CallID: waits[0], By: byMessage(messageID)}
	for _, r := range mem.PendingApproval.Requests {
		if r.CallID != waits[0] {
			continue
		}
		switch word := strings.ToLower(text); {
		case r.Asks:
			answered, err := decisions.Answered(r.Arguments, text)
			if err != nil {
				return err
			}
			d.Decision, d.Arguments = events.DecisionModified, answered
		case word == events.DecisionApproved, word == events.DecisionRejected:
			d.Decision = word
		default:
			return needed
		}
	}
	s.decisions, s.content = append(s.decisions, d), nil
	return nil
}

package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// StartRequest says which run to start.
type StartRequest struct {
	// AgentName names a stored definition. Agent is a definition, resolved or not.
	// Exactly one is set.
	AgentName string
	Agent     *events.Agent
	// Task is the first user message, in UTF-8. Empty: the definition's own task.
	Task string
	// Parts are the task where it is more than text; Task is then empty.
	Parts []events.Part
	// Mode overrides that of the definition. May be empty.
	Mode events.Mode
	// TaskType selects the model. Empty: default.
	TaskType string
	// RunID is a lower-case UUIDv7; empty: a new one.
	RunID string
	// ClientTools are further tools of the run's client, in addition to the definition's.
	ClientTools []events.ClientTool
	// MessageID is the id of the task's message; empty: a new one. Custom is what the run's
	// custom memory begins with, by key.
	MessageID string
	Custom    map[string]json.RawMessage
	// Priority is the run's place in the queue, if it is queued. Empty: normal.
	Priority events.Priority
	// Labels go before those of the agent, key by key.
	Labels events.Labels
	// Messages follow the task. The run begins with all of them or does not begin.
	Messages []UserMessage
}

// StartResult is the id of the started run and the number of its events.
type StartResult struct {
	RunID string `json:"run_id" jsonschema:"The run's id."`
	N     uint64 `json:"n" jsonschema:"The number of its events."`
	// Queued says that the run waits until its quotas admit it.
	Queued bool `json:"queued,omitempty" jsonschema:"The run waits until its quotas admit it."`
}

// Start starts a run. It pins the definition, the tools as they are announced now, and the
// transition table. Refusals are Invalid for a wrong request, NotFound for an unknown agent,
// Conflict run_exists or run_purged, TooLarge, Unprocessable for tools and providers that are
// not announced, TooMany where a quota allows no more, and Unavailable announcements_pending for those that were announced a moment
// ago or while the directory recovers. If the outcome is unknown ([journal.ErrUnknownOutcome]), the
// result has the id of the run: with it the start may be repeated, and run_exists says that the
// run was started.
func (c *Controller) Start(ctx context.Context, ns string, req StartRequest) (StartResult, error) {
	ns, err := c.CheckNamespace(ns)
	if err != nil {
		return StartResult{}, err
	}
	if err := req.validate(); err != nil {
		return StartResult{}, err
	}
	start, err := c.pin(ctx, ns, req)
	if err != nil {
		return StartResult{}, err
	}
	at, err := c.NewRun(ctx, ns, req.RunID)
	if err != nil {
		return StartResult{}, err
	}
	if c.Admission == nil { // what nobody bounds must not start by mistake
		return StartResult{}, errors.New("control: nothing says how many runs may work at once; set Admission")
	}
	if start.Queued, err = c.Admission.Queues(ctx, ns, start.Agent.Name); err != nil {
		return StartResult{}, err
	}
	if start.Queued && req.Priority != events.PriorityNormal {
		start.Priority = req.Priority
	}
	start.MessageID, start.Custom = req.MessageID, req.Custom
	// Last, since nothing removes what a refused request stored.
	if start.Parts, err = c.keepParts(ctx, refusal.CodeBadRequest, "task", req.Parts); err != nil {
		return StartResult{}, err
	}
	rest, err := c.firstMessages(ctx, req.Messages)
	if err != nil {
		return StartResult{}, err
	}
	opened, err := c.Open(ctx, at, runstart.Opening{First: start, Rest: rest, Budget: start.Agent.Budget})
	if errors.Is(err, journal.ErrUnknownOutcome) {
		return StartResult{RunID: at.ID}, err
	}
	if err != nil {
		return StartResult{}, err
	}
	return StartResult{RunID: at.ID, N: opened.N, Queued: start.Queued}, nil
}

// firstMessages returns the events of the messages with which a run begins.
func (c *Controller) firstMessages(ctx context.Context, messages []UserMessage) ([]events.Payload, error) {
	var all []events.Payload
	for i, m := range messages {
		message := &events.UserMessage{MessageID: cmp.Or(m.MessageID, c.Store.NewID()), Content: m.Content}
		if len(m.Parts) > 0 {
			var err error
			message.Content = events.TextOf(m.Parts)
			if message.Parts, err = c.keepParts(ctx, refusal.CodeBadRequest, fmt.Sprintf("message %d", i), m.Parts); err != nil {
				return nil, err
			}
		}
		all = append(all, message)
	}
	return all, nil
}

func (r *StartRequest) validate() error {
	bad := func(code, format string, args ...any) error {
		return refusal.New(refusal.Invalid, code, format, args...)
	}
	switch {
	case (r.AgentName == "") == (r.Agent == nil):
		return bad(refusal.CodeBadRequest, "agent: give the name of a stored agent or a definition")
	case r.Task != "" && len(r.Parts) > 0:
		return bad(refusal.CodeBadRequest, "task: give it as text or in parts, not both")
	case !utf8.ValidString(r.Task) || !utf8.ValidString(r.TaskType):
		return bad(refusal.CodeBadRequest, "task: is not valid UTF-8")
	case r.Mode != "" && r.Mode != events.ModeTask && r.Mode != events.ModeChat:
		return bad(refusal.CodeBadRequest, "mode: %q is not a mode; use task or chat", r.Mode)
	case !r.Priority.Valid():
		return bad(refusal.CodeBadRequest, "priority: %q is not a priority; use high, normal or low", r.Priority)
	case r.RunID != "" && events.CheckID(r.RunID) != nil:
		return bad(refusal.CodeBadRunID, "run_id: %q is not a lower-case UUIDv7", r.RunID)
	}
	if len(r.MessageID) > MaxMessageID || !utf8.ValidString(r.MessageID) {
		return bad(refusal.CodeBadRequest, "message_id: must be at most %d bytes of UTF-8", MaxMessageID)
	}
	return nil
}

func (c *Controller) pin(ctx context.Context, ns string, req StartRequest) (*events.Start, error) {
	var a events.Agent
	var hash string
	if req.Agent != nil {
		a = *req.Agent
	} else {
		var err error
		if a, hash, err = c.Launcher.Definition(ctx, ns, req.AgentName); err != nil {
			return nil, err
		}
	}
	if len(req.ClientTools) > 0 {
		a.ClientTools, hash = slices.Concat(a.ClientTools, req.ClientTools), ""
	}
	task := req.Task
	if len(req.Parts) > 0 {
		task = events.TextOf(req.Parts)
	}
	if task == "" {
		task = a.Task
	}
	if strings.TrimSpace(task) == "" {
		return nil, refusal.New(refusal.Invalid, refusal.CodeEmptyTask, "task: is empty, and the agent has no default task; describe the task")
	}
	start, err := c.Launcher.Pin(ctx, a, runstart.Task{Text: task, Mode: req.Mode, TaskType: req.TaskType, AgentHash: hash, Labels: req.Labels})
	if refusal.Is(err, refusal.CodeUnknownProvider, refusal.CodeUnknownTool, refusal.CodePending) {
		// While nothing can be stored, no announcement can be, so the directory is unreliable.
		if lost := c.NoQuorum(ctx); lost != nil {
			return nil, lost
		}
		if c.cfg.Ready == nil {
			return nil, err
		}
		if full := c.cfg.Ready(ctx); errors.Is(full, journal.ErrFull) {
			return nil, full
		}
	}
	return start, err
}

// Tools returns every announced tool.
func (c *Controller) Tools(ctx context.Context) ([]events.ToolSpec, error) {
	tools, err := c.Launcher.Announced(ctx)
	if tools == nil {
		tools = []events.ToolSpec{}
	}
	return tools, err
}

// AgentInfo says what a stored definition is. All but the name is empty for a definition of
// another version.
type AgentInfo struct {
	Name string `json:"name"`
	Hash string `json:"hash" jsonschema:"The SHA-256 of the definition; empty for one of another version."`
	// Updated is when the definition was stored; zero where the store does not tell.
	Updated     time.Time   `json:"updated,omitzero" jsonschema:"When the definition was stored."`
	Description string      `json:"description,omitempty"`
	Mode        events.Mode `json:"mode,omitempty"`
	// Provider and Model are asked first for task types without their own models. An
	// empty Model is the provider's default.
	Provider string   `json:"provider,omitempty"`
	Model    string   `json:"model,omitempty" jsonschema:"The model that is asked first; omitted for the provider's default."`
	Tools    []string `json:"tools,omitempty"`
}

func agentInfo(name string, a events.Agent) AgentInfo {
	info := AgentInfo{
		Name: name, Hash: agentfile.Hash(a), Description: a.Description, Mode: cmp.Or(a.Mode, events.ModeTask), Provider: a.LLM.Provider, Tools: a.Tools,
	}
	if models := a.Models["default"]; len(models) > 0 {
		info.Provider, info.Model = cmp.Or(models[0].Provider, info.Provider), models[0].Model
	}
	return info
}

// PutAgent stores a definition under a name and replaces an existing one. The definition may
// omit its name but not have another. Its tools need not exist.
func (c *Controller) PutAgent(ctx context.Context, ns, name string, data []byte, f agentfile.Format) (AgentInfo, error) {
	ns, err := c.CheckNamespace(ns)
	if err != nil {
		return AgentInfo{}, err
	}
	if !events.ValidToken(name) {
		return AgentInfo{}, refusal.New(refusal.Invalid, refusal.CodeBadAgent, "%q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	a, err := agentfile.ParseDefinition(data, f, agentfile.Options{CheckScript: c.cfg.CheckScript, Name: name, Fixed: true})
	if errors.Is(err, agentfile.ErrTooLarge) {
		return AgentInfo{}, err
	}
	if err != nil {
		return AgentInfo{}, refusal.New(refusal.Invalid, refusal.CodeBadAgent, "%s", err.Error())
	}
	if err := c.Launcher.Check(&a); err != nil {
		return AgentInfo{}, err
	}
	if err := agentstore.Put(ctx, c.cfg.KV, ns, name, agentfile.Marshal(a)); err != nil {
		return AgentInfo{}, err
	}
	return agentInfo(name, a), nil
}

// Agent returns a stored definition as canonical JSON.
func (c *Controller) Agent(ctx context.Context, ns, name string) ([]byte, error) {
	ns, err := c.CheckNamespace(ns)
	if err != nil {
		return nil, err
	}
	return c.Launcher.Agent(ctx, ns, name)
}

// StoredAgents returns what every stored definition is, sorted by name.
func (c *Controller) StoredAgents(ctx context.Context, ns string) ([]AgentInfo, error) {
	ns, err := c.CheckNamespace(ns)
	if err != nil {
		return nil, err
	}
	names, err := agentstore.Names(ctx, c.cfg.KV, ns)
	if err != nil {
		return nil, err
	}
	infos := make([]AgentInfo, 0, len(names))
	for _, name := range names {
		data, stored, err := agentstore.Get(ctx, c.cfg.KV, ns, name)
		if errors.Is(err, journal.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		info := AgentInfo{Name: name}
		// A definition of another version is listed without a hash.
		if a, err := agentfile.ParseDefinition(data, agentfile.JSON, agentfile.Options{Stored: true}); err == nil {
			info = agentInfo(name, a)
		}
		info.Updated = stored
		infos = append(infos, info)
	}
	return infos, nil
}

// DecodeAgent decodes the definition under the key agent of a request. Errors are refusals.
func (c *Controller) DecodeAgent(n *strict.Node) (*events.Agent, error) {
	a, err := agentfile.DecodeDefinition(n, "agent", agentfile.Options{CheckScript: c.cfg.CheckScript, Name: "inline"})
	if err != nil {
		return nil, refusal.New(refusal.Invalid, refusal.CodeBadAgent, "%s", err.Error())
	}
	return &a, nil
}

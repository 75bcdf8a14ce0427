package host

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tokens/o200k"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/responses"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Process makes the roles of a process. It fills in what is the same in every program:
// what the roles share, the bus, and what checks arguments, policies and names. The
// caller's configurations hold the rest. Make it with [NewProcess].
type Process struct {
	worker.Base
	bus        journal.Bus
	tombstones kv.Store
	estimators tokens.Set
	validator  tool.Validator
	policies   *approval.Policies
}

// NewProcess returns a process on a bus, which is also the Queue and the Feed of its
// roles. tombstones and own, which are token estimators of the application, may be nil.
func NewProcess(base worker.Base, bus journal.Bus, tombstones kv.Store, own tokens.Set) *Process {
	base.Queue, base.Feed = bus, bus
	return &Process{
		Base: base, bus: bus, tombstones: tombstones,
		estimators: tokens.Set{tokens.O200K: o200k.Estimate}.With(own),
		validator:  schema.New(schema.Options{}), policies: approval.New(),
	}
}

// questions is what roles ask each other over the bus, nil if it has none.
func (p *Process) questions() ports.Questions {
	q, _ := p.bus.(ports.Questions)
	return q
}

// chat writes requests in the form of chat completions, for models without an API.
var chat = plain(providers.OpenAI)[0]

// plain returns what writes requests to an API, of a server that is not known and of the
// provider's own.
func plain(dialect string) (writers []llm.Writer) {
	for _, base := range []string{"http://unknown.invalid", ""} {
		var writer llm.Writer
		var err error
		switch dialect { // a key is wanted and never sent
		case providers.Anthropic:
			writer, err = anthropic.New(anthropic.Options{BaseURL: base, APIKey: "none"})
		case providers.Responses:
			writer, err = responses.New(responses.Options{BaseURL: base, APIKey: "none"})
		default:
			writer, err = openai.New(openai.Options{BaseURL: base, APIKey: "none"})
		}
		if err != nil {
			panic(err) // the options are constants
		}
		writers = append(writers, writer)
	}
	return writers
}

// Requests returns what writes the requests to models. callers are those of this process's
// planner; nil: it has none.
func (p *Process) Requests(callers map[string]llm.Caller) *planner.Requests {
	return planner.NewRequests(planner.RequestsConfig{
		Store: p.Store, Blobs: p.bus, Text: textprotocol.Wrap, Chat: chat, Providers: callers, Questions: p.questions(), Plain: plain, Logger: p.Logger,
	})
}

// Planner makes a planner. The caller sets Providers and Prices.
func (p *Process) Planner(c planner.Config) (*planner.Planner, error) {
	c.Base, c.Directory, c.Blobs, c.Text, c.Estimators = p.Base, p.bus, p.bus, textprotocol.Wrap, p.estimators
	c.Validator, c.Approval, c.Timers, c.Questions, c.Chat = p.validator, p.policies, p.bus, p.questions(), chat
	return planner.New(c)
}

// Actor makes an actor. The caller sets Tools.
func (p *Process) Actor(c actor.Config) (*actor.Actor, error) {
	c.Base, c.Directory, c.Blobs, c.Storage, c.Approval = p.Base, p.bus, p.bus, p.bus, p.policies
	return actor.New(c)
}

// Observer makes an observer.
func (p *Process) Observer(c observer.Config) (*observer.Observer, error) {
	c.Base, c.Storage, c.Estimators = p.Base, p.bus, p.estimators
	return observer.New(c)
}

// Subagents makes the role that runs agents for agents. The caller sets Tools.
func (p *Process) Subagents(c subagent.Config) (*subagent.Subagents, error) {
	c.Base, c.Directory, c.KV, c.Timers, c.Tombstones, c.Blobs = p.Base, p.bus, p.bus, p.bus, p.tombstones, p.bus
	c.Validator, c.Approval, c.CheckApproval, c.CheckEstimator = p.validator, p.policies, p.policies.Check, p.estimators.Check
	return subagent.New(c)
}

// Controller makes what the gateway controls runs with. The caller sets Requests where this
// process has a planner.
func (p *Process) Controller(c control.Config) (*control.Controller, error) {
	if c.Requests == nil {
		c.Requests = p.Requests(nil)
	}
	c.Alarms, _ = p.bus.(ports.Alarms)
	c.Leases, _ = p.bus.(ports.Leases)
	c.Base, c.Directory, c.KV, c.Blobs, c.Storage, c.Timers, c.Tombstones = p.Base, p.bus, p.bus, p.bus, p.bus, p.bus, p.tombstones
	c.Validator, c.CheckApproval, c.CheckEstimator, c.Questions = p.validator, p.policies.Check, p.estimators.Check, p.questions()
	return control.New(c)
}

// CheckSchemas reports every tool whose schema cannot be used, and an output
// schema that cannot.
func CheckSchemas(tools *toolset.Registry, output json.RawMessage) error {
	var errs []error
	for _, d := range tools.Definitions() {
		if err := schema.Check(d.Schema); err != nil {
			errs = append(errs, fmt.Errorf("tool %q: schema: %w", d.Name, err))
		}
	}
	if len(output) > 0 {
		if err := schema.Check(output); err != nil {
			errs = append(errs, fmt.Errorf("output schema: %w", err))
		}
	}
	return errors.Join(errs...)
}

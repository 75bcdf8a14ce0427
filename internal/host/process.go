package host

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/modelrequests"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tokens/o200k"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
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

// Planner makes a planner. The caller sets Providers and Prices.
func (p *Process) Planner(c planner.Config) (*planner.Planner, error) {
	c.Base, c.Text, c.Chat, c.Estimators, c.Validator, c.Approval = p.Base, textprotocol.Wrap, modelrequests.Chat, p.estimators, p.validator, p.policies
	return planner.New(c.On(p.bus))
}

// Actor makes an actor. The caller sets Tools.
func (p *Process) Actor(c actor.Config) (*actor.Actor, error) {
	c.Base, c.Approval = p.Base, p.policies
	return actor.New(c.On(p.bus))
}

// Observer makes an observer.
func (p *Process) Observer(c observer.Config) (*observer.Observer, error) {
	c.Base, c.Estimators = p.Base, p.estimators
	return observer.New(c.On(p.bus))
}

// Subagents makes the role that runs agents for agents. The caller sets Tools.
func (p *Process) Subagents(c subagent.Config) (*subagent.Subagents, error) {
	c.Base, c.Tombstones = p.Base, p.tombstones
	c.Validator, c.Approval, c.CheckApproval, c.CheckEstimator = p.validator, p.policies, p.policies.Check, p.estimators.Check
	return subagent.New(c.On(p.bus))
}

// Controller makes what the gateway controls runs with. callers are those of this process's
// planner; nil: it has none.
func (p *Process) Controller(c control.Config, callers map[string]llm.Caller) (*control.Controller, error) {
	c.Base, c.Tombstones, c.Requests = p.Base, p.tombstones, modelrequests.On(p.bus, p.Store, callers, p.Logger)
	c.Validator, c.CheckApproval, c.CheckEstimator = p.validator, p.policies.Check, p.estimators.Check
	return control.New(c.On(p.bus))
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

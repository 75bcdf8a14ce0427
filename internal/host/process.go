package host

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tokens/o200k"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Process makes the roles of a process. It fills in what is the same in every program:
// what the roles share, the bus, and what checks arguments, policies and names. The
// caller's configurations hold the rest. Make it with [NewProcess].
type Process struct {
	worker.Base
	bus        journal.Bus
	tombstones ports.Tombstones
	estimators tokens.Set
	validator  tool.Validator
	policies   *approval.Policies
}

// NewProcess returns a process on a bus, which is also the Queue and the Feed of its
// roles. tombstones and own, which are token estimators of the application, may be nil.
func NewProcess(base worker.Base, bus journal.Bus, tombstones ports.Tombstones, own tokens.Set) *Process {
	base.Queue, base.Feed = bus, bus
	return &Process{
		Base: base, bus: bus, tombstones: tombstones,
		estimators: tokens.Set{tokens.O200K: o200k.Estimate}.With(own),
		validator:  schema.New(schema.Options{}), policies: approval.New(),
	}
}

// Planner makes a planner. The caller sets Providers and Prices.
func (p *Process) Planner(c planner.Config) (*planner.Planner, error) {
	c.Base, c.Directory, c.Blobs, c.Text, c.Estimators = p.Base, p.bus, p.bus, textprotocol.Wrap, p.estimators
	c.Validator, c.Approval = p.validator, p.policies
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
	c.Base, c.Directory, c.Agents, c.Timers, c.Tombstones, c.Blobs = p.Base, p.bus, p.bus, p.bus, p.tombstones, p.bus
	c.Validator, c.Approval, c.CheckApproval, c.CheckEstimator = p.validator, p.policies, p.policies.Check, p.estimators.Check
	return subagent.New(c)
}

// Controller makes what the gateway controls runs with.
func (p *Process) Controller(c control.Config) (*control.Controller, error) {
	c.Base, c.Directory, c.Agents, c.Blobs, c.Storage, c.Timers, c.Tombstones = p.Base, p.bus, p.bus, p.bus, p.bus, p.bus, p.tombstones
	c.Validator, c.CheckApproval, c.CheckEstimator = p.validator, p.policies.Check, p.estimators.Check
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

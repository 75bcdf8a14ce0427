// Package approval evaluates approval policies: which tool calls have to wait
// for a human.
package approval

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Policies evaluates policies. Expressions are those of expr-lang over the variables tool
// and risk (strings), arguments (the parsed JSON, nil if there are none) and run (the run's
// id). They are compiled once and can call nothing else. Numbers are exact. Arguments that
// readers may understand differently, and results that are not exact, are errors. An
// evaluation is bounded: after a million steps it is an error, within a second and with some
// 100 MB at most. Policies is safe for concurrent use.
type Policies struct {
	programs *lru.Cache[string, *program]
}

// program is an expression that was compiled. Names has the texts in it, which may be keys, by
// their forms without regard to case.
type program struct {
	*vm.Program
	names map[string][]string
}

// programsKept bounds the compiled expressions. Agents are written by hand, so few are in
// use at a time.
const programsKept = 256

// New returns an evaluator.
func New() *Policies {
	programs, err := lru.New[string, *program](programsKept)
	if err != nil {
		panic("a cache of a fixed size cannot be made: " + err.Error())
	}
	return &Policies{programs: programs}
}

// environment holds the variables of an expression.
type environment struct {
	Tool      string `expr:"tool"`
	Arguments any    `expr:"arguments"`
	Risk      string `expr:"risk"`
	Run       string `expr:"run"`

	Pay     func(...any) any `expr:"pay!"`
	Grow    func(...any) any `expr:"grow!"`
	Matches func(...any) any `expr:"matches!"`
	Compute func(...any) any `expr:"compute!"`
	Sum     func(...any) any `expr:"sum!"`
	Read    func(...any) any `expr:"read!"`
	Look    func(...any) any `expr:"look!"`
}

// Check reports whether a policy's expression compiles to a boolean.
func (p *Policies) Check(policy *events.Approval) error {
	if policy == nil || policy.Policy != events.ApproveExpr {
		return nil
	}
	_, err := p.program(policy.Expr)
	return err
}

func (p *Policies) program(text string) (*program, error) {
	if known, ok := p.programs.Get(text); ok {
		return known, nil
	}
	if len(text) > maxExpr {
		return nil, fmt.Errorf("approval.expr: it has %d bytes, at most %d are allowed: shorten it", len(text), maxExpr)
	}
	// First as it is written: the rewritten one knows fewer types, so it shows fewer
	// mistakes.
	names := naming{texts: map[string][]string{}}
	if _, err := expr.Compile(text, expr.Env(environment{}), expr.AsBool(), expr.Optimize(false), expr.Patch(&names)); err != nil {
		return nil, fmt.Errorf("approval.expr: %w", err)
	}
	if err := checkNumbers(text); err != nil {
		return nil, fmt.Errorf("approval.expr: %w", err)
	}
	if names.looksUp {
		return nil, errors.New("approval.expr: $env is not available: name tool, arguments, risk or run")
	}
	compiled, err := expr.Compile(text, expr.Env(environment{}), expr.AsBool(), expr.Optimize(false), expr.Patch(metering{}))
	if err != nil {
		return nil, fmt.Errorf("approval.expr: %w", err)
	}
	made := &program{compiled, names.texts}
	p.programs.Add(text, made)
	return made, nil
}

// Required says whether the call waits by the agent's policy or by that of the tool's own file,
// and why. A nil policy lets everything run but tools that ask a human: their calls wait under every policy, and the reason is the
// question. An expression that cannot be evaluated, or costs too much, is an error, the
// same on every machine. The caller must not take it for an approval.
func (p *Policies) Required(policy *events.Approval, call events.Call, info reducer.ToolInfo, run string) (string, bool, error) {
	if info.Asks {
		return question(call.Arguments), true, nil
	}
	reason, required, err := p.asks(policy, call, info, run)
	if err == nil && !required && info.Approval != nil {
		return p.asks(info.Approval, call, info, run)
	}
	return reason, required, err
}

// asks says what one policy asks.
func (p *Policies) asks(policy *events.Approval, call events.Call, info reducer.ToolInfo, run string) (string, bool, error) {
	if policy == nil {
		return "", false, nil
	}
	switch policy.Policy {
	case events.ApproveAlways:
		return "every call needs approval", true, nil
	case events.ApproveAtLeast, events.ApproveAbove:
		reason, required := byRisk(policy, info.Risk)
		return reason, required, nil
	case events.ApproveTools:
		if slices.Contains(policy.Tools, call.Name) {
			return "calls of " + call.Name + " need approval", true, nil
		}
	case events.ApproveExpr:
		return p.evaluate(policy.Expr, call, info, run)
	case events.ApproveNever:
	default:
		return "", false, fmt.Errorf("approval.policy: %q is unknown to this version", policy.Policy)
	}
	return "", false, nil
}

// byRisk reports whether a risk reaches the policy's bound. An unknown risk, which is not
// in [events.Risks], always does.
func byRisk(policy *events.Approval, risk string) (reason string, required bool) {
	limit, _ := events.RiskRank(policy.Risk)
	rank, known := events.RiskRank(risk)
	risk = cmp.Or(risk, events.Risks()[0])
	switch {
	case !known:
		return fmt.Sprintf("the risk %s is unknown", risk), true
	case rank > limit:
		return fmt.Sprintf("the risk is %s, above %s", risk, policy.Risk), true
	case rank == limit && policy.Policy == events.ApproveAtLeast:
		return fmt.Sprintf("the risk is %s, and the policy asks from %s on", risk, policy.Risk), true
	}
	return "", false
}

func (p *Policies) evaluate(text string, call events.Call, info reducer.ToolInfo, run string) (string, bool, error) {
	compiled, err := p.program(text)
	if err != nil {
		return "", false, err
	}
	if len(call.Arguments) > maxArguments {
		return "", false, fmt.Errorf("approval.expr: the arguments have %d bytes, at most %d are evaluated", len(call.Arguments), maxArguments)
	}
	m := &meter{left: maxSteps, spellings: spellings{texts: compiled.names, keys: map[string]string{}}}
	given, err := m.spellings.arguments(call.Arguments)
	if err != nil {
		return "", false, fmt.Errorf("approval.expr: %w", err)
	}
	result, err := expr.Run(compiled.Program, environment{
		Tool: call.Name, Risk: info.Risk, Run: run, Arguments: given,
		Pay: m.pay, Grow: m.grow, Matches: m.matches, Compute: m.compute, Sum: m.sum, Read: m.read, Look: m.lookUp,
	})
	if errors.Is(err, errCost) {
		err = errCost // without the expression, which the agent has
	}
	if err != nil {
		return "", false, fmt.Errorf("approval.expr: %w", err)
	}
	if yes, _ := result.(bool); yes {
		return "the policy asks for it: " + text, true, nil
	}
	return "", false, nil
}

// question returns the question that a tool asks a human.
func question(text string) string {
	given, _ := (&spellings{keys: map[string]string{}}).arguments(text) // it asks whatever the arguments are
	object, _ := given.(map[string]any)
	if q, _ := object["question"].(string); q != "" {
		return q
	}
	return "the tool asks a human"
}

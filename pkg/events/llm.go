package events

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/codec"
)

// The states of a run whose model speaks the text protocol. They say how the next
// planning is asked, and are no states of the table.
const (
	TextThinking  = "thinking"
	TextExecuting = "executing"
	// promptBase is the key of the prompt of both.
	promptBase = "base"
)

// TextStates lists them, the one in which a run begins first.
func TextStates() []string { return []string{TextThinking, TextExecuting} }

func (l LLM) checkPrompts() error {
	if len(l.StatePrompts) > 0 && !l.Text {
		return fmt.Errorf("llm.state_prompts: is for the text protocol; write text: true as well")
	}
	for _, key := range slices.Sorted(maps.Keys(l.StatePrompts)) {
		if key != promptBase && !slices.Contains(TextStates(), key) {
			return fmt.Errorf("llm.state_prompts: %q is not a state; use base, thinking or executing", key)
		}
	}
	return nil
}

// defaultInvalidReplies is how many replies in a row may be of no use.
const defaultInvalidReplies = 5

// InvalidReplies is the bound of MaxInvalidReplies, 0 for none.
func (c Config) InvalidReplies() int {
	if c.MaxInvalidReplies == nil {
		return defaultInvalidReplies
	}
	return *c.MaxInvalidReplies
}

// resolveText fills in what agents need that speak the text protocol, and turns off
// for the others what is only for those.
func (a *Agent) resolveText() {
	if !a.LLM.Text {
		a.Config.MaxIterations = min(a.Config.MaxIterations, 0) // a negative one is refused
	}
	if a.LLM.Text && a.Config.MaxInvalidReplies == nil {
		bound := a.Config.InvalidReplies()
		a.Config.MaxInvalidReplies = &bound
	}
}

// minThinkingTokens is the least that a model can be given to think.
const minThinkingTokens = 1024

func (l *LLM) checkThinking() error {
	switch n := l.ThinkingTokens; {
	case n == 0:
		return nil
	case n < minThinkingTokens:
		return fmt.Errorf("llm.thinking_tokens: must be at least %d, or 0 for no thinking, is %d", minThinkingTokens, n)
	case l.MaxTokens > 0 && n >= l.MaxTokens:
		return fmt.Errorf("llm.thinking_tokens: %d must be less than max_tokens, which is %d and holds the thinking too", n, l.MaxTokens)
	}
	return nil
}

// OnCut says what becomes of a reply that was truncated, such as at a token limit.
type OnCut string

// What may become of it.
const (
	// CutFail ends the run.
	CutFail OnCut = "fail"
	// CutContinue asks the model once to continue, and ends the run if that reply is truncated, too.
	CutContinue OnCut = "continue"
	// CutAccept takes an answer as it is, and marks it as incomplete.
	CutAccept OnCut = "accept"
)

// Efforts lists the levels of reasoning that a model may be asked for, least first.
func Efforts() []string { return []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"} }

// ReasoningConfig says how much a model reasons. Providers that lack a setting get the nearest
// one that they have; the reply's event says so.
type ReasoningConfig struct {
	// Effort is one of [Efforts]; empty: the provider's default.
	Effort string `json:"effort,omitempty"`
	// BudgetTokens bounds the reasoning before a reply, in tokens; 0: no bound.
	BudgetTokens int `json:"budget_tokens,omitempty"`
	// Show has commands show the reasoning in full instead of folded.
	Show bool `json:"show,omitempty"`
}

// ModelRef names a model, and the provider that has it; without a provider that of the agent.
type ModelRef struct {
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model"`
}

// Models are the models for one task type: the first one, and those that are asked in turn
// when one refuses or stays overloaded. In JSON it is a name, {provider, model}, or a list
// of PROVIDER/NAME and {provider, model}. A name alone may contain slashes.
type Models []ModelRef

// MarshalJSON writes a name where that says it all.
func (m Models) MarshalJSON() ([]byte, error) {
	switch {
	case len(m) == 1 && m[0].Provider == "":
		return json.Marshal(m[0].Model)
	case len(m) == 1:
		return json.Marshal(m[0])
	}
	return json.Marshal([]ModelRef(m))
}

// UnmarshalJSON reads any of the forms.
func (m *Models) UnmarshalJSON(data []byte) error {
	var name string
	if json.Unmarshal(data, &name) == nil {
		*m = Models{{Model: name}}
		return nil
	}
	var items []json.RawMessage
	list := json.Unmarshal(data, &items) == nil
	if !list {
		items = []json.RawMessage{data}
	}
	all := make(Models, 0, len(items))
	for _, item := range items {
		ref, err := parseModelRef(item)
		if err != nil {
			return err
		}
		all = append(all, ref)
	}
	*m = all
	return nil
}

func parseModelRef(item json.RawMessage) (ref ModelRef, err error) {
	var name string
	if json.Unmarshal(item, &name) == nil {
		provider, model, found := strings.Cut(name, "/")
		if !found {
			return ref, fmt.Errorf("%q names no provider: in a list write PROVIDER/MODEL, or {provider, model}", name)
		}
		return ModelRef{Provider: provider, Model: model}, nil
	}
	if codec.Strict(item, &ref) != nil {
		return ref, fmt.Errorf("is neither a model's name nor {provider, model} nor a list of them")
	}
	return ref, nil
}

// PlainModels reports whether each task type has one model that stands there as a name alone,
// the only form that builds before revision 4 can read.
func (a *Agent) PlainModels() bool {
	for _, list := range a.Models {
		if len(list) != 1 || list[0].Provider != "" {
			return false
		}
	}
	return true
}

// Providers returns the names of the providers that the agent asks, its own first.
func (a *Agent) Providers() []string {
	names := []string{a.LLM.Provider}
	for _, task := range slices.Sorted(maps.Keys(a.Models)) {
		for _, ref := range a.Models[task] {
			if ref.Provider != "" && !slices.Contains(names, ref.Provider) {
				names = append(names, ref.Provider)
			}
		}
	}
	return names
}

func (a *Agent) checkModels() error {
	for _, task := range slices.Sorted(maps.Keys(a.Models)) {
		list := a.Models[task]
		if len(list) == 0 {
			return fmt.Errorf("models.%s: is empty; name a model", task)
		}
		for i, ref := range list {
			switch {
			case ref.Provider != "" && !ValidToken(ref.Provider):
				return fmt.Errorf("models.%s[%d]: %q is not a provider's name; use [a-z0-9][a-z0-9_-]{0,62}", task, i, ref.Provider)
			case ref.Model == "" && (len(list) > 1 || ref.Provider != ""):
				return fmt.Errorf("models.%s[%d]: names no model", task, i)
			}
		}
	}
	switch a.OnCut {
	case "", CutFail, CutContinue, CutAccept:
	default:
		return fmt.Errorf("on_cut: %q is not known; use fail, continue or accept", a.OnCut)
	}
	r := a.Reasoning
	switch {
	case r == nil:
		return nil
	case r.Effort != "" && !slices.Contains(Efforts(), r.Effort):
		return fmt.Errorf("reasoning.effort: %q is not an effort; use %s", r.Effort, strings.Join(Efforts(), ", "))
	case r.BudgetTokens < 0:
		return fmt.Errorf("reasoning.budget_tokens: must not be negative, is %d", r.BudgetTokens)
	case r.BudgetTokens > 0 && a.LLM.ThinkingTokens > 0:
		return fmt.Errorf("reasoning.budget_tokens: excludes llm.thinking_tokens, which means the same; keep one of them")
	}
	return nil
}

// checkTimeout checks how long a reply of the run's client may take.
func (a *Agent) checkTimeout() error {
	switch t := a.LLM.Timeout; {
	case t == 0:
	case t < 0 || t > MaxClientTimeout:
		return fmt.Errorf("llm.timeout: must be a time above 0 and at most %s, is %s; leave it out to wait as long as the run may take", time.Duration(MaxClientTimeout), time.Duration(t))
	case !slices.Contains(a.Providers(), ClientProvider):
		return fmt.Errorf("llm.timeout: is for the provider %s alone; planners bound the calls of other models", ClientProvider)
	}
	return nil
}

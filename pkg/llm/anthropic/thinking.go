package anthropic

import (
	"cmp"
	"math"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
)

// The settings as agents write them.
const (
	keyEffort = "reasoning.effort"
	keyBudget = "reasoning.budget_tokens"
)

// thinking.type.
const (
	adaptive = providers.ThinkingAdaptive
	enabled  = providers.ThinkingEnabled
	disabled = "disabled"
)

// budgets are how many tokens of thinking an effort stands for, where the model knows no
// efforts, and how many more a reply may have where it does. Fewer than minBudget are
// refused.
var budgets = map[string]int{
	"minimal": minBudget, "low": 4096, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768,
}

const minBudget = 1024

// adjust notes that a setting was sent otherwise: as sent, or not at all if that is nil.
func (x *exchange) adjust(key string, sent any) {
	x.adjusted = append(x.adjusted, llmhttp.Adjust(key, sent))
}

// sample sets sampling, bounds and thinking, which counts as a part of the reply. A model
// that thinks takes neither temperature nor top_p. mayThink is false for a turn that was
// begun without thinking.
func (x *exchange) sample(s llm.Sampling, mayThink bool) {
	p := &x.params
	p.MaxTokens = s.MaxTokens
	if s.MaxTokens <= 0 {
		p.MaxTokens = x.caller.opts.MaxTokens
	}
	if room := x.think(s, mayThink); s.MaxTokens <= 0 {
		p.MaxTokens += room
	}
	optional := func(key string, sampling *float64) *float64 {
		if sampling != nil && (x.thinks() || !x.caps.Sends(key)) {
			x.adjust(key, nil)
			return nil
		}
		return sampling
	}
	p.Temperature, p.TopP = optional("temperature", s.Temperature), optional("top_p", s.TopP)
	if p.Temperature != nil && p.TopP != nil && !x.caps.Sends("top_p_with_temperature") {
		x.adjust("top_p", nil)
		p.TopP = nil
	}
	if s.Seed != nil {
		x.adjust("seed", nil)
	}
	if p.StopSequences = s.Stop; len(s.Stop) > 0 && !x.caps.Sends("stop") {
		x.adjust("stop", nil)
		p.StopSequences = nil
	}
}

// think says how much the model is to think, in the way that it takes, and returns how
// many tokens of the reply that may be.
func (x *exchange) think(s llm.Sampling, mayThink bool) (room int) {
	c := x.caps
	switch {
	case s.Effort == "none" && (c.ThinkingOff || !c.ThinksByDefault):
		if c.ThinkingOff {
			x.params.Thinking = &thinking{Type: disabled}
		}
	case c.Thinking == adaptive && (s.Effort != "" || c.BudgetField == providers.None || s.ThinkingTokens <= 0):
		return x.adapt(s)
	case s.Effort == "" && s.ThinkingTokens <= 0:
	case c.Thinking == providers.None || !mayThink:
		x.leaveOut(s)
	default:
		return x.budget(s)
	}
	return 0
}

// leaveOut notes that the request does not say how to think.
func (x *exchange) leaveOut(s llm.Sampling) {
	if s.Effort != "" {
		x.adjust(keyEffort, nil)
	}
	if s.ThinkingTokens > 0 {
		x.adjust(keyBudget, nil)
	}
}

// adapt lets the model decide how much it thinks, by an effort if there is one. A model
// that thinks anyway is asked for the text of it.
func (x *exchange) adapt(s llm.Sampling) (room int) {
	if s.Effort == "" && s.ThinkingTokens <= 0 && !x.caps.ThinksByDefault {
		return 0
	}
	x.params.Thinking = &thinking{Type: adaptive}
	if x.caps.ThinkingDisplay {
		x.params.Thinking.Display = "summarized"
	}
	if s.ThinkingTokens > 0 { // it still bounds the reply
		x.adjust(keyBudget, nil)
	}
	return cmp.Or(s.ThinkingTokens, budgets[cmp.Or(x.effort(s.Effort), "high")])
}

// effort sends the model's level that is nearest to the one that was asked for, and
// returns it.
func (x *exchange) effort(asked string) (level string) {
	if asked == "" {
		return ""
	}
	if x.caps.EffortField == "output_config" {
		level = x.caps.Effort(asked)
	}
	if level != "" {
		x.params.OutputConfig = &outputConfig{Effort: level}
	}
	switch level {
	case asked:
	case "":
		x.adjust(keyEffort, nil)
	default:
		x.adjust(keyEffort, level)
	}
	return level
}

// budget bounds the thinking of a model that wants that, by the effort if there is no
// bound. The API wants at least minBudget, and less than the bound of the reply.
func (x *exchange) budget(s llm.Sampling) (room int) {
	asked, most := s.ThinkingTokens, math.MaxInt
	if asked <= 0 {
		asked = budgets[s.Effort]
	}
	switch {
	case s.MaxTokens > 0 && s.ThinkingTokens > 0:
		most = s.MaxTokens - 1
	case s.MaxTokens > 0: // the answer needs some of them
		most = s.MaxTokens / 2
	case x.caps.MaxReply > 0:
		most = x.caps.MaxReply - x.caller.opts.MaxTokens
	}
	if most < minBudget {
		x.leaveOut(s)
		return 0
	}
	tokens := min(max(asked, minBudget), most)
	x.params.Thinking = &thinking{Type: enabled, BudgetTokens: tokens}
	if s.ThinkingTokens > 0 && tokens != asked {
		x.adjust(keyBudget, tokens)
	}
	switch {
	case s.Effort == "":
	case x.caps.EffortField == "output_config":
		x.effort(s.Effort)
	default:
		x.adjust(keyEffort, x.params.Thinking)
	}
	return tokens
}

// thinks reports whether the model is asked to think.
func (x *exchange) thinks() bool {
	return x.params.Thinking != nil && x.params.Thinking.Type != disabled
}

// returns reports whether thinking goes back: to a model that thinks, asked or not.
func (x *exchange) returns() bool {
	return x.thinks() || x.params.Thinking == nil && x.caps.ThinksByDefault
}

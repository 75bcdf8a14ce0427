package planner

import (
	"errors"
	"fmt"
	"math"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// codeNoPrice is the code of a run whose budget is in money and whose model has no known
// price.
const codeNoPrice = "no_price"

// bill is the cost of one model call. It holds what it needs of the memory before the
// call.
type bill struct {
	prices   llm.Prices
	provider string
	// model is the one that is called, empty if the provider chooses one without naming
	// it.
	model string
	// own says that the provider's replies state their cost, or are free.
	own bool
	// limited says that the run's budget is in money.
	limited bool
}

// reserve checks the next call against the run's budget. spent was used since the run's
// last event. If the call would exceed the budget, or the budget needs a price that is
// unknown, the call is not made, and end ends the run.
func (p *Planner) reserve(mem *reducer.Memory, req llm.Request, spent llm.Usage) (b bill, end events.Payload) {
	b = p.bill(mem, req)
	price, known := b.price("")
	if !known && b.limited && b.model != "" {
		return b, b.noPrice(b.model)
	}
	input := p.estimate(mem, req)
	most := price.Cost(llm.Usage{Input: input, Output: mem.Control.Agent.LLM.MaxTokens})
	used := mem.TotalUsage
	used.Input, used.Output, used.Total = used.Input+spent.Input, used.Output+spent.Output, used.Total+spent.Total
	if spent.CostUSD != nil {
		used.Cost += *spent.CostUSD
	} else {
		used.Cost += price.Cost(spent)
	}
	if code, message := overBudget(mem, used, input, most, p.cfg.Store.Now()); code != "" {
		return b, &events.BudgetExceeded{Outcome: events.Outcome{Code: code, Message: message}}
	}
	return b, nil
}

func (p *Planner) bill(mem *reducer.Memory, req llm.Request) bill {
	b := bill{prices: p.cfg.Prices, provider: req.Provider, model: req.Model}
	b.limited = mem.Budget != nil && mem.Budget.MaxCostUSD > 0
	caller := p.cfg.Providers[b.provider]
	about := llm.Describe(caller)
	// A missing provider is reported by the call.
	b.own = caller == nil || about.Local || about.OwnCost
	if b.model == "" && !b.own {
		b.model = about.DefaultModel
	}
	return b
}

// price returns the price of the model that answered, else of the one that was called. It
// is zero for a provider with its own costs.
func (b bill) price(answered string) (llm.Price, bool) {
	if b.own {
		return llm.Price{}, true
	}
	if b.prices == nil {
		return llm.Price{}, false
	}
	for _, model := range []string{answered, b.model} {
		if model == "" {
			continue
		}
		if price, ok := b.prices.Price(b.provider, model); ok {
			return price, true
		}
	}
	return llm.Price{}, false
}

// charge writes the cost of the payload's usage into it, if the provider did not state
// one. If the budget needs a price that is unknown, the run ends instead, and its end
// states the usage.
func (b bill) charge(p events.Payload, answered string) events.Payload {
	u := events.Billed(p)
	if u == nil || u.CostUSD != nil || b.own {
		return p
	}
	if price, known := b.price(answered); known {
		if u.CostUSD = cost(price, u); u.CostUSD != nil {
			return p
		}
	}
	if !b.limited {
		return p
	}
	end := b.noPrice(answered)
	end.Usage = u
	if facts := events.FactsOf(p); facts != nil {
		end.Facts = *facts
	}
	return end
}

// attempt returns what a failed call cost, nil if that is unknown.
func (b bill) attempt(err error) *events.Usage {
	u := billed(err)
	if u == nil || u.CostUSD != nil || b.own {
		return u
	}
	if price, known := b.price(answered(err)); known {
		u.CostUSD = cost(price, u)
	}
	return u
}

// answered returns the model whose reply came and is not used, empty if it is unknown.
func answered(err error) string {
	var e *llm.Error
	if !errors.As(err, &e) || e.Reply == nil {
		return ""
	}
	return e.Reply.Model
}

// billed returns the usage of a failed call, nil if there is none.
func billed(err error) *events.Usage {
	var e *llm.Error
	if !errors.As(err, &e) || e.Usage == nil {
		return nil
	}
	u := usage(*e.Usage)
	return &u
}

func (b bill) noPrice(model string) *events.FatalError {
	name := b.provider + "/" + model
	return &events.FatalError{Outcome: events.Outcome{Code: codeNoPrice, Message: clean(fmt.Sprintf(
		"the budget is in US dollars (max_cost_usd), and the price of the model %q of the provider %q is not known: "+
			"give the planner (or moorebus run, moorebus dev) --prices FILE, or set MOOREBUS_PRICES=FILE (in Go: agent.Builder.Prices), with an entry such as "+
			"%q: {input: 1.5, output: 6} in dollars per million tokens; or leave max_cost_usd out", model, b.provider, name))}}
}

// cost returns the cost of tokens in US dollars; nil if the price, from an application's
// own table, makes it unwritable.
func cost(price llm.Price, u *events.Usage) *float64 {
	usd := dollars(price.Cost(llm.Usage{Input: u.Input, Output: u.Output, Cached: u.Cached}))
	if math.IsNaN(usd) || math.IsInf(usd, 0) {
		return nil
	}
	return &usd
}

// dollars rounds to an amount far below the price of a token, so that 0.1 + 0.2 is written
// as 0.3.
func dollars(usd float64) float64 { return math.Round(usd*1e12) / 1e12 }

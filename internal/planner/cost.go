package planner

import (
	"errors"
	"fmt"
	"math"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// codeNoPrice ends a run whose budget is in money, and whose model has a price
// that nobody knows.
const codeNoPrice = "no_price"

// bill is what one call of a model costs. It holds all that it needs of the
// memory, as of before the call.
type bill struct {
	prices   llm.Prices
	provider string
	// model is the one that is asked, empty where the provider chooses one that
	// it does not name.
	model string
	// own says that the provider's replies cost what they say, or nothing.
	own bool
	// limited says that the run's budget is in money.
	limited bool
}

// reserve holds the call that is about to be made against the run's budget. A
// call that would exceed it, or whose price the budget needs and nobody knows, is
// not made: end is what the run ends with then.
func (p *Planner) reserve(mem *reducer.Memory, req llm.Request) (b bill, end events.Payload) {
	b = p.bill(mem, req)
	price, known := b.price("")
	if !known && b.limited && b.model != "" {
		return b, b.noPrice(b.model)
	}
	input := p.estimate(mem, req)
	most := price.Cost(llm.Usage{Input: input, Output: mem.Control.Agent.LLM.MaxTokens})
	if code, message := overBudget(mem, input, most, p.cfg.Store.Now()); code != "" {
		return b, &events.BudgetExceeded{Outcome: events.Outcome{Code: code, Message: message}}
	}
	return b, nil
}

func (p *Planner) bill(mem *reducer.Memory, req llm.Request) bill {
	b := bill{prices: p.cfg.Prices, provider: mem.Control.Agent.LLM.Provider, model: req.Model}
	b.limited = mem.Budget != nil && mem.Budget.MaxCostUSD > 0
	caller := p.cfg.Providers[b.provider]
	switch c := caller.(type) {
	case nil:
		b.own = true // nobody is asked, and that is another error
	case llm.InProcess, llm.OwnCost:
		b.own = true
	case llm.Defaulting:
		if b.model == "" {
			b.model = c.DefaultModel()
		}
	}
	return b
}

// price returns the price of the model that answered, else of the one that was
// asked. That of a provider with costs of its own is nothing.
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

// charge writes into the payload what its usage cost, where the provider did not
// say. Without a price that the budget needs, the run ends instead: what it has
// used then stands in its end.
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
	return end
}

// attempt returns what a failed call cost all the same, nil where nothing is
// known of it.
func (b bill) attempt(err error) *events.Usage {
	u := billed(err)
	if u == nil || u.CostUSD != nil || b.own {
		return u
	}
	if price, known := b.price(""); known {
		u.CostUSD = cost(price, u)
	}
	return u
}

// billed returns the usage of a call that failed, nil where there is none.
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

// cost is what the tokens cost, in US dollars; nil where a price that makes no
// sense, of an application's own table, comes to what cannot be written.
func cost(price llm.Price, u *events.Usage) *float64 {
	usd := dollars(price.Cost(llm.Usage{Input: u.Input, Output: u.Output, Cached: u.Cached}))
	if math.IsNaN(usd) || math.IsInf(usd, 0) {
		return nil
	}
	return &usd
}

// dollars rounds an amount far below what a token costs, so that 0.1 + 0.2 is
// written as what it is.
func dollars(usd float64) float64 { return math.Round(usd*1e12) / 1e12 }

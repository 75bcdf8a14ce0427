package llm

// Price is what a model costs, in US dollars for a million tokens. Input that
// was read from the provider's cache costs CachedInput.
type Price struct {
	Input       float64
	CachedInput float64
	Output      float64
}

// Cost returns what the tokens cost, in US dollars.
func (p Price) Cost(u Usage) float64 {
	cached := min(max(u.Cached, 0), u.Input)
	return (float64(u.Input-cached)*p.Input + float64(cached)*p.CachedInput + float64(u.Output)*p.Output) / 1e6
}

// Prices returns the price of a model, or false if it is unknown. Provider is the name
// that agents use.
type Prices interface {
	Price(provider, model string) (Price, bool)
}

// OwnCost is a [Caller] whose replies cost what their usage says, or nothing. No price
// is looked up for it, as for an [InProcess].
type OwnCost interface {
	Caller
	// OwnCost does nothing.
	OwnCost()
}

// Defaulting is a [Caller] that knows the model for requests that name none.
type Defaulting interface {
	Caller
	DefaultModel() string
}

package llmhttp

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// Word is a text that some servers give as a number.
type Word string

// UnmarshalJSON reads a string or a number; anything else is empty.
func (w *Word) UnmarshalJSON(raw []byte) error {
	var s string
	switch {
	case json.Unmarshal(raw, &s) == nil: // null is empty
		*w = Word(s)
	case raw[0] != '{' && raw[0] != '[':
		*w = Word(raw)
	}
	return nil
}

// Number is a number of any form.
type Number float64

// UnmarshalJSON reads a number, or a string with one; anything else is 0.
func (n *Number) UnmarshalJSON(raw []byte) error {
	var w Word
	_ = w.UnmarshalJSON(raw) // it takes everything
	f, err := strconv.ParseFloat(strings.TrimSpace(string(w)), 64)
	if err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		*n = Number(f)
	}
	return nil
}

// Count is the number as one of tokens.
func (n Number) Count() int { return int(min(max(math.Round(float64(n)), 0), 1<<53)) }

// Cost is a price in US dollars.
type Cost struct{ USD *float64 }

// UnmarshalJSON reads a number, or an object that has it as usd or total_cost.
func (c *Cost) UnmarshalJSON(raw []byte) error {
	var in struct {
		USD       *Number `json:"usd"`        // Hyper
		TotalCost *Number `json:"total_cost"` // Perplexity
	}
	if raw[0] != '{' {
		in.USD = new(Number)
		if string(raw) == "null" || json.Unmarshal(raw, in.USD) != nil {
			return nil
		}
	} else if json.Unmarshal(raw, &in) != nil {
		return nil
	}
	for _, n := range []*Number{in.USD, in.TotalCost} {
		if n != nil && *n >= 0 {
			usd := float64(*n)
			c.USD = &usd
			return nil
		}
	}
	return nil
}

// Arguments are those of a call: text, or an object, which is whole then.
type Arguments struct{ Text, Whole string }

// UnmarshalJSON reads a string, or takes any other value as it is.
func (a *Arguments) UnmarshalJSON(raw []byte) error {
	if json.Unmarshal(raw, &a.Text) != nil {
		a.Whole = string(raw)
	}
	return nil
}

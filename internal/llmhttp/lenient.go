package llmhttp

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// The types of this file read what servers write in many forms. A standard type would
// refuse the entire reply for one value of an unexpected form.

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
	if f, ok := numeric(raw); ok {
		*n = Number(f)
	}
	return nil
}

func numeric(raw []byte) (float64, bool) {
	var w Word
	_ = w.UnmarshalJSON(raw) // it takes everything
	f, err := strconv.ParseFloat(strings.TrimSpace(string(w)), 64)
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

// Count is the number as one of tokens.
func (n Number) Count() int { return int(min(max(math.Round(float64(n)), 0), 1<<53)) }

// Cost is a price in US dollars; USD is nil where there is none.
type Cost struct{ USD *float64 }

// UnmarshalJSON reads a number, or an object that has it as usd (Hyper) or total_cost
// (Perplexity).
func (c *Cost) UnmarshalJSON(raw []byte) error {
	var in struct {
		USD       json.RawMessage `json:"usd"`
		TotalCost json.RawMessage `json:"total_cost"`
	}
	_ = json.Unmarshal(raw, &in) // a number has neither
	for _, value := range [][]byte{raw, in.USD, in.TotalCost} {
		if len(value) == 0 {
			continue
		}
		if usd, ok := numeric(value); ok && usd >= 0 {
			c.USD = &usd
			return nil
		}
	}
	return nil
}

// Arguments are those of a call: text, or a complete object.
type Arguments struct{ Text, Whole string }

// UnmarshalJSON reads a string, or takes any other value as it is.
func (a *Arguments) UnmarshalJSON(raw []byte) error {
	if json.Unmarshal(raw, &a.Text) != nil {
		a.Whole = string(raw)
	}
	return nil
}

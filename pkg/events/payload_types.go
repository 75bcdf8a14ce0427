package events

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/codec"
)

// MarshalJSON writes the registered event's data as it is.
func (c *Custom) MarshalJSON() ([]byte, error) { return rawOrEmpty(c.Data), nil }

// UnmarshalJSON keeps the data as it is.
func (c *Custom) UnmarshalJSON(data []byte) error {
	c.Data = append(json.RawMessage(nil), data...)
	return nil
}

// MarshalJSON writes the single call's outcome, or `{}` after a batch.
func (p *ToolSuccess) MarshalJSON() ([]byte, error) { return appendOutcome(nil, p.Outcome) }

// UnmarshalJSON reads either form.
func (p *ToolSuccess) UnmarshalJSON(data []byte) (err error) {
	p.Outcome, err = unmarshalOutcome(data)
	return err
}

// MarshalJSON writes the single call's outcome, or `{}` after a batch.
func (p *ToolFailure) MarshalJSON() ([]byte, error) { return appendOutcome(nil, p.Outcome) }

// UnmarshalJSON reads either form.
func (p *ToolFailure) UnmarshalJSON(data []byte) (err error) {
	p.Outcome, err = unmarshalOutcome(data)
	return err
}

// appendPayload and unmarshalPayload spare the payloads that have a form of their
// own the second pass that package json makes over it.

func appendPayload(b []byte, p Payload) ([]byte, error) {
	switch p := p.(type) {
	case *ToolSuccess:
		return appendOutcome(b, p.Outcome)
	case *ToolFailure:
		return appendOutcome(b, p.Outcome)
	}
	return codec.Append(b, p)
}

func unmarshalPayload(data []byte, p Payload) error {
	switch p := p.(type) {
	case *ToolSuccess:
		return p.UnmarshalJSON(data)
	case *ToolFailure:
		return p.UnmarshalJSON(data)
	case *Custom:
		return json.Unmarshal(data, p)
	}
	return codec.Unmarshal(data, p)
}

// PayloadSize is the length of a payload as it stands in an event's body, in bytes;
// 0 for one that has no JSON, which [Codec.Encode] refuses.
func PayloadSize(p Payload) int {
	data, err := appendPayload(nil, p)
	if err != nil {
		return 0
	}
	return len(data)
}

func appendOutcome(b []byte, o *ToolOutcome) ([]byte, error) {
	if o == nil {
		return append(b, "{}"...), nil
	}
	return codec.Append(b, o)
}

func unmarshalOutcome(data []byte) (*ToolOutcome, error) {
	var o ToolOutcome
	if err := codec.Unmarshal(data, &o); err != nil {
		return nil, err
	}
	if o.CallID == "" && o.Code == "" {
		return nil, nil
	}
	return &o, nil
}

func rawOrEmpty(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	return raw
}

package clientmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
)

// The errors of requests that there are not.
var (
	ErrNothingPending = errors.New("the run waits for no reply of its model")
	ErrNoRequest      = errors.New("the event is no reply of a model")
)

// ModelRequest is what a model is asked, or was asked, as it goes over the wire.
type ModelRequest struct {
	// Key names the request if its reply is awaited. N is the event that it follows.
	Key string `json:"key,omitempty"`
	N   uint64 `json:"n"`
	// Dialect is the API: openai, responses or anthropic; scripted or client, in the form of
	// openai, where there is none.
	Dialect string `json:"dialect"`
	Model   string `json:"model"`
	// Messages and Tools are those of Body, empty lists if it has none. System is the system
	// prompt of a dialect that has it apart. Sampling are Body's other keys, except those that
	// say how the reply comes.
	Messages json.RawMessage `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
	System   json.RawMessage `json:"system,omitempty"`
	Sampling json.RawMessage `json:"sampling"`
	// Exact is set for a request whose reply is in the log: whether Body has the digest that
	// the reply's event has.
	Exact *bool `json:"exact,omitempty"`
	// Body is the whole, byte for byte. Over HTTP it has to be asked for.
	Body []byte `json:"body,omitempty"`
}

// MarshalJSON writes the request with the characters that the model was sent.
func (r ModelRequest) MarshalJSON() ([]byte, error) {
	type plain ModelRequest
	return marshal(plain(r))
}

// marshal is json.Marshal without HTML escapes.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(out.Bytes()), err
}

// SetBody parts the body.
func (r *ModelRequest) SetBody(body []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(body, &keys); err != nil {
		return err
	}
	r.Body = body
	r.Messages, r.Tools, r.System = json.RawMessage("[]"), json.RawMessage("[]"), keys["system"]
	for _, key := range []string{"messages", "input"} {
		if list, ok := keys[key]; ok {
			r.Messages = list
		}
	}
	if list, ok := keys["tools"]; ok {
		r.Tools = list
	}
	var model string
	if json.Unmarshal(keys["model"], &model) == nil && r.Model == "" {
		r.Model = model
	}
	for key := range keys {
		if slices.Contains([]string{"model", "messages", "input", "tools", "system", "stream", "stream_options"}, key) {
			delete(keys, key)
		}
	}
	var err error
	r.Sampling, err = marshal(keys)
	return err
}

// RequestQuestion is a question about a request to a provider's model. At is the event with its
// reply; 0: the one that is awaited.
type RequestQuestion struct {
	Namespace string `json:"namespace"`
	Run       string `json:"run"`
	At        uint64 `json:"at,omitempty"`
}

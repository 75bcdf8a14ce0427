// Package clientmodel has what planners and gateways know in common of models that are the
// run's own client (`llm: {provider: client}`): which request waits for the client, and what a
// gateway asks a planner when a reply comes.
package clientmodel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Request is a request to a model whose reply is awaited.
type Request struct {
	// Key names the request. It follows from the log, so it outlives every process, and a
	// pause. N is the event that the request answers.
	Key string
	N   uint64
	// Client says that the reply is the client's to give, Paused that the run is paused.
	Client, Paused bool
	Effect         effects.Effect
}

// Pending returns the request whose reply a run waits for, if it does.
func Pending(t *reducer.Table, mem *reducer.Memory) (Request, bool) {
	for _, e := range effects.Of(t, mem) {
		if e.Kind != effects.KindPlan && e.Kind != effects.KindReflect || len(mem.Control.Queued) > 0 {
			continue
		}
		r := Request{N: mem.Control.Armed, Client: e.Client, Paused: e.Held, Effect: e}
		r.Key = fmt.Sprintf("%s/%d", mem.RunID, r.N)
		if passed := e.Failed.Passed; passed > 0 && e.Kind == effects.KindPlan {
			r.Key += fmt.Sprintf("/%d", passed) // another model is asked
		}
		return r, true
	}
	return Request{}, false
}

// Asks reports whether one of the agent's models is the client.
func Asks(a *events.Agent) bool {
	return slices.Contains(a.Providers(), events.ClientProvider)
}

// Topic is the topic of questions about replies of client models, which every planner answers.
// The topic of requests to a provider is RequestTopic of its name.
const Topic = "client"

// RequestTopic is the topic of requests to a provider, which its planners answer.
func RequestTopic(provider string) string { return "request-" + provider }

// What a gateway asks for.
const (
	// Reply asks for the reply to be appended, Expire for the end of the wait.
	Reply  = "reply"
	Expire = "expire"
)

// Question is what a gateway asks about a client's reply. Key names the request.
type Question struct {
	Do        string  `json:"do"`
	Namespace string  `json:"namespace"`
	Run       string  `json:"run"`
	Key       string  `json:"key"`
	Message   Message `json:"message,omitzero"`
}

// Message is the client's reply: text, calls or both.
type Message struct {
	ID      string        `json:"id,omitempty"`
	Content string        `json:"content,omitempty"`
	Calls   []events.Call `json:"calls,omitempty"`
	Usage   *events.Usage `json:"usage,omitempty"`
	Model   string        `json:"model,omitempty"`
}

// The answers to a [Question]. Failed means that the same may be asked again.
const (
	Done     = "done"
	Obsolete = "obsolete"
	Paused   = "paused"
	Failed   = "failed"
)

// Answer is the answer to a [Question]. Reason is set for Failed. RetryAfter is set if the log
// has the failure as an attempt: the same is not to be asked again earlier.
type Answer struct {
	Code       string          `json:"code"`
	Reason     string          `json:"reason,omitempty"`
	RetryAfter events.Duration `json:"retry_after,omitempty"`
}

// Wait is the note of the timer that ends the wait for a reply. At is the time for which it was
// set. Wake is the event that began the wait: after a pause it is a later one, and the timer of
// an earlier wait ends nothing.
type Wait struct {
	At   time.Time `json:"at"`
	Key  string    `json:"key"`
	Wake uint64    `json:"wake"`
	// Led says that nothing is waited for: the delivery of Wake, which went to Planning, leads the
	// run in a state that the planner's process does not serve.
	Led bool `json:"led,omitempty"`
}

// Note returns the wait as a timer's note.
func (w Wait) Note() []byte {
	data, _ := json.Marshal(w) // years have four digits
	return data
}

// Note returns the note of the timer that ends the wait for a reply to the request.
func (r *Request) Note(at time.Time) []byte {
	return Wait{At: at, Key: r.Key, Wake: r.Effect.Wake}.Note()
}

// Asked is the event that a request answers.
type Asked struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
}

// Find reads a run's log after seq for an event that has the message, a reply or one of the
// user's, and for the nth event there. An empty message is in no event.
func Find(ctx context.Context, log journal.Log, run events.Run, seq uint64, message string, n uint64) (found bool, at Asked, err error) {
	quoted, err := json.Marshal(message)
	if err != nil {
		return false, at, err
	}
	plain := !bytes.ContainsRune(quoted, '\\') // another text may be escaped otherwise
	place := uint64(0)
	for rec, err := range log.Read(ctx, run, seq) {
		if err != nil {
			return false, at, err
		}
		if _, err := events.ParseSubject(rec.Subject); err != nil {
			continue // it belongs to no run
		}
		place++
		mayHave := !plain || bytes.Contains(rec.Body, quoted)
		if place != n && !mayHave {
			continue
		}
		var e struct {
			Asked
			Type events.Type `json:"type"`
			Data struct {
				MessageID string `json:"message_id"`
			} `json:"data"`
		}
		if json.Unmarshal(rec.Body, &e) != nil {
			continue
		}
		if place == n {
			at = e.Asked
		}
		if message != "" && e.Data.MessageID == message && e.Type != events.TypeLLMAttemptFailed {
			found = true
		}
	}
	return found, at, nil
}

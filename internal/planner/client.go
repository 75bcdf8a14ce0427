package planner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// A run whose model is its own client waits for a reply that a client posts to a gateway. No
// planner holds the run meanwhile: the delivery that asked is acknowledged. The gateway hands
// the reply to any planner, which checks and appends it like a reply of any other model.

// dialectClient is what a client model is asked in: the form of chat completions.
const dialectClient = "client"

// messageID returns the id of a client's reply, or a new one if there is none.
func messageID(said *clientmodel.Message, newID func() string) string {
	if said == nil {
		return newID()
	}
	return said.ID
}

// dispatches returns the events that dispatch the calls of a client's reply, if they are of
// several pools. Of another model the delivery that asked it dispatches them. Here that one is
// acknowledged, so they are appended with the reply, all or none.
func (pl *planning) dispatches(reply events.Payload) []events.Payload {
	batch, ok := reply.(*events.LLMParallelToolCalls)
	pool := func(c events.Call) string { return cmp.Or(pl.check.tools[c.Name].Pool, events.DefaultPool) }
	if !ok || pl.call.said == nil || !slices.ContainsFunc(batch.Calls, func(c events.Call) bool { return pool(c) != pool(batch.Calls[0]) }) {
		return nil
	}
	all := make([]events.Payload, len(batch.Calls))
	for i, c := range batch.Calls {
		all[i] = &events.ToolCallDispatched{CallID: c.ID}
	}
	return all
}

// clientCaller gives the reply of a client model.
type clientCaller struct {
	said *clientmodel.Message
	chat llm.Writer
}

// Call returns the reply, as the answer to the request in the form that the client was shown.
func (c clientCaller) Call(ctx context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	meta := llm.Meta{Model: c.said.Model, Dialect: dialectClient}
	if meta.Model == "" {
		meta.Model = req.Model
	}
	if u := c.said.Usage; u != nil {
		meta.Usage = llm.Usage(*u)
		if meta.Usage.Total == 0 {
			meta.Usage.Total = u.Input + u.Output
		}
	}
	var names toolNames
	if c.chat != nil {
		written, err := writeChat(ctx, c.chat, req)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(written.Body)
		meta.RequestSHA256 = hex.EncodeToString(sum[:])
		names = namesIn(req, written.Body)
	}
	if len(c.said.Calls) > 0 {
		calls := make([]llm.Call, len(c.said.Calls))
		for i, call := range c.said.Calls {
			calls[i] = llm.Call{ID: call.ID, Name: names.own(call.Name), Arguments: call.Arguments}
		}
		return llm.ToolCalls{Meta: meta, Content: c.said.Content, Calls: calls}, nil
	}
	if len(req.OutputSchema) > 0 {
		return llm.Structured{Meta: meta, Content: c.said.Content}, nil
	}
	return llm.Text{Meta: meta, Content: c.said.Content}, nil
}

// toolNames are the tools' own names by those that the client was shown.
type toolNames map[string]string

func (n toolNames) own(shown string) string {
	if own, ok := n[shown]; ok {
		return own
	}
	return shown
}

// namesIn reads the names of the request's tools in its written form, which has them in the
// same order.
func namesIn(req llm.Request, body []byte) toolNames {
	var written struct {
		Tools []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
	}
	if json.Unmarshal(body, &written) != nil || len(written.Tools) < len(req.Tools) {
		return nil
	}
	names := toolNames{}
	for i, t := range req.Tools {
		names[written.Tools[i].Function.Name] = t.Name
	}
	return names
}

// writeChat writes a request in the form of chat completions for a model that may have no name.
func writeChat(ctx context.Context, chat llm.Writer, req llm.Request) (llm.Written, error) {
	if req.Model == "" {
		req.Model = req.Provider
	}
	return chat.Write(ctx, req, "", false)
}

// await leaves a run to its client. If the agent bounds the wait, a timer ends it.
func (p *Planner) await(run events.Run, mem *reducer.Memory) worker.Work {
	timeout := time.Duration(mem.Control.Agent.LLM.Timeout)
	pending, _ := clientmodel.Pending(p.cfg.Store.Machine().Table(), mem)
	return func(ctx context.Context) worker.Result {
		if timeout > 0 {
			if err := p.bound(ctx, run, &pending, timeout); err != nil {
				return worker.Fail(fmt.Errorf("the timer for the client's reply: %w", err))
			}
		}
		return worker.Outside()
	}
}

// bound sets the timer that ends the wait for a reply.
func (p *Planner) bound(ctx context.Context, run events.Run, pending *clientmodel.Request, timeout time.Duration) error {
	if p.cfg.Timers == nil {
		return errors.New("this planner sets no timers")
	}
	at := p.cfg.Store.Now().Add(timeout)
	return worker.Outlast(ctx, func(ctx context.Context) error {
		return runstart.SetTimer(ctx, p.cfg.Timers, run, ports.TimerModel, at, pending.Note(at))
	}, func(err error, _ time.Duration) {
		p.cfg.Logger.Warn("the timer for a client's reply cannot be set yet", "run", run.ID, "reason", err)
	})
}

// leads reports whether the delivery that leads a run may go on with a request to a model. It may not
// where replies come from the run's client, since each wait for one begins with a delivery.
func leads(mem *reducer.Memory, _ events.Payload) bool { return !clientmodel.Asks(&mem.Control.Agent) }

// handOver has a gateway drive the work of a run whose state this process does not serve, although
// event n leads the run, which went to Planning.
func (p *Planner) handOver(ctx context.Context, run events.Run, n uint64) error {
	if p.cfg.Timers == nil {
		return errors.New("this planner sets no timers")
	}
	now := p.cfg.Store.Now()
	return runstart.SetTimer(ctx, p.cfg.Timers, run, ports.TimerModel, now, clientmodel.Wait{At: now, Wake: n, Led: true}.Note())
}

// answerGateways answers the questions of gateways until stop is called.
func (p *Planner) answerGateways() (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, one := range stops {
			one()
		}
	}
	answer := func(topic string, answer func(ctx context.Context, question []byte) []byte) {
		if p.cfg.Questions == nil || err != nil {
			return
		}
		var one func()
		if one, err = p.cfg.Questions.Answer(topic, answer); err == nil {
			stops = append(stops, one)
		}
	}
	answer(clientmodel.Topic, p.answerReply)
	for name, caller := range p.cfg.Providers {
		if _, writes := caller.(llm.Writer); writes {
			answer(clientmodel.RequestTopic(name), p.answerRequest)
		}
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("planner: answering gateways: %w", err)
	}
	return stop, nil
}

// answerReply answers a question about a client's reply.
func (p *Planner) answerReply(ctx context.Context, question []byte) []byte {
	answer, err := p.clientReply(ctx, question)
	if err != nil {
		p.cfg.Logger.Warn("a client's reply could not be stored", "reason", err)
		answer = clientmodel.Answer{Code: clientmodel.Failed, Reason: clean(err.Error())}
	}
	data, _ := json.Marshal(answer) // strings always have JSON
	return data
}

// answerRequest writes a request to one of the planner's providers. The answer is empty if it
// cannot be written.
func (p *Planner) answerRequest(ctx context.Context, question []byte) []byte {
	var q clientmodel.RequestQuestion
	if json.Unmarshal(question, &q) != nil || !events.ValidToken(q.Namespace) || events.CheckID(q.Run) != nil {
		return nil
	}
	requests := NewRequests(RequestsConfig{
		Store: p.cfg.Store, Blobs: p.cfg.Blobs, Text: p.cfg.Text, Chat: p.cfg.Chat, Providers: p.cfg.Providers, NoStream: p.cfg.NoStream, Logger: p.cfg.Logger,
	})
	req, err := requests.Of(ctx, p.cfg.Store.Place(q.Namespace, q.Run), q.At)
	if err != nil {
		p.cfg.Logger.Warn("a request cannot be written", "run", q.Run, "n", q.At, "reason", err)
		return nil
	}
	data, _ := req.MarshalJSON() // its parts are valid JSON, whose characters stay as they are
	return data
}

// clientReply appends a reply that a gateway brings, or the end of the wait for it.
func (p *Planner) clientReply(ctx context.Context, question []byte) (clientmodel.Answer, error) {
	var q clientmodel.Question
	if err := json.Unmarshal(question, &q); err != nil {
		return clientmodel.Answer{}, err
	}
	if !events.ValidToken(q.Namespace) || events.CheckID(q.Run) != nil || q.Do == clientmodel.Reply && q.Message.ID == "" {
		return clientmodel.Answer{}, errors.New("the question names no run or no message")
	}
	run := p.cfg.Store.Place(q.Namespace, q.Run)
	pending, seq, err := p.pending(ctx, run)
	if err != nil {
		return clientmodel.Answer{}, err
	}
	found, asked, err := clientmodel.Find(ctx, p.cfg.Store.Log(), run, 0, q.Message.ID, pending.Effect.Wake)
	switch {
	case err != nil:
		return clientmodel.Answer{}, err
	case found:
		return clientmodel.Answer{Code: clientmodel.Done}, nil
	case !pending.Client || pending.Key != q.Key:
		return clientmodel.Answer{Code: clientmodel.Obsolete}, nil
	case pending.Paused:
		return clientmodel.Answer{Code: clientmodel.Paused}, nil
	}
	doing := p.worker.Do(ctx, run, pending.Effect.Key, asked.ID, p.answered(&q))
	return p.outcome(ctx, run, seq, &q, doing)
}

// answered is the handler of a request that has its reply, or never gets one.
func (p *Planner) answered(q *clientmodel.Question) worker.HandlerFunc {
	return func(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
		switch now, _ := clientmodel.Pending(p.cfg.Store.Machine().Table(), mem); {
		case now.Key != q.Key || !now.Client: // another model is asked by now
			return func(context.Context) worker.Result { return worker.Outside() }
		case q.Do == clientmodel.Expire:
			return p.expire(mem, e)
		case e.Kind == effects.KindReflect:
			return p.reflectWith(&q.Message, run, mem, e)
		}
		return p.planWith(&q.Message, run, mem, e)
	}
}

// expire ends the wait for a reply as for any model that does not answer. The gateway has the
// next model asked, if there is one.
func (p *Planner) expire(mem *reducer.Memory, e effects.Effect) worker.Work {
	ref, more := effects.Model(mem, e.Failed)
	message := fmt.Sprintf("the run's client, which is its model, gave no reply within %s", time.Duration(mem.Control.Agent.LLM.Timeout))
	kind := string(llm.KindNetwork)
	switch {
	case e.Kind == effects.KindReflect:
		return done(&events.ReflectDone{Failed: message})
	case more:
		failure := events.LLMAttemptFailed{Kind: kind, Message: message, Next: true}
		failure.Asked = &events.Asked{Provider: ref.Provider, Model: ref.Model}
		return func(context.Context) worker.Result { return worker.Retry(failure, atOnce) }
	}
	return done(&events.FatalError{Outcome: events.Outcome{Code: kind, Message: message}})
}

// pending returns the request whose reply the run waits for at the head of its log, zero if
// there is none. seq is the head's record.
func (p *Planner) pending(ctx context.Context, at events.Run) (pending clientmodel.Request, seq uint64, err error) {
	run := p.cfg.Store.Acquire(at)
	defer p.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return pending, 0, err
	}
	pending, _ = clientmodel.Pending(p.cfg.Store.Machine().Table(), run.Memory())
	return pending, run.Seq(), nil
}

// outcome says what became of a reply, which is not in the log up to seq. doing is the error of
// the work.
func (p *Planner) outcome(ctx context.Context, run events.Run, seq uint64, q *clientmodel.Question, doing error) (clientmodel.Answer, error) {
	now, _, err := p.pending(ctx, run)
	if err != nil {
		return clientmodel.Answer{}, errors.Join(doing, err)
	}
	gone := now.Key != q.Key
	if q.Do == clientmodel.Expire && gone {
		return clientmodel.Answer{Code: clientmodel.Done}, nil
	}
	found, _, err := clientmodel.Find(ctx, p.cfg.Store.Log(), run, seq, q.Message.ID, 0)
	switch {
	case err != nil:
		return clientmodel.Answer{}, errors.Join(doing, err)
	case found:
		return clientmodel.Answer{Code: clientmodel.Done}, nil
	case gone:
		return clientmodel.Answer{Code: clientmodel.Obsolete}, nil
	case now.Paused:
		return clientmodel.Answer{Code: clientmodel.Paused}, nil
	case doing == nil:
		doing = errors.New("the reply was not stored")
	}
	if delay, asked := retry.Asked(doing); asked && now.Effect.Failed.Last != "" {
		return clientmodel.Answer{Code: clientmodel.Failed, Reason: clean(now.Effect.Failed.Last), RetryAfter: events.Duration(delay)}, nil
	}
	return clientmodel.Answer{}, doing
}

package record

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Tokens are those of replies, with what they cost in US dollars; nil: unknown. Cached is a part
// of Input.
type Tokens struct {
	Input   int      `json:"input"`
	Output  int      `json:"output"`
	Cached  int      `json:"cached"`
	CostUSD *float64 `json:"cost_usd,omitempty"`
}

func (t *Tokens) add(input, output, cached int, cost *float64) {
	t.Input += max(0, input)
	t.Output += max(0, output)
	t.Cached += max(0, cached)
	if cost != nil {
		sum := max(0, *cost)
		if t.CostUSD != nil {
			sum += *t.CostUSD
		}
		t.CostUSD = &sum
	}
}

// Use is what runs used. Total is in tokens, DurationMS the sum of the times of calls.
type Use struct {
	Tokens
	Total      int   `json:"total"`
	ModelCalls int   `json:"model_calls"`
	ToolCalls  int   `json:"tool_calls"`
	DurationMS int64 `json:"duration_ms"`
}

func (u *Use) add(o Use) {
	u.Tokens.add(o.Input, o.Output, o.Cached, o.CostUSD)
	u.Total += o.Total
	u.ModelCalls += o.ModelCalls
	u.ToolCalls += o.ToolCalls
	u.DurationMS += o.DurationMS
}

// The kinds of a step.
const (
	KindModel = "model"
	KindTool  = "tool"
)

// Step is a request to a model, or a call of a tool. Step is the run's step after it, N its event.
// What a sub-agent used is in the step of its call.
type Step struct {
	Step       int       `json:"step"`
	N          uint64    `json:"n"`
	At         time.Time `json:"at"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	CallID     string    `json:"call_id,omitempty"`
	Failed     bool      `json:"failed,omitempty"`
	DurationMS int64     `json:"duration_ms"`
	Tokens
}

// ToolUse sums the calls of a tool, ModelUse the requests to a model.
type (
	ToolUse struct {
		Name       string   `json:"name"`
		Calls      int      `json:"calls"`
		Failed     int      `json:"failed"`
		DurationMS int64    `json:"duration_ms"`
		CostUSD    *float64 `json:"cost_usd,omitempty"`
	}
	ModelUse struct {
		Name   string `json:"name"`
		Calls  int    `json:"calls"`
		Failed int    `json:"failed"`
		Tokens
		DurationMS int64 `json:"duration_ms"`
	}
)

// ChildUse is what a sub-run used, with those below it.
type ChildUse struct {
	RunID  string       `json:"run_id"`
	CallID string       `json:"call_id"`
	Agent  string       `json:"agent"`
	State  events.State `json:"state"`
	Use    Use          `json:"use"`
}

// Usage is what a run used. Own is what its own events say, Total has the sub-runs besides. Tools
// and Models are in the order of their first use. WaitingMS is how long the run waited for people,
// ElapsedMS the time from its first event to its last.
type Usage struct {
	RunID     string      `json:"run_id"`
	N         uint64      `json:"n"`
	Total     Use         `json:"total"`
	Own       Use         `json:"own"`
	Steps     []Step      `json:"steps"`
	Tools     []*ToolUse  `json:"tools"`
	Models    []*ModelUse `json:"models"`
	Children  []ChildUse  `json:"children"`
	WaitingMS int64       `json:"waiting_ms"`
	ElapsedMS int64       `json:"elapsed_ms"`
	// Truncated says that Total and Children lack sub-runs: there are more than a tree shows.
	Truncated bool `json:"truncated,omitempty" jsonschema:"There are more than 1000 sub-runs, and the others are not counted."`
}

// Usage returns what a run used, up to now. It reads the log of the run, and of all runs below it
// that have not ended since it was asked last.
func (r *Reader) Usage(ctx context.Context, ns, id string) (*Usage, error) {
	if err := r.a.View(ctx, ns, id, func(*runlog.Run) error { return nil }); err != nil {
		return nil, err
	}
	tree, err := r.list.Below(ctx, ns, id)
	if err != nil {
		return nil, err
	}
	u, _, err := r.own(ctx, ns, id)
	if err != nil {
		return nil, err
	}
	u.Total, u.Truncated = u.Own, tree.Truncated
	for _, child := range tree.Root.Children {
		use, err := r.use(ctx, ns, child)
		if err != nil {
			return nil, err
		}
		u.Total.add(use)
		u.Children = append(u.Children, ChildUse{RunID: child.RunID, CallID: child.CallID, Agent: child.Agent, State: child.State, Use: use})
	}
	return u, nil
}

// use returns what a run and those below it used.
func (r *Reader) use(ctx context.Context, ns string, node *list.Node) (Use, error) {
	total, err := r.ownUse(ctx, ns, node.RunID)
	if err != nil {
		return total, err
	}
	for _, child := range node.Children {
		use, err := r.use(ctx, ns, child)
		if err != nil {
			return total, err
		}
		total.add(use)
	}
	return total, nil
}

// maxEnded is how many ended runs a Reader remembers the use of, each with about 200 bytes.
const maxEnded = 10_000

// ownUse returns what a run used itself. That of an ended run is remembered.
func (r *Reader) ownUse(ctx context.Context, ns, id string) (Use, error) {
	at, err := r.a.Place(ns, id)
	if err != nil {
		return Use{}, err
	}
	r.mu.Lock()
	use, known := r.ended[at]
	r.mu.Unlock()
	if known {
		return use, nil
	}
	u, state, err := r.own(ctx, ns, id)
	if err != nil {
		return Use{}, err
	}
	if r.a.Table.Terminal(state) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.ended) >= maxEnded {
			clear(r.ended)
		}
		r.ended[at] = u.Own
	}
	return u.Own, nil
}

// own returns what a run used itself, and its state.
func (r *Reader) own(ctx context.Context, ns, id string) (*Usage, events.State, error) {
	at, err := r.a.Place(ns, id)
	if err != nil {
		return nil, "", err
	}
	u := &Usage{RunID: id, Steps: []Step{}, Tools: []*ToolUse{}, Models: []*ModelUse{}, Children: []ChildUse{}}
	fold := runlog.NewFold(r.a.Log, r.a.Store.Machine(), at)
	var started, last time.Time
	for rec, err := range r.a.Log.Read(ctx, at, 0) {
		if err != nil {
			return nil, "", err
		}
		if runs.NotOfLog(rec) {
			continue
		}
		e, err := fold.Apply(ctx, rec)
		if err != nil && !runlog.Refused(err) {
			return nil, "", err
		}
		u.N = fold.Memory().N
		if err != nil {
			continue
		}
		if e.N == 1 {
			started, last = e.Time, e.Time
		}
		if e.From == events.WaitingForHuman || e.From == events.WaitingForUser {
			u.WaitingMS += since(last, e.Time)
		}
		if r := events.ReplyOf(e.Data); r != nil && r.Part {
			continue // its reply follows at once
		}
		u.Add(fold.Memory(), e, rec, since(last, e.Time))
		last = e.Time
	}
	u.ElapsedMS = since(started, last)
	return u, fold.Memory().State, nil
}

func since(from, to time.Time) int64 { return max(0, to.Sub(from).Milliseconds()) }

// Add adds what a legal event of a run used. mem is the memory after it, rec its record, and
// took the time since the event before it, in milliseconds.
func (u *Usage) Add(mem *reducer.Memory, e *events.Event, rec journal.Record, took int64) {
	switch p := e.Data.(type) {
	case *events.ToolSuccess:
		u.call(mem, e, p.Outcome)
	case *events.ToolFailure:
		u.call(mem, e, p.Outcome)
	case *events.ToolCallResult:
		u.call(mem, e, &p.ToolOutcome)
	case *events.LLMAttemptFailed:
		if p.FromProvider() || p.Usage != nil {
			u.reply(mem, e, rec, took, !p.Interrupted())
		}
	case *events.LLMToolCall:
		if !mem.Control.QueuedPass {
			u.reply(mem, e, rec, took, false)
		}
	default:
		if events.Billed(e.Data) != nil {
			_, fatal := e.Data.(*events.FatalError)
			u.reply(mem, e, rec, took, fatal)
		}
	}
}

// reply adds a request to a model.
func (u *Usage) reply(mem *reducer.Memory, e *events.Event, rec journal.Record, took int64, failed bool) {
	step := Step{Step: mem.Step, N: e.N, At: e.Time, Kind: KindModel, Name: modelOf(mem, e, rec), Failed: failed, DurationMS: took}
	if used := events.Billed(e.Data); used != nil {
		step.add(used.Input, used.Output, used.Cached, used.CostUSD)
		u.Own.Total += max(0, used.Total)
	}
	u.Steps = append(u.Steps, step)
	u.Own.Tokens.add(step.Input, step.Output, step.Cached, step.CostUSD)
	u.Own.ModelCalls++
	u.Own.DurationMS += took
	m := of(&u.Models, step.Name, func(m *ModelUse) *string { return &m.Name })
	m.Calls++
	m.Failed += one(failed)
	m.DurationMS += took
	m.Tokens.add(step.Input, step.Output, step.Cached, step.CostUSD)
}

// modelOf returns which model was asked.
func modelOf(mem *reducer.Memory, e *events.Event, rec journal.Record) string {
	if facts := events.FactsOf(e.Data); facts != nil && facts.Asked != nil && facts.Asked.Model != "" {
		return facts.Asked.Model
	}
	var body struct {
		Data struct {
			Model string `json:"model"`
		} `json:"data"`
	}
	_ = json.Unmarshal(rec.Body, &body) // what has no model has none
	return cmp.Or(body.Data.Model, mem.Control.Agent.LLM.Provider)
}

// call adds a call of a tool; nil: the event ends a batch.
func (u *Usage) call(mem *reducer.Memory, e *events.Event, o *events.ToolOutcome) {
	if o == nil || o.CallID == "" {
		return
	}
	step := Step{Step: mem.Step, N: e.N, At: e.Time, Kind: KindTool, CallID: o.CallID, Failed: !o.Success, DurationMS: max(0, o.LatencyMS)}
	if record := mem.ToolCalls[o.CallID]; record != nil {
		step.Name = record.Name
	}
	if o.Usage != nil {
		step.add(o.Usage.Input, o.Usage.Output, o.Usage.Cached, o.Usage.CostUSD)
	}
	u.Steps = append(u.Steps, step)
	u.Own.ToolCalls++
	if o.Run == "" {
		u.Own.DurationMS += step.DurationMS // the time of a sub-run is its own
	}
	t := of(&u.Tools, step.Name, func(t *ToolUse) *string { return &t.Name })
	t.Calls++
	t.Failed += one(step.Failed)
	t.DurationMS += step.DurationMS
	sum := Tokens{CostUSD: t.CostUSD}
	sum.add(0, 0, 0, step.CostUSD)
	t.CostUSD = sum.CostUSD
}

// of returns the entry of that name, which it adds if there is none.
func of[T any](all *[]*T, name string, of func(*T) *string) *T {
	for _, entry := range *all {
		if *of(entry) == name {
			return entry
		}
	}
	entry := new(T)
	*of(entry) = name
	*all = append(*all, entry)
	return entry
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

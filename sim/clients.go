package sim

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	clienttools "github.com/moorebus/moorebus/internal/feature/clienttools/row"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// clientTool is the tool that people carry out themselves.
const clientTool = "pick"

// ofClient gives an agent a tool of its client, whose calls wait for a minute.
func ofClient(a *events.Agent) {
	a.ClientTools = []events.ClientTool{{
		Name: clientTool, Description: "Picks.", Schema: json.RawMessage(`{"type":"object"}`), Timeout: events.Duration(time.Minute),
	}}
}

// ofClients gives half of the runs a client's tool, and has their models call it.
func (s *scenario) ofClients(d draw) {
	for i := range s.Runs {
		a := &s.Runs[i].Agent
		if a.LLM.Text || d.oneIn(2) {
			continue
		}
		ofClient(a)
		var script []map[string]json.RawMessage
		if err := json.Unmarshal(a.LLM.Script, &script); err != nil {
			panic(err)
		}
		for _, reply := range script {
			var calls []scriptEntry
			if json.Unmarshal(reply["calls"], &calls) != nil {
				continue
			}
			for k := range calls {
				if d.oneIn(3) {
					calls[k] = scriptEntry{"name": clientTool, "arguments": map[string]int{"n": d.IntN(10)}}
				}
			}
			reply["calls"], _ = json.Marshal(calls)
		}
		a.LLM.Script, _ = json.Marshal(script)
	}
}

// client says something of calls until they have gone out.
func (p *person) client(ctx context.Context, in ...control.Input) *refusal.Error {
	return p.ask(ctx, func(g *control.Controller) error {
		_, err := g.Inputs(ctx, "", p.spec.ID, in)
		if is(err, refusal.CodeUnknownCall, clienttools.CodeNotDelivered) {
			return errLater
		}
		return err
	}, refusal.CodeRunEnded, clienttools.CodeAlreadyAnswered)
}

// carryOut answers a client's call, and now and then once more: the same result changes
// nothing, and another one must not count. Often the request has more in it: the other calls
// that are open, or what else a client may say.
func (p *person) carryOut(ctx context.Context, open []string, call string) {
	if p.rand.IntN(3) == 0 {
		p.client(ctx, control.ToolCallStarted{CallID: call})
	}
	result := control.ToolCallResult{CallID: call, Success: p.rand.IntN(3) > 0, Text: "red"}
	if p.client(ctx, p.results(open, result)...) != nil || p.rand.IntN(3) > 0 {
		return
	}
	if refused := p.client(ctx, result); refused != nil {
		p.w.audit.violate(p.spec.ID, "client", "the result of %s was refused when it came again: %v", call, refused)
	}
	result.Text = "blue"
	if refused := p.client(ctx, result); ctx.Err() == nil && p.w.audit.violation() == nil && (refused == nil || refused.Code != clienttools.CodeAlreadyAnswered) {
		p.w.audit.violate(p.spec.ID, "client", "call %s was answered twice: %v", call, refused)
	}
}

// results returns a request with a result, and maybe with those of the other open calls.
func (p *person) results(open []string, result control.ToolCallResult) []control.Input {
	in := []control.Input{result}
	for _, other := range open {
		if other == result.CallID || p.alone || p.batches.IntN(2) == 0 {
			continue
		}
		in = slices.Insert(in, p.batches.IntN(len(in)+1), control.Input(control.ToolCallResult{CallID: other, Success: true, Text: "green"}))
		if p.batches.IntN(3) == 0 {
			in = slices.Insert(in, 0, control.Input(control.ToolCallStarted{CallID: other}))
		}
	}
	return p.batch(in...)
}

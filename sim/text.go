package sim

import (
	"encoding/json"
	"math/rand/v2"

	"github.com/moorebus/moorebus/pkg/events"
)

// Agents whose model speaks the text protocol.

// xmlAnswer is an answer, and xmlThought a thought, as such a model writes them.
func xmlAnswer(words string) scriptEntry {
	return scriptEntry{"text": "<agent><action><type>answer</type><value>" + words + "</value></action></agent>"}
}

func xmlThought(next string) scriptEntry {
	return scriptEntry{"text": "<agent><next_state>" + next + "</next_state><thinking_log>Let me see.</thinking_log></agent>"}
}

// thinks is an agent that thinks once and then answers.
func thinks(a *events.Agent) {
	a.LLM.Text = true
	a.LLM.Script = jsonOf([]scriptEntry{xmlThought("executing"), xmlAnswer(lastWords), xmlAnswer(lastWords), xmlAnswer(lastWords)})
}

// speakText lets some of the scenario's models speak the text protocol. It draws
// for itself, so that the rest of the scenario is as it would be.
func (s *scenario) speakText() {
	d := draw{rand.New(rand.NewPCG(s.Seed, 7))}
	for i := range s.Runs {
		if d.oneIn(5) {
			d.textual(&s.Runs[i].Agent)
		}
	}
}

// textual rewrites an agent's script: its words become XML, some of its calls too,
// and between them it thinks, or writes what cannot be read.
func (d draw) textual(a *events.Agent) {
	var script, said []scriptEntry
	if err := json.Unmarshal(a.LLM.Script, &script); err != nil {
		panic(err)
	}
	for _, e := range script {
		switch d.IntN(12) {
		case 0, 1:
			said = append(said, xmlThought("executing"))
		case 2:
			said = append(said, xmlThought("dreaming"))
		case 3:
			said = append(said, scriptEntry{"text": "<agent><action>"})
		}
		calls, _ := e["calls"].([]any)
		switch words, inWords := e["text"].(string); {
		case inWords:
			e = xmlAnswer(words)
		case len(calls) == 1 && e["confidence"] == nil && d.oneIn(2):
			e = scriptEntry{"text": xmlCall(calls[0].(map[string]any))}
		}
		said = append(said, e)
	}
	never := 0
	a.LLM.Text, a.LLM.Script, a.Config.MaxInvalidReplies = true, jsonOf(said), &never
	a.Config.ContextWindowSize = d.IntN(4)
}

func xmlCall(call map[string]any) string {
	return "<agent><action><type>" + call["name"].(string) + "</type><arguments>" + string(jsonOf(call["arguments"])) + "</arguments></action></agent>"
}

func jsonOf(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

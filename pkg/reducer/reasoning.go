package reducer

import "encoding/json"

// keepReasoning keeps what the provider wants back with the reply that was just
// taken into the conversation.
func (mem *Memory) keepReasoning(reasoning json.RawMessage) {
	turns := mem.Control.Turns
	for i := len(turns) - 1; i >= 0 && len(reasoning) > 0; i-- {
		if turns[i].Kind == TurnReply {
			turns[i].Reasoning = reasoning
			return
		}
	}
}

// dropReasoning forgets it again when the user has an answer: providers want it
// for as long as the calls of a turn are worked on.
func (mem *Memory) dropReasoning() {
	turns := mem.Control.Turns
	for i := len(turns) - 1; i >= 0 && turns[i].Kind != TurnUser; i-- {
		turns[i].Reasoning = nil
	}
}

package reducer

import (
	"encoding/json"
	"fmt"
)

// Note tells the model something: it stands in the conversation as a message of
// the user from then on. It is for an application's folds.
func (m *Memory) Note(text string) { m.addTurn(Turn{Kind: TurnNote, Content: text}) }

// Keep puts a value under a key of [Memory.Custom], in the place of what was
// there. It is for an application's folds, and panics on a value that is no JSON,
// which poisons the run.
func (m *Memory) Keep(key string, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("custom memory %q: %v", key, err))
	}
	if m.Custom == nil {
		m.Custom = map[string]json.RawMessage{}
	}
	m.Custom[key] = data
}

// Kept reads what [Memory.Keep] put under a key into value, a pointer. It leaves
// value as it is and returns false where there is nothing, or something that does
// not fit.
func (m *Memory) Kept(key string, value any) bool {
	data, ok := m.Custom[key]
	return ok && json.Unmarshal(data, value) == nil
}

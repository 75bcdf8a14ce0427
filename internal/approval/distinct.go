package approval

import (
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

// Distinct returns an error if an object of a call's arguments has two keys that are equal but for
// case. Some programs read either for the other, so a policy could see another value than the
// tool. Keys that the tool's schema has itself, both of them, are the tool's own distinction.
// Arguments that are no JSON pass: the check by the schema refuses them.
func Distinct(schema json.RawMessage, arguments string) error {
	node, err := strict.ParseJSON([]byte(arguments))
	if err != nil {
		return nil
	}
	var tool struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(schema, &tool) // a schema without such properties has none of its own
	return distinct(node, tool.Properties)
}

func distinct(n *strict.Node, own map[string]json.RawMessage) error {
	for _, item := range n.Items {
		if err := distinct(item, nil); err != nil {
			return err
		}
	}
	keys := make(map[string]string, len(n.Members))
	for _, member := range n.Members {
		fold := folded(member.Key)
		if other, twice := keys[fold]; twice && (own[other] == nil || own[member.Key] == nil) {
			return fmt.Errorf("the keys %.100q and %.100q differ in upper and lower case only: leave one of them out", other, member.Key)
		}
		keys[fold] = member.Key
		if err := distinct(member.Value, nil); err != nil {
			return err
		}
	}
	return nil
}

package approval

import (
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

// shape is what a schema says of keys: its properties, and those of the elements of a list.
type shape struct {
	Properties map[string]shape
	Items      *shape
}

// Distinct returns an error if an object of a call's arguments has two keys that are equal but for
// case. Some programs read either for the other, so a policy could see another value than the
// tool. Keys that the tool's schema has in `properties` at that place, both of them, are the tool's
// own distinction. Only `properties` and `items` lead there, and no references. Arguments that are
// no JSON pass: the check by the schema refuses them.
func Distinct(schema json.RawMessage, arguments string) error {
	node, err := strict.ParseJSON([]byte(arguments))
	if err != nil {
		return nil
	}
	var tool shape
	if distinct(node, tool) == nil { // nor with what the schema allows, which is not parsed for each call
		return nil
	}
	_ = json.Unmarshal(schema, &tool) // what has another form has no keys of its own
	return distinct(node, tool)
}

func distinct(n *strict.Node, own shape) error {
	for _, item := range n.Items {
		var each shape
		if own.Items != nil {
			each = *own.Items
		}
		if err := distinct(item, each); err != nil {
			return err
		}
	}
	keys := make(map[string]string, len(n.Members))
	for _, member := range n.Members {
		fold := folded(member.Key)
		property, known := own.Properties[member.Key]
		if other, twice := keys[fold]; twice {
			if _, both := own.Properties[other]; !known || !both {
				return fmt.Errorf("the keys %.100q and %.100q differ in upper and lower case only: leave one of them out", other, member.Key)
			}
		}
		keys[fold] = member.Key
		if err := distinct(member.Value, property); err != nil {
			return err
		}
	}
	return nil
}

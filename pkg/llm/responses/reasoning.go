package responses

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// thought is a reasoning item as it is sent back. before is the number of items of the
// reply, its text counting as one, that stand before it.
type thought struct {
	item   item
	before int
}

// The parts of an item have its id as theirs, with the number of items before it if there
// are any: rs_1, rs_2@1.

func thoughtID(id string, before int) string {
	if before == 0 || id == "" {
		return id
	}
	return id + "@" + strconv.Itoa(before)
}

// readReasoning returns the items that the parts of a reply come from. An item without
// encrypted content is none if it only has a summary: the server could not know it again.
// Parts without an id are of other APIs.
func readReasoning(parts []llm.ReasoningPart) []thought {
	var all []thought
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].ID == parts[0].ID {
			n++
		}
		if t, ok := readThought(parts[:n]); ok {
			all = append(all, t)
		}
		parts = parts[n:]
	}
	return all
}

// readThought makes an item of the parts of one.
func readThought(parts []llm.ReasoningPart) (thought, bool) {
	id, at, _ := strings.Cut(parts[0].ID, "@")
	t := thought{item: item{Type: typeReasoning, ID: id}}
	t.before, _ = strconv.Atoi(at) // 0 where it stands first
	summary := []part{}            // the API wants a list
	var content []part
	for _, p := range parts {
		switch p.Kind {
		case llm.ReasoningSummary:
			summary = append(summary, part{Type: summaryText, Text: p.Text})
		case llm.ReasoningText:
			content = append(content, part{Type: reasoningText, Text: p.Text})
		case llm.ReasoningOpaque:
			var encrypted string
			if json.Unmarshal(p.Data, &encrypted) == nil && encrypted != "" {
				t.item.Encrypted = p.Data
			}
		}
	}
	t.item.Summary = summary
	if content != nil {
		t.item.Content = content
	}
	return t, id != "" && (t.item.Encrypted != nil || content != nil)
}

package lkj

import (
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The tags that entries get in addition to their own, by where LKJAgent had them.
const (
	tagWorking  = "working_memory"
	tagThinking = "thinking_log"
)

// Memory reads LKJAgent's data/memory.json and returns its texts as entries of an agent's
// storage, in the file's order. What was in working memory has the additional tag
// working_memory, and what was thought thinking_log. unused names what has no place there. The
// error names line and key.
func Memory(data []byte) (entries []events.Entry, unused []string, err error) {
	root, err := strict.ParseJSON(data)
	if err != nil {
		return nil, nil, err
	}
	if root.Kind != strict.Object {
		return nil, nil, root.Errorf("", "is %s, want the object of LKJAgent's data/memory.json", root.Kind)
	}
	m := memory{byTags: map[string]int{}}
	for _, member := range root.Members {
		switch {
		case member.Key == "storage":
			m.all(member, "")
		case member.Key == "working_memory":
			m.all(member, tagWorking)
		case member.Key == "thinking_log", member.Key == "think_log":
			m.all(member, tagThinking)
		case strings.HasPrefix(member.Key, "thinking_log_"), strings.HasPrefix(member.Key, "think_log_"):
			m.add(member.Value, member.Key, member.Key, tagThinking)
		default:
			unused = append(unused, member.Key)
		}
	}
	return m.entries, unused, m.err
}

type memory struct {
	entries []events.Entry
	// byTags has the line of each entry.
	byTags map[string]int
	err    error
}

// all adds every value of an object under its key.
func (m *memory) all(of strict.Member, tag string) {
	if of.Value.Kind != strict.Object && m.err == nil {
		m.err = of.Value.Errorf(of.Key, "is %s, want an object with a text under each key", of.Value.Kind)
	}
	for _, member := range of.Value.Members {
		m.add(member.Value, of.Key+"."+member.Key, member.Key, tag)
	}
}

// add adds an entry. A key may have several tags, with commas between them.
func (m *memory) add(n *strict.Node, path, key, tag string) {
	tags := []string{tag}
	for part := range strings.SplitSeq(key, ",") {
		tags = append(tags, strings.TrimSpace(part))
	}
	e := events.Entry{Tags: reducer.NormalTags(tags), Value: plain(n)}
	id := strings.Join(e.Tags, ",")
	err := entrystore.CheckEntry(e)
	if line := m.byTags[id]; line > 0 {
		err = fmt.Errorf("has the tags of line %d", line)
	}
	if err != nil {
		if m.err == nil {
			m.err = n.Errorf(path, "%s", err.Error())
		}
		return
	}
	m.byTags[id] = max(n.Line, 1)
	m.entries = append(m.entries, e)
}

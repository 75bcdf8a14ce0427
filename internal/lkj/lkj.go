// Package lkj reads LKJAgent's data/config.json and makes an agent definition of
// it, for a model that speaks the text protocol.
//
// It is tolerant about where in the file things stand, since that differs between
// versions, and strict about what they are: a limit that is no number is an error
// with its line. What has no place in a definition is named, never dropped
// silently.
package lkj

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
)

// Options say what a configuration does not.
type Options struct {
	// Name is the agent's name. Default "lkjagent".
	Name string
	// Provider names the planner's provider. Default "openai".
	Provider string
	// Model replaces the configuration's model; empty: that one.
	Model string
}

// Tools are the memory tools that LKJAgent's actions are.
var Tools = []string{"working_memory_add", "working_memory_remove", "storage_load", "storage_save", "storage_search"}

const (
	// window is how many messages the model sees beside its memory.
	window = 10
	// endless is max_steps where nothing bounds the iterations.
	endless = 1_000_000
	// keyPrefix is the thinking log's, here as there.
	keyPrefix = "thinking_log_"
	// paging is the state in which LKJAgent's model moves texts out of working memory. Here
	// the observer does that without asking, and the model may do it at any time.
	paging = "paging"
)

// Import reads a configuration. unused names what is in it and has no place in
// the definition, in the file's order. The error names line and key.
func Import(data []byte, o Options) (a events.Agent, unused []string, err error) {
	root, err := strict.ParseJSON(data)
	if err != nil {
		return a, nil, err
	}
	if root.Kind != strict.Object || root.Get("agent") == nil {
		return a, nil, root.Errorf("agent", "is missing: LKJAgent's data/config.json has an object with that key")
	}
	if agent := root.Get("agent"); agent.Kind != strict.Object {
		return a, nil, agent.Errorf("agent", "is %s, want an object", agent.Kind)
	}
	r := &reader{root: root, used: map[*strict.Node]bool{}}
	a = r.definition(o)
	if r.err != nil {
		return events.Agent{}, nil, r.err
	}
	if a, err = a.Resolve(); err != nil {
		return events.Agent{}, nil, err
	}
	r.collect(root, "")
	return a, r.unused, nil
}

// reader notes what was used, and the first thing that is wrong.
type reader struct {
	root   *strict.Node
	used   map[*strict.Node]bool
	unused []string
	err    error
}

func (r *reader) fail(n *strict.Node, path, format string, args ...any) {
	if r.err == nil {
		r.err = n.Errorf(path, format, args...)
	}
}

func (r *reader) definition(o Options) events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.LLM.Text = first(o.Name, "lkjagent"), first(o.Provider, "openai"), true
	a.Tools = Tools
	r.prompts(&a)
	r.model(&a, o.Model)
	c := &a.Config
	c.ContextWindowSize, c.ReflectEveryNSteps = window, 0
	r.limit([]string{"paging_limit"}, []string{"max_tokens", "value"}, &c.PagingLimit)
	r.limit([]string{"hard_limit"}, []string{"max_tokens", "value"}, &c.HardLimit)
	r.limit([]string{"thinking_log", "think_log"}, []string{"max_entries", "value"}, &c.ThinkingLogEntries)
	r.limit([]string{"iterate"}, []string{"max_iterations", "value"}, &c.MaxIterations)
	// One step more, so that it is the iterations that end a run.
	c.MaxSteps = c.MaxIterations + 1
	if c.MaxIterations == 0 {
		c.MaxSteps = endless
	}
	return a
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// model takes the model's name and temperature.
func (r *reader) model(a *events.Agent, name string) {
	llm := r.root.Get("llm")
	if llm == nil {
		llm = new(strict.Node)
	} else if llm.Kind != strict.Object {
		r.fail(llm, "llm", "is %s, want an object", llm.Kind)
	}
	if n := llm.Get("model"); n != nil {
		given := r.text(n, "llm.model")
		name = first(name, given)
	}
	if name != "" {
		a.Models = map[string]events.Models{"default": {{Model: name}}}
	}
	if n := llm.Get("temperature"); n != nil {
		r.used[n] = true
		t, err := strconv.ParseFloat(n.Text, 64)
		if n.Kind != strict.Number || err != nil {
			r.fail(n, "llm.temperature", "is %s, want a number", n.Kind)
		}
		a.LLM.Temperature = &t
	}
}

func (r *reader) text(n *strict.Node, path string) string {
	r.used[n] = true
	if n.Kind != strict.String {
		r.fail(n, path, "is %s, want a string", n.Kind)
	}
	return n.Text
}

// limit reads {enable, <key>} under the first of the names that is there, and the first of the
// keys. A limit that is not enabled is 0, one that is not there stays as it is.
func (r *reader) limit(names, keys []string, to *int) {
	var n *strict.Node
	var path string
	for _, name := range names {
		if n, path = find(r.root, "", name); n != nil {
			break
		}
	}
	switch {
	case n == nil:
		return
	case n.Kind != strict.Object:
		r.fail(n, path, "is %s, want an object with enable and %s", n.Kind, keys[0])
		return
	}
	for _, key := range keys {
		v := n.Get(key)
		if v == nil {
			continue
		}
		r.used[v] = true
		value, err := strconv.Atoi(v.Text)
		if v.Kind != strict.Number || err != nil || value < 1 {
			r.fail(v, path+"."+key, "is not a number from 1")
			return
		}
		*to = value
		break
	}
	if v := n.Get("enable"); v != nil {
		r.used[v] = true
		if v.Kind != strict.Bool {
			r.fail(v, path+".enable", "is %s, want true or false", v.Kind)
		} else if v.Text == "false" {
			*to = 0
		}
	}
	if v := n.Get("key_prefix"); v != nil && r.text(v, path+".key_prefix") != keyPrefix {
		delete(r.used, v) // another one has no place
	}
}

// find returns the first value of a key, looking into the agent before the rest,
// and never into prompts: their examples have the same keys.
func find(n *strict.Node, path, key string) (*strict.Node, string) {
	if v := n.Get(key); v != nil {
		return v, join(path, key)
	}
	for _, agent := range []bool{true, false} {
		for _, m := range n.Members {
			if m.Key == "prompt" || m.Key == "state" || (m.Key == "agent") != agent {
				continue
			}
			if v, at := find(m.Value, join(path, m.Key), key); v != nil {
				return v, at
			}
		}
	}
	return nil, ""
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

// collect names the parts of the file that nobody used, each once.
func (r *reader) collect(n *strict.Node, path string) {
	for _, m := range n.Members {
		at := join(path, m.Key)
		switch {
		case r.used[m.Value]:
		case r.usedWithin(m.Value):
			r.collect(m.Value, at)
		case at == "llm.endpoint":
			r.unused = append(r.unused, fmt.Sprintf("%s: endpoints belong to the planner: OPENAI_BASE_URL=%s", at,
				strings.TrimSuffix(strings.TrimSuffix(m.Value.Text, "/"), "/chat/completions")))
		default:
			r.unused = append(r.unused, at)
		}
	}
}

func (r *reader) usedWithin(n *strict.Node) bool {
	for _, m := range n.Members {
		if r.used[m.Value] || r.usedWithin(m.Value) {
			return true
		}
	}
	return false
}

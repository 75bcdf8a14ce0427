package lkj

import (
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
)

// prompts takes the prompts of the base and of each state. The base's role, or all
// of it where it is but a text, is the system prompt.
func (r *reader) prompts(a *events.Agent) {
	states, path := r.states()
	base := r.prompt(states, path, "base")
	switch {
	case base == nil:
	case base.Kind == strict.String:
		a.SystemPrompt, base = base.Text, nil
	case base.Get("role") != nil:
		a.SystemPrompt = r.text(base.Get("role"), path+".base.prompt.role")
		base, _ = base.Without("role")
	}
	own := map[string]string{}
	if base != nil {
		own["base"] = words(base)
	}
	for _, state := range events.TextStates() {
		if n := r.prompt(states, path, state); n != nil {
			own[state] = words(n)
		}
	}
	if n := r.prompt(states, path, paging); n != nil {
		own["base"] = strings.TrimSpace(own["base"] + "\n\nWhen working memory fills up:\n" + words(n))
	}
	r.described(own)
	for key, text := range own {
		if strings.TrimSpace(text) == "" {
			delete(own, key)
		}
	}
	if len(own) > 0 {
		a.LLM.StatePrompts = own
	}
	if a.SystemPrompt == "" && len(own) == 0 {
		r.fail(r.root.Get("agent"), "agent.state.base.prompt", "is missing: there is no prompt in the file")
	}
}

// states is the object with the states, which stands in the agent or beside it.
func (r *reader) states() (*strict.Node, string) {
	for _, at := range []struct {
		parent *strict.Node
		path   string
	}{{r.root.Get("agent"), "agent.state"}, {r.root, "state"}} {
		n := at.parent.Get("state")
		if n == nil {
			continue
		}
		if n.Kind != strict.Object {
			r.fail(n, at.path, "is %s, want an object", n.Kind)
		}
		return n, at.path
	}
	return new(strict.Node), "agent.state"
}

// prompt is the prompt of a state: what stands under prompt, or the state itself.
func (r *reader) prompt(states *strict.Node, path, state string) *strict.Node {
	n := states.Get(state)
	path += "." + state
	if n == nil {
		return nil
	}
	if inner := n.Get("prompt"); inner != nil {
		n, path = inner, path+".prompt"
	}
	if n.Kind != strict.Object && n.Kind != strict.String {
		r.fail(n, path, "is %s, want a string or an object", n.Kind)
	}
	r.used[n] = true
	return n
}

// described takes what is said of states and actions outside of the prompts.
func (r *reader) described(own map[string]string) {
	if n, path := find(r.root, "", "state_description"); n != nil {
		r.used[n] = true
		if n.Kind != strict.Object {
			r.fail(n, path, "is %s, want an object with thinking and executing", n.Kind)
		}
		for _, state := range events.TextStates() {
			if text := n.Get(state); text != nil {
				own[state] = strings.TrimSpace(r.text(text, path+"."+state) + "\n\n" + own[state])
			}
		}
	}
	if n, path := find(r.root, "", "available_actions"); n != nil {
		r.used[n] = true
		if n.Kind != strict.Object {
			r.fail(n, path, "is %s, want an object with the actions", n.Kind)
		}
		own[events.TextExecuting] = strings.TrimSpace(own[events.TextExecuting] + "\n\n" + section("available_actions", n))
	}
}

// words writes a prompt as text: sentences as they are, lists under a heading of
// their own, and examples as the XML that they stand for.
func words(n *strict.Node) string {
	if n.Kind == strict.String {
		return n.Text
	}
	var parts []string
	for _, m := range n.Members {
		parts = append(parts, section(m.Key, m.Value))
	}
	return strings.Join(parts, "\n\n")
}

func section(key string, n *strict.Node) string {
	heading := strings.ReplaceAll(key, "_", " ")
	switch {
	case key == "instructions", key == "role", key == "purpose":
		if n.Kind == strict.String {
			return n.Text
		}
	case n.Kind == strict.Object && strings.HasPrefix(key, "output_example"):
		return heading + ":\n" + markup(n)
	}
	switch n.Kind {
	case strict.Object:
		lines := []string{heading + ":"}
		for _, m := range n.Members {
			lines = append(lines, "- "+m.Key+": "+plain(m.Value))
		}
		return strings.Join(lines, "\n")
	case strict.Array:
		lines := []string{heading + ":"}
		for _, item := range n.Items {
			lines = append(lines, "- "+plain(item))
		}
		return strings.Join(lines, "\n")
	}
	return heading + ": " + plain(n)
}

// plain is a value in one line: a string's words, else its JSON.
func plain(n *strict.Node) string {
	if n.Kind == strict.String {
		return n.Text
	}
	return string(n.JSON())
}

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// markup writes an object as elements, as LKJAgent's models do.
func markup(n *strict.Node) string {
	var b strings.Builder
	for _, m := range n.Members {
		if m.Value.Kind == strict.Object {
			b.WriteString("<" + m.Key + ">\n" + markup(m.Value) + "</" + m.Key + ">\n")
			continue
		}
		b.WriteString("<" + m.Key + ">" + escape.Replace(plain(m.Value)) + "</" + m.Key + ">\n")
	}
	return b.String()
}

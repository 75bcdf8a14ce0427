package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

// message is one message in OpenAI's chat format.
type message struct {
	Role       string  `json:"role"`
	Content    *string `json:"content"`
	ToolCalls  []call  `json:"tool_calls,omitempty"`
	ToolCallID string  `json:"tool_call_id,omitempty"`
	Name       string  `json:"name,omitempty"`
	// Status is our own addition to a tool message: the tool answered with this
	// HTTP status, 0 for 200. Content is then the body of that answer.
	Status int `json:"status,omitempty"`
}

type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// text is the content, and "" for none.
func (m *message) text() string {
	if m.Content == nil {
		return ""
	}
	return *m.Content
}

// closing is the model's answer where a recording ends before one.
const closing = "That is where the recording ends."

// conversation is a recording, made complete with a [closing] answer.
type conversation struct {
	name     string
	system   string
	messages []message
}

// conversations reads what the tests play: see the package comment.
func conversations(t *testing.T) []*conversation {
	t.Helper()
	files := []string{os.Getenv("MOOREBUS_CONVERSATIONS")}
	if files[0] == "" {
		var err error
		files, err = filepath.Glob(filepath.Join("testdata", "conversations", "*.json"))
		require.NoError(t, err)
	}
	var all []*conversation
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var recorded []struct {
			Messages []message `json:"messages"`
		}
		require.NoError(t, json.Unmarshal(data, &recorded), file)
		for i, r := range recorded {
			c, err := newConversation(fmt.Sprintf("%s-%d", filepath.Base(file), i), r.Messages)
			require.NoError(t, err)
			all = append(all, c)
		}
	}
	require.NotEmpty(t, all, "no conversations")
	return all
}

func newConversation(name string, recorded []message) (*conversation, error) {
	c := &conversation{name: name, messages: slices.Clone(recorded)}
	if len(recorded) > 0 && recorded[0].Role == "system" {
		c.system = recorded[0].text()
	}
	first := c.firstUser()
	if first >= len(recorded) || recorded[first].Role != "user" {
		return nil, fmt.Errorf("%s: a conversation begins with at most one system message and then the user's first", name)
	}
	if len(recorded) > first+1 && recorded[first+1].Role != "assistant" {
		return nil, fmt.Errorf("%s: an answer follows the user's first message", name)
	}
	last := recorded[len(recorded)-1]
	for _, asked := range last.ToolCalls { // a recording that ends before the results
		nothing := ""
		c.messages = append(c.messages, message{Role: "tool", Content: &nothing, ToolCallID: asked.ID})
	}
	if last.Role != "assistant" || len(last.ToolCalls) > 0 {
		answer := closing
		c.messages = append(c.messages, message{Role: "assistant", Content: &answer})
	}
	return c, nil
}

// firstUser is the place of the user's first message.
func (c *conversation) firstUser() int {
	if len(c.messages) > 0 && c.messages[0].Role == "system" {
		return 1
	}
	return 0
}

// task is the user's first message.
func (c *conversation) task() string { return c.messages[c.firstUser()].text() }

// assistant returns the place of the k-th assistant message, k from 0, or -1.
func (c *conversation) assistant(k int) int {
	for i := range c.messages {
		if c.messages[i].Role != "assistant" {
			continue
		}
		if k == 0 {
			return i
		}
		k--
	}
	return -1
}

// replies is how many assistant messages there are.
func (c *conversation) replies() int {
	n := 0
	for i := range c.messages {
		if c.messages[i].Role == "assistant" {
			n++
		}
	}
	return n
}

// afterTurn returns the user's messages after the k-th answer without calls, k
// from 0; none after the last one.
func (c *conversation) afterTurn(k int) []message {
	var said []message
	turn := -1
	for _, m := range c.messages {
		switch {
		case m.Role == "assistant" && len(m.ToolCalls) == 0:
			turn++
		case m.Role == "user" && turn == k:
			said = append(said, m)
		}
	}
	return said
}

// exchange is one tool call with its recorded result.
type exchange struct {
	seq    int // its place among the conversation's calls
	reply  int // the place of the message that asks for it
	call   call
	result message
}

func (x exchange) String() string {
	return fmt.Sprintf("%s(%s), id %s, status %d: %q", x.call.Function.Name, x.call.Function.Arguments, x.call.ID, x.result.Status, x.result.text())
}

// exchanges returns every call in order.
func (c *conversation) exchanges() []exchange {
	var all []exchange
	for i := range c.messages {
		m := &c.messages[i]
		for j, asked := range m.ToolCalls {
			// The results of a reply follow it, in some order, by id; where ids
			// repeat within a reply, by place.
			x := exchange{seq: len(all), reply: i, call: asked}
			for k := i + 1; k < len(c.messages) && c.messages[k].Role == "tool"; k++ {
				if c.messages[k].ToolCallID == asked.ID && (x.result.Role == "" || k == i+1+j) {
					x.result = c.messages[k]
				}
			}
			all = append(all, x)
		}
	}
	return all
}

// toolNames returns the names of all tools in the conversations, sorted.
func toolNames(all []*conversation) []string {
	names := map[string]bool{}
	for _, c := range all {
		for _, x := range c.exchanges() {
			names[x.call.Function.Name] = true
		}
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	sort.Strings(sorted)
	return sorted
}

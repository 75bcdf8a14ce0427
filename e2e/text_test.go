package e2e

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// inTurn is a player in the text protocol, where a thought is no message of the
// model's: the k-th request gets the k-th reply.
type inTurn struct {
	mu      sync.Mutex
	replies []string
	// asked has the text of what was sent, in order.
	asked []string
}

func (p *inTurn) reply(r *chatRequest) (modelReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(r.Tools) > 0:
		return modelReply{}, errors.New("in the text protocol no tools are sent")
	case len(p.asked) == len(p.replies):
		return modelReply{}, errors.New("asked once too often")
	}
	var all strings.Builder
	for i := range r.Messages {
		all.WriteString(r.Messages[i].text() + "\n")
	}
	p.asked = append(p.asked, all.String())
	return says(p.replies[len(p.asked)-1]), nil
}

// action is a reply with an action: its type and its arguments, as elements.
func action(kind, arguments string) string {
	return "<agent><action><type>" + kind + "</type>" + arguments + "</action></agent>"
}

// remembering is the part of a request that shows working memory.
func remembering(t *testing.T, asked string) string {
	t.Helper()
	at := strings.LastIndex(asked, "<memory>")
	require.Positive(t, at, asked)
	return asked[at:]
}

// loaded is the one value that a run loaded from storage.
func loaded(t *testing.T, c *cluster, run string) string {
	t.Helper()
	var load struct{ Entries []struct{ Value string } }
	for _, e := range c.log(t, run) {
		if e.Type == "StorageLoaded" {
			require.NoError(t, json.Unmarshal(e.Data, &load))
		}
	}
	require.Len(t, load.Entries, 1)
	return load.Entries[0].Value
}

// TestTextProtocolWithMemory lets a model that only writes XML use both memories:
// what is too large for working memory is paged out by the observer, into storage
// that the actor's tools bring it back from, and what one run saved another one
// finds, when every process has been killed in between.
func TestTextProtocolWithMemory(t *testing.T) {
	t.Parallel()
	const name = "scripted-elsewhere" // as beginAgent has it
	c := startCluster(t, setup{ackWait: quickAckWait, entries: []string{"{builtin: memory}"}, storage: []string{"default/" + name}})
	tools := []string{"working_memory_add", "storage_save", "storage_load", "storage_search"}
	c.api.awaitTools(tools)
	s := c.stage()
	librarian := agent{
		Tools: tools, LLM: map[string]any{"provider": "openai", "text": true},
		Config: map[string]any{"paging_limit": 40, "max_steps": 50, "reflect_every_n_steps": 0},
	}
	far := strings.TrimSpace(strings.Repeat("far ", 60))
	writer := &inTurn{replies: []string{
		"<agent><next_state>executing</next_state><thinking_log>I write it down.</thinking_log></agent>",
		action("working_memory_add", "<tags>plan</tags><value>"+far+"</value>"),
		action("storage_save", "<tags>map</tags><value>north</value>"),
		action("storage_load", "<tags>plan</tags>"),
		action("answer", "<value>It is kept.</value>"),
	}}
	run := s.beginAgent(t, librarian, writer)
	end, view := s.finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Equal(t, "It is kept.", *view.Memory.FinalAnswer)
	sources := map[string]string{}
	for _, e := range c.log(t, run) {
		sources[e.Type] = e.Source
	}
	for event, source := range map[string]string{
		"LlmThought": "planner", "WorkingMemoryAdded": "actor", "PageDone": "observer", "StorageSaved": "actor", "StorageLoaded": "actor",
	} {
		require.Equal(t, "moorebus/"+source+"/"+source+"-0", sources[event], event)
	}
	require.NotContains(t, remembering(t, writer.asked[2]), far, "what was paged out is not shown any more")
	require.Contains(t, writer.asked[4], "<result", "what was loaded is told as a result")
	require.Equal(t, far, loaded(t, c, run), "storage had what was paged out")

	c.restart()
	c.api.awaitTools(tools)
	reader := &inTurn{replies: []string{action("storage_search", "<value>NORTH</value>"), action("answer", "<value>I found it.</value>")}}
	run = s.beginAgent(t, librarian, reader)
	end, _ = s.finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Contains(t, reader.asked[1], "north")
	c.verifyAll()
}

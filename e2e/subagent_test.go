package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// office is a cluster whose agents call agents: a chief calls a scout and a lead
// side by side, and the lead calls a scout of its own. Scouts use the tool `work`.
type office struct {
	*cluster
	s *stage
	// begun gets something whenever a scout's work begins, ended whenever the actor
	// breaks one off.
	begun, ended chan struct{}
	// open lets the work end well.
	open atomic.Bool
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{begun: make(chan struct{}, 16), ended: make(chan struct{}, 16)}
	o.cluster = startCluster(t, setup{ackWait: quickAckWait, tools: []string{"work"}, subagents: []string{"{agent: scout}", "{agent: lead}"}})
	o.s = o.stage()
	o.api.awaitTools([]string{"scout", "lead"})
	o.tools.handle("work", func(w http.ResponseWriter, r *http.Request) {
		if o.open.Load() {
			_, _ = io.WriteString(w, "worked")
			return
		}
		o.begun <- struct{}{}
		<-r.Context().Done()
		o.ended <- struct{}{}
	})
	o.define(t, "scout", []string{"work"}, script{asks("s-1", "work", `{}`), says("I scouted.")})
	o.define(t, "lead", []string{"scout"}, script{asks("l-1", "scout", `{"task": "Scout for me."}`), says("I led.")})
	return o
}

// define stores an agent whose model is p.
func (c *cluster) define(t *testing.T, name string, tools []string, p player) {
	t.Helper()
	c.model.play(name, p)
	require.NoError(t, c.api.call(t.Context(), http.MethodPut, "/v1/agents/"+name, agent{
		Name: name, SystemPrompt: "You are " + name + ".", LLM: map[string]any{"provider": "openai"},
		Models: map[string]string{"default": name}, Tools: tools,
	}, nil))
}

// chief starts a run that calls two agents at once, and returns when the work of
// both scouts has begun.
func (o *office) chief(t *testing.T) string {
	t.Helper()
	two := asks("c-1", "scout", `{"task": "Scout."}`)
	two.calls = append(two.calls, asks("c-2", "lead", `{"task": "Lead."}`).calls...)
	run := o.s.begin(t, script{two, says("Both have answered.")}, "scout", "lead")
	await(t, o.begun, "the first scout works")
	await(t, o.begun, "the second scout works")
	return run
}

// children returns the run that answers each call of an agent on the bus, by the
// caller's id and the call's. Two runs for one call fail the test.
func (c *cluster) children(t *testing.T) map[string]string {
	t.Helper()
	var page struct {
		Runs []struct {
			ID string `json:"run_id"`
		} `json:"runs"`
	}
	require.NoError(t, c.api.get(t.Context(), "/v1/runs?limit=1000", &page))
	children := map[string]string{}
	for _, run := range page.Runs {
		parent := c.opening(t, run.ID).Parent
		if parent == nil {
			continue
		}
		call := parent.Run + "/" + parent.Call
		require.NotContains(t, children, call, "a call is answered by one run")
		children[call] = run.ID
	}
	return children
}

// opening is what a run's first event says.
type opening struct {
	Agent  struct{ Name string } `json:"agent"`
	Parent *struct {
		Run   string `json:"run"`
		Call  string `json:"call_id"`
		Depth int    `json:"depth"`
	} `json:"parent"`
}

// opening reads a run's first event.
func (c *cluster) opening(t *testing.T, run string) opening {
	t.Helper()
	var first opening
	require.NoError(t, json.Unmarshal(c.log(t, run)[0].Data, &first))
	return first
}

// log returns a run's events as they are stored.
func (c *cluster) log(t *testing.T, run string) []event {
	t.Helper()
	status, body, err := c.api.do(t.Context(), http.MethodGet, "/v1/runs/"+run+"/events", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, string(body))
	var events []event
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		events = append(events, e)
	}
	require.NotEmpty(t, events, run)
	return events
}

// TestAgentsAfterEverythingWasKilled kills every process while the children of a run
// and a child of theirs work, and starts all of them again: each call has one
// child, and every caller gets its answer.
func TestAgentsAfterEverythingWasKilled(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	chief := o.chief(t)
	o.open.Store(true)
	o.restart()

	end, view := o.s.finish(t, chief)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Equal(t, "I scouted.", view.Memory.ToolCalls["c-1"].text())
	require.Equal(t, "I led.", view.Memory.ToolCalls["c-2"].text())
	children := o.children(t)
	require.Len(t, children, 3)
	lead := children[chief+"/c-2"]
	nested := o.opening(t, children[lead+"/l-1"])
	require.Equal(t, 2, nested.Parent.Depth)
	require.Equal(t, "scout", nested.Agent.Name)
	o.verifyAll()
}

// TestAgentsEndWithoutTheirActor lets a child end while nobody serves the pool of
// agents: its caller has the answer as soon as somebody does.
func TestAgentsEndWithoutTheirActor(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	chief := o.chief(t)
	o.roles[instance("agents", 0)].kill()
	o.open.Store(true)
	o.replace("actor", 0) // which did the work
	scout := o.children(t)[chief+"/c-1"]
	end, _ := o.s.finish(t, scout)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	view, err := o.api.view(t.Context(), chief)
	require.NoError(t, err)
	require.Equal(t, "parallel_acting", view.State)
	o.start("agents", 0)
	end, view = o.s.finish(t, chief)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Equal(t, "I scouted.", view.Memory.ToolCalls["c-1"].text())
	require.Len(t, o.children(t), 3)
	o.verifyAll()
}

// TestCancelReachesNestedAgents cancels a run whose children work, and theirs: the
// tools in flight are broken off, and every run has ended.
func TestCancelReachesNestedAgents(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	chief := o.chief(t)
	require.NoError(t, o.api.call(t.Context(), http.MethodPost, "/v1/runs/"+chief+"/cancel", map[string]string{"by": "Ann", "reason": "enough"}, nil))
	began := time.Now()
	await(t, o.ended, "the first scout's work is broken off")
	await(t, o.ended, "the second scout's work is broken off")
	require.Less(t, time.Since(began), 20*time.Second, "the tools have 30 s")
	children := o.children(t)
	require.Len(t, children, 3)
	children[""] = chief
	for call, run := range children {
		end, view := o.s.finish(t, run)
		require.Equal(t, "Cancelled", end.Type, call)
		require.Equal(t, "cancelled", view.State)
	}
	o.verifyAll()
}

// playerFunc is a player that is a function.
type playerFunc func(*chatRequest) (modelReply, error)

func (f playerFunc) reply(r *chatRequest) (modelReply, error) { return f(r) }

// TestHandOffOverProcesses hands a conversation over to another agent and goes on
// with that one, also after every process was killed.
func TestHandOffOverProcesses(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{ackWait: quickAckWait, subagents: []string{"{handoff: billing}"}})
	s := c.stage()
	c.api.awaitTools([]string{"transfer_to_billing"})
	c.define(t, "billing", nil, playerFunc(func(r *chatRequest) (modelReply, error) {
		if first := r.Messages[0]; first.Role != "system" || first.text() != "You are billing." {
			return modelReply{}, fmt.Errorf("the first message is %s: %q", first.Role, first.text())
		}
		var heard []string
		for _, m := range r.Messages {
			if m.Role == "user" {
				heard = append(heard, m.text())
			}
		}
		return says("I heard: " + strings.Join(heard, " ")), nil
	}))
	run := s.beginMode(t, "chat", script{asks("h-1", "transfer_to_billing", `{"reason": "invoices"}`)}, "transfer_to_billing")
	awaitReply := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			view, err := c.api.view(t.Context(), run)
			last := len(view.Memory.Messages) - 1
			return err == nil && view.State == "waiting_for_user" && last >= 0 && view.Memory.Messages[last].Content == want
		}, startTime, 10*time.Millisecond, want)
	}
	awaitReply("I heard: Do as you are told.")
	c.restart()
	require.NoError(t, c.api.say(t.Context(), run, 1, []message{*userMessage("And now?")}))
	awaitReply("I heard: Do as you are told. And now?")
	var handed []string
	for _, e := range c.log(t, run) {
		if e.Type == "HandedOff" {
			handed = append(handed, e.Source)
		}
	}
	require.Equal(t, []string{"moorebus/subagent/agents-0"}, handed)
	require.NoError(t, c.api.closeRun(t.Context(), run))
	c.verifyAll()
}

func userMessage(text string) *message { return &message{Role: "user", Content: &text} }

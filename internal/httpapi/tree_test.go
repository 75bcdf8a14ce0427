package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

func (r *rig) get(path string, into any) {
	r.T.Helper()
	a := r.do("GET", path, "")
	require.Equal(r.T, http.StatusOK, a.status, a.body)
	require.NoError(r.T, json.Unmarshal([]byte(a.body), into))
}

// node is a node of a tree in short.
type node struct {
	id       string
	relation list.Relation
	call     string
	at       uint64
	selected bool
}

// flat returns the nodes of a tree, each before its children.
func flat(n *list.Node) []node {
	all := []node{{n.RunID, n.Relation, n.CallID, n.At, n.Selected}}
	for _, child := range n.Children {
		all = append(all, flat(child)...)
	}
	return all
}

func TestTree(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 3, func(t *testing.T, r *rig) {
		parent := r.caller("c1", "c2")
		child := r.childOf(parent, "c1")
		r.Happens(child, events.Planning, &events.LLMToolCall{ToolCallReply: called("g1")})
		grandchild := r.childOf(child, "g1")
		fork := r.forked(child, `{"at":1}`)
		r.start("task") // belongs to none of them
		want := []node{
			{parent, "root", "", 0, false}, {child, "sub", "c1", 0, false},
			{grandchild, "sub", "g1", 0, false}, {fork, "fork", "", 1, false},
		}
		for i := range want {
			var tree list.Tree
			r.get("/v1/runs/"+want[i].id+"/tree", &tree)
			want[i].selected = true
			require.Equal(t, want, flat(tree.Root))
			require.False(t, tree.Truncated)
			want[i].selected = false
		}
		var tree list.Tree
		r.get("/v1/runs/"+parent+"/tree", &tree)
		require.Equal(t, events.ParallelActing, tree.Root.State)
		require.Equal(t, "tester", tree.Root.Agent)
		require.EqualValues(t, 2, tree.Root.N)
		var page list.Page
		r.get("/v1/runs?parent="+parent, &page)
		require.Len(t, page.Runs, 1)
		require.Equal(t, parent, page.Runs[0].Parent)
		r.fails(http.StatusNotFound, "run_not_found", r.do("GET", "/v1/runs/"+r.Store.NewID()+"/tree", ""))
	})
}

// A run whose parent the log does not have is the root.
func TestTreeWithoutParent(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	gone := r.Store.NewID()
	child := r.childOf(gone, "c1")
	var tree list.Tree
	r.get("/v1/runs/"+child+"/tree", &tree)
	require.Equal(t, []node{{child, "root", "c1", 0, true}}, flat(tree.Root))
}

func TestTreeOfHandOffs(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.Store.NewID()
	start := reducertest.StartOf("help", events.ModeTask)
	start.Tools = append(start.Tools, events.ToolSpec{Name: "closer", Effect: "idempotent", Pool: events.AgentsPool})
	r.Happens(id, events.Idle, start)
	r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Confidence: 1, Calls: []events.Call{{ID: "c1", Name: "closer"}}}})
	other := reducertest.StartOf("", events.ModeTask).Agent
	other.Name = "closer"
	r.Happens(id, events.Acting, &events.HandedOff{Agent: other, AgentHash: "h", CallID: "c1"})
	var tree list.Tree
	r.get("/v1/runs/"+id+"/tree", &tree)
	require.Equal(t, []list.HandOff{{N: 3, To: "closer"}}, tree.Root.HandOffs)
	require.Equal(t, "closer", tree.Root.Agent)
}

func TestBigTree(t *testing.T) {
	r := simulatedRig(t, nil)
	parent := r.start("task")
	var last string
	for range 1001 {
		run := r.Store.NewID()
		start := reducertest.StartOf("help", events.ModeTask)
		start.Parent = &events.Parent{Run: parent, CallID: "c"}
		r.Happens(run, events.Idle, start)
		last = run
	}
	var tree list.Tree
	r.get("/v1/runs/"+last+"/tree", &tree)
	require.True(t, tree.Truncated)
	all := flat(tree.Root)
	require.Len(t, all, 1001, "1000, and the run that was asked for")
	require.Equal(t, node{last, "sub", "c", 0, true}, all[len(all)-1])
	var u record.Usage
	r.get("/v1/runs/"+parent+"/usage", &u)
	require.True(t, u.Truncated)
	require.Len(t, u.Children, 999)
}

func dollars(cost float64) *float64 { return &cost }

func TestUsage(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 2, func(t *testing.T, r *rig) {
		id := r.start("task")
		reply := called("c1", "c2")
		reply.Usage = events.Usage{Input: 10, Output: 5, Cached: 4, Total: 15, CostUSD: dollars(0.25)}
		reply.Model = "m1"
		r.Happens(id, events.Planning, &events.LLMAttemptFailed{Kind: "timeout", Message: "slow"})
		r.Happens(id, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})
		child := r.childOf(id, "c2")
		done := &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "Helped.", Model: "m2", Usage: events.Usage{Input: 100, Output: 1, Total: 101, CostUSD: dollars(1)}}}
		r.Happens(child, events.Planning, done)
		r.Happens(id, events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "c1", Observation: "ERROR: no", Code: "failed", LatencyMS: 7}})
		r.Happens(id, events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{
			CallID: "c2", Success: true, Observation: "SUCCESS: Helped.", Code: "ok", LatencyMS: 90, Run: child, Usage: &done.Usage,
		}})

		var u record.Usage
		r.forked(child, `{"at":1}`) // its use is not the run's
		r.get("/v1/runs/"+id+"/usage", &u)
		var again record.Usage // now the use of the sub-run is known
		r.get("/v1/runs/"+id+"/usage", &again)
		require.Equal(t, u, again)
		tokens := record.Tokens{Input: 10, Output: 5, Cached: 4, CostUSD: dollars(0.25)}
		own := record.Use{Tokens: tokens, Total: 15, ModelCalls: 2, ToolCalls: 2, DurationMS: u.Own.DurationMS}
		require.Equal(t, own, u.Own)
		of := record.Use{Tokens: record.Tokens{Input: 100, Output: 1, CostUSD: dollars(1)}, Total: 101, ModelCalls: 1, DurationMS: u.Children[0].Use.DurationMS}
		require.Equal(t, []record.ChildUse{{RunID: child, CallID: "c2", Agent: "tester", State: events.Done, Use: of}}, u.Children)
		require.Equal(t, record.Use{
			Tokens: record.Tokens{Input: 110, Output: 6, Cached: 4, CostUSD: dollars(1.25)}, Total: 116, ModelCalls: 3, ToolCalls: 2, DurationMS: own.DurationMS + of.DurationMS,
		}, u.Total)
		require.EqualValues(t, 5, u.N)
		models := u.Steps[0].DurationMS + u.Steps[1].DurationMS
		require.Equal(t, models+7, own.DurationMS, "the sub-run has the time of its call")
		for i := range u.Steps {
			require.False(t, u.Steps[i].At.IsZero())
			u.Steps[i].At, u.Steps[i].DurationMS = time.Time{}, 0
		}
		require.Equal(t, []record.Step{
			{Step: 0, N: 2, Kind: "model", Name: "openai", Failed: true},
			{Step: 1, N: 3, Kind: "model", Name: "m1", Tokens: tokens},
			{Step: 1, N: 4, Kind: "tool", Name: "search", CallID: "c1", Failed: true},
			{Step: 1, N: 5, Kind: "tool", Name: "search", CallID: "c2", Tokens: of.Tokens},
		}, u.Steps)
		require.Equal(t, []*record.ToolUse{{Name: "search", Calls: 2, Failed: 1, DurationMS: 97, CostUSD: dollars(1)}}, u.Tools)
		require.Equal(t, []string{"openai", "m1"}, []string{u.Models[0].Name, u.Models[1].Name})
		require.Equal(t, record.ModelUse{Name: "m1", Calls: 1, Tokens: tokens, DurationMS: u.Models[1].DurationMS}, *u.Models[1])
		r.fails(http.StatusNotFound, "run_not_found", r.do("GET", "/v1/runs/"+r.Store.NewID()+"/usage", ""))
	})
}

// Waiting for people is time that nobody used.
func TestUsageOfWaiting(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(cfg *config) {
		later := func() time.Time { return time.Now().Add(time.Hour) } // for who writes the message
		cfg.Store = runlog.New(runlog.Options{Log: cfg.Store.Log(), Clock: later})
	})
	start := reducertest.StartOf("talk", events.ModeChat)
	id := r.Store.NewID()
	r.Happens(id, events.Idle, start)
	r.Happens(id, events.Planning, turnDone("Hello."))
	require.Equal(t, http.StatusOK, r.do("POST", "/v1/runs/"+id+"/inputs", `[{"type":"user-message","content":"More."}]`).status)
	var u record.Usage
	r.get("/v1/runs/"+id+"/usage", &u)
	require.InDelta(t, time.Hour.Milliseconds(), u.WaitingMS, float64(controltest.Patience.Milliseconds()))
	require.LessOrEqual(t, u.WaitingMS, u.ElapsedMS)
}

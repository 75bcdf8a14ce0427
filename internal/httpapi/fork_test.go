package httpapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/pkg/events"
)

// acted starts a run and takes it to its answer: Start, LlmToolCall, ToolSuccess,
// Continue, LlmFinalAnswer.
func (r *rig) acted() string {
	r.T.Helper()
	id := r.start("task")
	r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: called("c1")})
	r.Happens(id, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "SUCCESS: 2", Code: "ok"}})
	r.Happens(id, events.Observing, &events.Continue{})
	r.Happens(id, events.Planning, answered("2"))
	return id
}

func (r *rig) fork(id, body string) answer {
	r.T.Helper()
	return r.do("POST", "/v1/runs/"+id+"/fork", body)
}

// forked forks a run and returns the fork's id.
func (r *rig) forked(id, body string) string {
	r.T.Helper()
	a := r.fork(id, body)
	require.Equal(r.T, 200, a.status, a.body)
	return a.text(r.T, "run_id")
}

func TestFork(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 3, func(t *testing.T, r *rig) {
		parent := r.acted()
		a := r.fork(parent, `{"at":3}`)
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, "observing", a.text(t, "state"))
		require.EqualValues(t, 1, a.field(t, "n"))
		fork := a.text(t, "run_id")
		require.Equal(t, "/v1/runs/"+fork, a.header.Get("Location"))
		require.Equal(t, []string{"Forked"}, r.Types(fork))
		require.Len(t, r.Types(parent), 5, "the parent is as it was")

		mem := r.memory(fork)
		require.Equal(t, events.Observing, mem.State)
		require.Equal(t, "What is 1+1?", mem.Task)
		require.Equal(t, "SUCCESS: 2", *mem.LastObservation)
		r.Happens(fork, events.Observing, &events.Continue{})
		second := r.forked(fork, `{"at":2}`)
		r.Happens(second, events.Planning, answered("still 2"))
		require.Equal(t, events.Done, r.memory(second).State)
		require.Equal(t, 2, r.memory(second).Control.ForkedFrom.Depth)
		require.EqualValues(t, "observing", r.do("GET", "/v1/runs/"+fork+"?at=1", "").text(t, "state"))

		page := r.do("GET", "/v1/runs", "")
		var listed list.Page
		require.NoError(t, json.Unmarshal([]byte(page.body), &listed))
		require.Len(t, listed.Runs, 3)
		for _, run := range listed.Runs {
			require.Equal(t, []string{"tester", "What is 1+1?", "task"}, []string{run.Agent, run.Task, string(run.Mode)})
			switch run.RunID {
			case fork:
				require.Equal(t, &list.ForkPoint{Run: parent, At: 3}, run.ForkedFrom)
			case second:
				require.Equal(t, &list.ForkPoint{Run: fork, At: 2}, run.ForkedFrom)
			default:
				require.Nil(t, run.ForkedFrom)
			}
		}
		s := r.stream("/v1/runs/" + second + "/events")
		require.Equal(t, "Forked", s.next().event)
		require.Equal(t, "LlmFinalAnswer", s.next().event)
		s.ends()
	})
}

// A fork with the wrong hash of its parent ends as poisoned, and so do its streams.
func TestForkOfAnotherEventThanThereIs(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	parent := r.acted()
	id := r.forkOfNothing(parent)
	r.fails(409, "run_ended", r.do("POST", "/v1/runs/"+id+"/pause", ""))
	mem := r.memory(id)
	require.Equal(t, events.Errored, mem.State)
	require.Contains(t, mem.Error.Message, "the hashes differ")
	s := r.stream("/v1/runs/" + id + "/events")
	require.Equal(t, "Forked", s.next().event)
	require.Equal(t, "FatalError", s.next().event)
	s.ends()
}

func TestForksThatAreRefused(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.acted()
	for body, code := range map[string]string{
		`{"at":0}`: "bad_parameter", `{}`: "bad_parameter", `{"at":6}`: "bad_parameter", `{"at":-1}`: "bad_request", `{"at":1,"to":2}`: "bad_request",
		`{"at":1,"patch":[]}`: "bad_patch", `{"at":1,"patch":null}`: "bad_patch", `{"at":1,"patch":{"nonsense":1}}`: "bad_patch",
		`{"at":1,"patch":{"config":{"max_steps":0}}}`: "bad_patch", `{"at":1,"patch":{"task":7}}`: "bad_patch",
		`{"at":1,"patch":{"task":" "}}`: "empty_task", `{"at":1,"patch":{"mode":"talk"}}`: "bad_patch", `{"at":1`: "bad_request",
	} {
		r.fails(400, code, r.fork(id, body))
	}
	r.fails(404, "run_not_found", r.fork("nobody", `{"at":1}`))
	r.fails(404, "run_not_found", r.fork(r.Store.NewID(), `{"at":1}`))
	r.fails(405, "method_not_allowed", r.do("GET", "/v1/runs/"+id+"/fork", ""))
	a := r.fails(409, "run_ended", r.fork(id, `{"at":5}`))
	require.Equal(t, "done", a.text(t, "state"))
	r.fails(422, "unknown_tool", r.fork(id, `{"at":1,"patch":{"tools":["nothing"]}}`))
	r.fails(422, "unknown_provider", r.fork(id, `{"at":1,"patch":{"llm":{"provider":"nobody"}}}`))
	r.fails(413, "too_large", r.fork(id, fmt.Sprintf(`{"at":1,"patch":{"task":%q}}`, strings.Repeat("x", 500<<10))))

	poisoned := r.start("task")
	r.inject(poisoned, events.Acting, "no event")
	r.fails(409, "run_poisoned", r.fork(poisoned, `{"at":2}`))
	require.Equal(t, []string{"Forked"}, r.Types(r.forked(poisoned, `{"at":1}`)), "before it, it may be forked")
}

func TestForkWithAPatch(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.CheckApproval = approval.New().Check })
	r.announce("b", payTool)
	id := r.acted()

	first := func(run string) *events.Forked {
		e, err := new(events.Codec).Decode(r.Records(run)[0].Body)
		require.NoError(t, err)
		return e.Data.(*events.Forked)
	}
	same := first(r.forked(id, `{"at":2,"patch":{"name":"tester"}}`))
	require.JSONEq(t, `{"name":"tester"}`, string(same.Patch))
	require.Nil(t, same.Agent, "nothing changes, so nothing is pinned")
	require.Empty(t, same.Task)

	task := r.forked(id, `{"at":2,"patch":{"task":"What is 2+2?","task_type":"hard"}}`)
	require.Nil(t, first(task).Agent)
	mem := r.memory(task)
	require.Equal(t, []string{"What is 2+2?", "hard", "What is 2+2?"}, []string{mem.Task, mem.TaskType, mem.Messages[0].Content})

	fork := r.forked(id, `{"at":4,"patch":{"system_prompt":"Be <terse>.","models":{"default":"small"},"tools":["search"],
		"config":{"max_steps":3,"reflect_every_n_steps":null},"budget":{"max_total_tokens":9},"mode":"chat","blacklist":["pay"],
		"approval":{"policy":"expr","expr":"risk == 'high'"}}}`)
	pinned := first(fork)
	require.Len(t, pinned.Tools, 1)
	require.NotEmpty(t, pinned.AgentHash)
	mem = r.memory(fork)
	require.Equal(t, "Be <terse>.", mem.SystemPrompt)
	require.Equal(t, []int{3, 5}, []int{mem.Config.MaxSteps, mem.Config.ReflectEveryNSteps}, "null takes a key away: its default is left")
	require.Equal(t, 9, mem.Budget.MaxTotalTokens)
	require.Equal(t, []string{"pay"}, mem.Blacklist)
	require.Equal(t, map[string]events.Models{"default": {{Model: "small"}}}, mem.Control.Agent.Models)
	require.Equal(t, events.ModeChat, mem.Mode)
	r.Happens(fork, events.Planning, turnDone("2"))
	require.Equal(t, events.WaitingForUser, r.memory(fork).State)
	r.fails(422, "bad_approval", r.fork(id, `{"at":1,"patch":{"approval":{"policy":"expr","expr":"((("}}}`))
}

// A patch applies to the raised budget.
func TestForkKeepsARaisedBudget(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/budget", `{"max_total_tokens":77}`).status)
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/pause", "").status)
	mem := r.memory(r.forked(id, `{"at":3,"patch":{"config":{"max_steps":2}}}`))
	require.Equal(t, 77, mem.Budget.MaxTotalTokens)
	require.Equal(t, 2, mem.Config.MaxSteps)
	require.False(t, mem.Control.Paused, "a fork of a paused run goes on")
}

// A decision before the fork is the first decision in the fork too.
func TestForkRemembersItsParentsDecisions(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	once := r.held("pay", []string{"c1"})
	require.Equal(t, 200, r.decide(once, `{"call_id":"c1","decision":"approved","by":"ann"}`).status)
	r.fails(409, "approval_open", r.fork(once, `{"at":3}`))
	id := r.held("search", []string{"c1"})
	require.Equal(t, 200, r.decide(id, `{"call_id":"c1","decision":"approved","by":"ann"}`).status)
	fork := r.forked(id, `{"at":3}`)
	a := r.fails(409, "already_decided", r.decide(fork, `{"call_id":"c1","decision":"rejected","by":"bob"}`))
	require.Contains(t, a.body, `"by":"ann"`)

	open := r.forked(id, `{"at":2}`)
	require.Equal(t, 200, r.decide(open, `{"call_id":"c1","decision":"rejected","reason":"no","by":"bob"}`).status)
	require.Equal(t, events.Observing, r.memory(open).State)
}

func TestAForkWhoseParentIsGoneIsAConflict(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.acted()
	fork := r.forked(id, `{"at":2}`)
	require.Equal(t, events.Acting, r.memory(fork).State)
	gone := r.forkOfNothing(r.Store.NewID())
	r.fails(409, "parent_gone", r.do("GET", "/v1/runs/"+gone, ""))
	r.fails(409, "parent_gone", r.fork(gone, `{"at":1}`))
	a := r.do("GET", "/v1/runs/"+gone+"/events", "")
	require.Equal(t, 200, a.status, "its own events can be read")
}

// A client that repeats its request gets the existing fork.
func TestForkUnderAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.acted()
		fork := func(key, body string) answer {
			return r.do("POST", "/v1/runs/"+id+"/fork", body, "Idempotency-Key", key)
		}
		first := fork("once", `{"at":3,"patch":{"task":"Again.","config":{"max_steps":3}}}`)
		require.Equal(t, 200, first.status, first.body)
		made := first.text(t, "run_id")
		require.NoError(t, events.CheckID(made))
		again := fork("once", `{"patch": {"config": {"max_steps": 3}, "task": "Again."}, "at": 3}`)
		require.Equal(t, 200, again.status, again.body)
		require.JSONEq(t, first.body, again.body)
		require.Equal(t, "/v1/runs/"+made, again.header.Get("Location"))
		require.Equal(t, []string{"Forked"}, r.Types(made))
		r.Happens(made, events.Observing, &events.Continue{})
		require.EqualValues(t, 2, fork("once", `{"at":3,"patch":{"task":"Again.","config":{"max_steps":3}}}`).field(t, "n"), "it has gone on")

		for _, other := range []string{`{"at":2,"patch":{"task":"Again.","config":{"max_steps":3}}}`, `{"at":3}`, `{"at":3,"patch":{"task":"Once more."}}`} {
			a := r.fails(409, "idempotency_key_reused", fork("once", other))
			require.Equal(t, made, a.text(t, "run"))
		}
		require.NotEqual(t, made, fork("twice", `{"at":3}`).text(t, "run_id"))
		for _, key := range []string{"", "two words", "ü", strings.Repeat("k", 256)} {
			r.fails(400, "bad_idempotency_key", fork(key, `{"at":3}`))
		}
	})
}

func TestForkUnderAnIdOfOnesOwn(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id, own := r.acted(), r.Store.NewID()
	require.Equal(t, own, r.forked(id, `{"at":3,"run_id":"`+own+`"}`))
	a := r.fails(409, "run_exists", r.fork(id, `{"at":3,"run_id":"`+own+`"}`))
	require.Equal(t, own, a.text(t, "run"))
	r.fails(400, "bad_run_id", r.fork(id, `{"at":3,"run_id":"mine"}`))
	r.fails(400, "bad_run_id", r.do("POST", "/v1/runs/"+id+"/fork", `{"at":3,"run_id":"`+own+`"}`, "Idempotency-Key", "k"))
}

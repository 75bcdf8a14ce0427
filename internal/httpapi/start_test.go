package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestStartPinsEverything(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := runlog.NewID()
		a := r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"Say hi","run_id":"`+id+`","task_type":"calculation","mode":"chat"}`)
		require.Equal(t, http.StatusCreated, a.status, a.body)
		require.JSONEq(t, `{"run_id":"`+id+`","n":1}`, a.body)
		require.Equal(t, "/v1/runs/"+id, a.header.Get("Location"))

		records := r.Records(id)
		require.Len(t, records, 1)
		require.Equal(t, "moore.0.default.idle.planning.default."+id, records[0].Subject)
		e, err := new(events.Codec).Decode(records[0].Body)
		require.NoError(t, err)
		require.Equal(t, "moorebus/gateway/test", e.Source)
		start := e.Data.(*events.Start)
		require.Equal(t, []events.ToolSpec{searchTool}, start.Tools)
		require.Equal(t, events.ModeChat, start.Mode)
		require.Equal(t, events.ModeChat, start.Agent.Mode)
		require.Equal(t, 10, start.Agent.Config.ContextWindowSize, "the mode's own default")
		require.Equal(t, "calculation", start.TaskType)
		require.Equal(t, reducer.DefaultTable().Pins(start), start.TableHash)
		d, err := agentfile.ParseDefinition([]byte(inline), agentfile.JSON, agentfile.Options{})
		require.NoError(t, err)
		require.Equal(t, agentfile.Hash(d), start.AgentHash)

		again := r.fails(http.StatusConflict, "run_exists", r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"x","run_id":"`+id+`"}`))
		require.Equal(t, id, again.text(t, "run"))
		require.Len(t, r.Records(id), 1)
	})
}

func TestStartKeepsTheTraceContext(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	trace := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for sent, want := range map[string]string{trace: trace, "00-x": "", "": ""} {
		id := runlog.NewID()
		a := r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"Say hi","run_id":"`+id+`"}`, "traceparent", sent)
		require.Equal(t, http.StatusCreated, a.status, a.body)
		e, err := new(events.Codec).Decode(r.Records(id)[0].Body)
		require.NoError(t, err)
		require.Equal(t, want, e.TraceParent)
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	with := func(agent, rest string) string { return `{"agent":` + agent + `,"task":"x"` + rest + `}` }
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
		says   string
	}{
		"not JSON":            {`{"agent":`, 400, "bad_request", "line 1"},
		"trailing data":       {with(inline, "") + `{}`, 400, "bad_request", "after top-level value"},
		"UTF-8":               {with(inline, `,"task_type":"`+"\xff"+`"`), 400, "bad_request", "UTF-8"},
		"half a character":    {with(inline, `,"task_type":"\ud800"`), 400, "bad_request", "surrogate"},
		"a list":              {`[]`, 400, "bad_request", "a list"},
		"unknown key":         {with(inline, `,"tasks":"x"`), 400, "bad_request", "tasks: unknown key"},
		"wrong case":          {with(inline, `,"Mode":"chat"`), 400, "bad_request", "did you mean mode?"},
		"key twice":           {with(inline, `,"task":"y"`), 400, "bad_request", "twice"},
		"wrong type":          {with(inline, `,"mode":3`), 400, "bad_request", "mode"},
		"no agent":            {`{"task":"x"}`, 400, "bad_request", "agent"},
		"agent is a number":   {with(`3`, ""), 400, "bad_agent", "agent"},
		"empty task":          {`{"agent":` + inline + `,"task":" \n"}`, 400, "empty_task", "task"},
		"task of no words":    {`{"agent":{"llm":{"provider":"openai"},"task":"own"},"task":""}`, 400, "empty_task", "task"},
		"no task":             {`{"agent":` + inline + `}`, 400, "empty_task", "task"},
		"mode":                {with(inline, `,"mode":"fast"`), 400, "bad_request", "mode"},
		"run id":              {with(inline, `,"run_id":"1"`), 400, "bad_run_id", "UUIDv7"},
		"run id empty":        {with(inline, `,"run_id":""`), 400, "bad_run_id", "run_id"},
		"run id v4":           {with(inline, `,"run_id":"7d444840-9dc0-41d1-b245-5ffdce74fad2"`), 400, "bad_run_id", "UUIDv7"},
		"run id upper case":   {with(inline, `,"run_id":"0190A7F0-0000-7000-8000-000000000000"`), 400, "bad_run_id", "lower-case"},
		"definition":          {with(`{"llm":{"provider":"openai"},"colour":1}`, ""), 400, "bad_agent", "agent.colour: unknown key"},
		"definition value":    {with(`{"llm":{"provider":"openai"},"config":{"max_steps":0}}`, ""), 400, "bad_agent", "agent.config.max_steps"},
		"script":              {with(`{"llm":{"provider":"scripted","script":3}}`, ""), 400, "bad_agent", "agent.llm.script"},
		"unknown agent":       {with(`"nobody"`, ""), 404, "agent_not_found", "nobody"},
		"agent's name":        {with(`"No Body"`, ""), 404, "agent_not_found", "No Body"},
		"unknown tool":        {with(`{"llm":{"provider":"openai"},"tools":["search","fly"]}`, ""), 422, "unknown_tool", `"fly"`},
		"unknown provider":    {with(`{"llm":{"provider":"oracle"}}`, ""), 422, "unknown_provider", `"oracle"`},
		"next provider":       {with(`{"llm":{"provider":"openai"},"models":{"default":["openai/big","oracle/big"]}}`, ""), 422, "unknown_provider", `"oracle"`},
		"model of no one":     {with(`{"llm":{"provider":"openai"},"models":{"default":["big"]}}`, ""), 400, "bad_agent", "PROVIDER/MODEL"},
		"33 labels":           {with(inline, `,"labels":`+many(33)), 422, "too_many_labels", "33"},
		"33 with the agent":   {with(`{"llm":{"provider":"openai"},"labels":{"own":"x"}}`, `,"labels":`+many(32)), 422, "too_many_labels", "33"},
		"label of the agent":  {with(`{"llm":{"provider":"openai"},"labels":{"Own":"x"}}`, ""), 400, "bad_agent", `"Own" is not a key`},
		"labels of the agent": {with(`{"llm":{"provider":"openai"},"labels":`+many(33)+`}`, ""), 400, "bad_agent", "at most 32"},
		"label's key":         {with(inline, `,"labels":{"a b":"x"}`), 400, "bad_request", `"a b" is not a key`},
		"label's long key":    {with(inline, `,"labels":{"`+strings.Repeat("k", 64)+`":"x"}`), 400, "bad_request", "is not a key"},
		"label's NUL":         {with(inline, `,"labels":{"a\u0000":"x"}`), 400, "bad_request", `"a\x00" is not a key`},
		"label's prototype":   {with(inline, `,"labels":{"__proto__":"x"}`), 400, "bad_request", `"__proto__" is not a key`},
		"label too long":      {with(inline, `,"labels":{"a":"`+strings.Repeat("é", 128)+`!"}`), 400, "bad_request", "labels.a: has 257 bytes"},
		"label's number":      {with(inline, `,"labels":{"a":1}`), 400, "bad_request", "labels"},
		"label's null":        {with(inline, `,"labels":{"a":null}`), 400, "bad_request", `the value of "a" is not text`},
		"labels in a list":    {with(inline, `,"labels":["a"]`), 400, "bad_request", "labels"},
		"output schema":       {with(`{"llm":{"provider":"openai"},"output_schema":{"type":"wrong"}}`, ""), 422, "bad_output_schema", "output_schema"},
		"event too large":     {with(inline, `,"task_type":"`+strings.Repeat("x", 1000<<10)+`"`), 413, "too_large", "960 KiB"},
		"body too large":      {with(inline, `,"task_type":"`+strings.Repeat("x", 2<<20)+`"`), 413, "too_large", "1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			a := r.fails(c.status, c.code, r.do("POST", "/v1/runs", c.body))
			require.Contains(t, a.text(t, "message"), c.says)
		})
	}
	a := r.do("GET", "/v1/runs", "")
	require.JSONEq(t, `{"runs":[]}`, a.body, "nothing was started")
}

// many returns so many labels as JSON.
func many(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"k%d":""`, i))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// Labels of a request go before those of the agent. Lists and runs show them, and a fork has its parent's.
func TestLabels(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		a := r.do("PUT", "/v1/agents/labelled", `{"llm":{"provider":"openai"},"labels":{"team":"billing","env":"test"}}`)
		require.Equal(t, http.StatusOK, a.status, a.body)
		a = r.do("POST", "/v1/runs", `{"agent":"labelled","task":"x","labels":{"env":"prod","customer":"`+strings.Repeat("é", 128)+`"}}`)
		require.Equal(t, http.StatusCreated, a.status, a.body)
		id := a.text(t, "run_id")
		want := map[string]any{"team": "billing", "env": "prod", "customer": strings.Repeat("é", 128)}
		e, err := new(events.Codec).Decode(r.Records(id)[0].Body)
		require.NoError(t, err)
		require.Equal(t, "prod", e.Data.(*events.Start).Labels["env"])
		require.Equal(t, want, r.do("GET", "/v1/runs/"+id, "").field(t, "labels"))
		fork := r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1}`).text(t, "run_id")
		require.Equal(t, want, r.do("GET", "/v1/runs/"+fork, "").field(t, "labels"))
		plain := r.start("task")
		for _, run := range r.do("GET", "/v1/runs", "").field(t, "runs").([]any) {
			run := run.(map[string]any)
			if run["run_id"] == plain {
				require.NotContains(t, run, "labels")
			} else if run["run_id"] == id || run["labels"] != nil { // of a fork, only if its parent is known
				require.Equal(t, want, run["labels"])
			}
		}
		most := r.do("POST", "/v1/runs", `{"agent":"labelled","task":"x","labels":`+many(30)+`}`)
		require.Equal(t, http.StatusCreated, most.status, most.body)
	})
}

// A change of labels is a note: the log stays as it is, runs and lists show it, and forks do not have it.
func TestChangedLabels(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"x","labels":{"env":"test","team":"a"}}`).text(t, "run_id")
		path := "/v1/runs/" + id + "/labels"
		a := r.do("PATCH", path, `{}`)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.JSONEq(t, `{"labels":{"env":"test","team":"a"}}`, a.body)
		a = r.do("PATCH", path, `{"env":"prod","team":null,"gone":null,"x":"1"}`)
		require.JSONEq(t, `{"labels":{"env":"prod","x":"1"}}`, a.body)
		want := map[string]any{"env": "prod", "x": "1"}
		require.Equal(t, want, r.do("GET", "/v1/runs/"+id, "").field(t, "labels"))
		require.Equal(t, want, r.do("GET", "/v1/runs", "").field(t, "runs").([]any)[0].(map[string]any)["labels"])
		require.Len(t, r.Records(id), 1)
		fork := r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1}`).text(t, "run_id")
		require.Equal(t, map[string]any{"env": "test", "team": "a"}, r.do("GET", "/v1/runs/"+fork, "").field(t, "labels"))

		r.fails(422, "too_many_labels", r.do("PATCH", path, many(31)))
		for _, body := range []string{`null`, `["env"]`, `{"env":1}`, `{"env":{}}`, `{"E":"x"}`, `{"__proto__":"x"}`, `{"a\u0000":"x"}`, `{"env":"` + strings.Repeat("x", 257) + `"}`, `{"env":"\ud800"}`} {
			r.fails(400, "bad_request", r.do("PATCH", path, body))
		}
		r.fails(404, "run_not_found", r.do("PATCH", "/v1/runs/"+runlog.NewID()+"/labels", `{}`))
		require.Equal(t, want, r.do("GET", "/v1/runs/"+id, "").field(t, "labels"))

		require.Equal(t, http.StatusOK, r.do("POST", "/v1/runs/"+id+"/cancel", `{}`).status)
		a = r.do("PATCH", path, `{"env":null,"x":null}`)
		require.JSONEq(t, `{"labels":{}}`, a.body, "also of a run that has ended")
		require.NotContains(t, r.do("GET", "/v1/runs", "").body, `"env":"prod"`)

		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() { r.do("PATCH", path, fmt.Sprintf(`{"k%d":"x"}`, i)) })
		}
		all.Wait()
		require.Len(t, r.do("PATCH", path, `{}`).field(t, "labels"), 8, "none of several changes is lost")
	})
}

func TestStartOfTheLargestTaskThatFits(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		task := strings.Repeat("x", 950<<10)
		a := r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"`+task+`"}`)
		require.Equal(t, http.StatusCreated, a.status, a.body)
		a = r.do("GET", "/v1/runs", "")
		require.Less(t, len(a.body), 2000, "a list does not show all of a task")
		r.fails(413, "too_large", r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"`+strings.Repeat("x", 2<<20)+`"}`))
	})
}

func TestToolsAreLookedUpInTheDirectory(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		body := `{"agent":{"llm":{"provider":"openai"},"tools":["fly"]},"task":"x"}`
		a := r.fails(422, "unknown_tool", r.do("POST", "/v1/runs", body))
		require.Equal(t, "fly", a.text(t, "tool"))

		fly := events.ToolSpec{Name: "fly", Description: "Flies.", Schema: json.RawMessage(`{}`), Effect: "once", Pool: "default", Risk: "high"}
		r.announce("b", fly)
		a = r.do("POST", "/v1/runs", body)
		require.Equal(t, http.StatusCreated, a.status, "a miss looks again at once: %s", a.body)
	})
}

func TestStoredAgents(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		require.JSONEq(t, `[]`, r.do("GET", "/v1/agents", "").body)
		yaml := "llm: {provider: openai}\nmodels: {default: small}\ntools: [not_there_yet]\n"
		a := r.do("PUT", "/v1/agents/helper", yaml, "Content-Type", "application/yaml; charset=utf-8")
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, "helper", a.text(t, "name"))
		first := a.text(t, "hash")
		require.Len(t, first, 64)
		var listed []control.AgentInfo
		require.NoError(t, json.Unmarshal([]byte(r.do("GET", "/v1/agents", "").body), &listed))
		require.WithinDuration(t, time.Now(), listed[0].Updated, patience)
		require.Equal(t, []control.AgentInfo{{
			Name: "helper", Hash: first, Updated: listed[0].Updated, Mode: events.ModeTask, Provider: "openai", Model: "small", Tools: []string{"not_there_yet"},
		}}, listed)
		require.JSONEq(t, `[]`, r.do("GET", "/v1/agents", "", "Moorebus-Namespace", "other").body)
		r.fails(422, "unknown_tool", r.do("POST", "/v1/runs", `{"agent":"helper","task":"x"}`))

		stored := r.do("GET", "/v1/agents/helper", "")
		require.Equal(t, "application/json", stored.header.Get("Content-Type"))
		a = r.do("PUT", "/v1/agents/helper", stored.body, "Content-Type", "application/json")
		require.Equal(t, first, a.text(t, "hash"), "what was got can be put")

		a = r.do("PUT", "/v1/agents/helper", `{"name":"helper","llm":{"provider":"openai"}}`, "Content-Type", "application/json")
		second := a.text(t, "hash")
		require.NotEqual(t, first, second)
		a = r.do("POST", "/v1/runs", `{"agent":"helper","task":"x"}`)
		require.Equal(t, 201, a.status, a.body)
		state := r.do("GET", "/v1/runs/"+a.text(t, "run_id"), "")
		require.Equal(t, "helper", state.text(t, "agent"))
		require.Contains(t, state.body, second, "the run pins the version it starts with")
	})
}

// A policy that names a tool with its pool is refused where an agent is defined: it would have
// no effect. A definition that an older version stored can still be used.
func TestAgentsThatNamePools(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	const old = `{"name":"old","llm":{"provider":"openai"},"approval":{"policy":"tools","tools":["bank/pay"]}}`
	a := r.fails(400, "bad_agent", r.do("PUT", "/v1/agents/old", old, "Content-Type", "application/json"))
	require.Contains(t, a.text(t, "message"), `approval.tools[0]: "bank/pay" names a pool: write the tool's name alone, "pay"`)
	r.fails(400, "bad_agent", r.do("POST", "/v1/runs", `{"agent":`+old+`,"task":"x"}`))

	require.NoError(t, agentstore.Put(t.Context(), r.Bus, events.DefaultNamespace, "old", []byte(old)))
	require.Contains(t, r.do("GET", "/v1/agents", "").body, `"hash"`)
	require.NotContains(t, r.do("GET", "/v1/agents", "").body, `"hash":""`)
	a = r.do("POST", "/v1/runs", `{"agent":"old","task":"x"}`)
	require.Equal(t, 201, a.status, a.body)
}

// A run without a task gets the agent's own task.
func TestTheAgentsOwnTask(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	for name, task := range map[string]string{"idle": "", "busy": `,"task":"Count."`} {
		a := r.do("PUT", "/v1/agents/"+name, `{"llm":{"provider":"openai"}`+task+`}`, "Content-Type", "application/json")
		require.Equal(t, 200, a.status, a.body)
	}
	for body, want := range map[string]string{
		`{"agent":"busy"}`:                                       "Count.",
		`{"agent":"busy","task":"Rest."}`:                        "Rest.",
		`{"agent":{"llm":{"provider":"openai"},"task":"Sing."}}`: "Sing.",
	} {
		a := r.do("POST", "/v1/runs", body)
		require.Equal(t, 201, a.status, a.body)
		var state struct {
			Memory struct{ Task string }
		}
		require.NoError(t, json.Unmarshal([]byte(r.do("GET", "/v1/runs/"+a.text(t, "run_id"), "").body), &state))
		require.Equal(t, want, state.Memory.Task)
	}
	r.fails(400, "empty_task", r.do("POST", "/v1/runs", `{"agent":"idle"}`))
	r.fails(400, "empty_task", r.do("POST", "/v1/runs", `{"agent":"busy","task":" "}`))
}

func TestStoredAgentErrors(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	const yaml = "application/yaml"
	r.fails(404, "agent_not_found", r.do("GET", "/v1/agents/nobody", ""))
	r.fails(404, "agent_not_found", r.do("GET", "/v1/agents/No", ""))
	r.fails(400, "bad_agent", r.do("PUT", "/v1/agents/A", "llm: {provider: openai}", "Content-Type", yaml))
	a := r.fails(400, "bad_agent", r.do("PUT", "/v1/agents/a", "llm: {provider: openai}\nmodle: x\n", "Content-Type", yaml))
	require.Contains(t, a.text(t, "message"), "line 2: modle")
	r.fails(400, "bad_agent", r.do("PUT", "/v1/agents/a", "llm: {provider: openai}", "Content-Type", "application/json"))
	r.fails(400, "bad_agent", r.do("PUT", "/v1/agents/a", "name: b\nllm: {provider: openai}", "Content-Type", yaml))
	r.fails(400, "bad_agent", r.do("PUT", "/v1/agents/a", "", "Content-Type", yaml))
	r.fails(415, "unsupported_media_type", r.do("PUT", "/v1/agents/a", "x", "Content-Type", "text/html"))
	r.fails(413, "too_large", r.do("PUT", "/v1/agents/a", strings.Repeat("#", 1<<20+1), "Content-Type", yaml))
	r.fails(422, "bad_output_schema", r.do("PUT", "/v1/agents/a", `{"llm":{"provider":"openai"},"output_schema":{"type":1}}`, "Content-Type", "application/json"))
}

func TestStateAtEveryEvent(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("task")
		r.Happens(id, events.Planning, answered("two, of course"))
		a := r.do("GET", "/v1/runs/"+id, "")
		require.Equal(t, 200, a.status)
		require.Equal(t, "done", a.text(t, "state"))
		require.Equal(t, "tester", a.text(t, "agent"))
		require.Equal(t, "task", a.text(t, "mode"))
		require.EqualValues(t, 2, a.field(t, "n"))
		memory := a.field(t, "memory").(map[string]any)
		require.Equal(t, "two, of course", memory["final_answer"])

		a = r.do("GET", "/v1/runs/"+id+"?at=1", "")
		require.Equal(t, "planning", a.text(t, "state"))
		memory = a.field(t, "memory").(map[string]any)
		messages := memory["messages"].([]any)
		require.Len(t, messages, 1)
		require.Equal(t, "What is 1+1?", messages[0].(map[string]any)["content"])
		require.NotEmpty(t, a.text(t, "started"))
		require.NotEmpty(t, a.text(t, "updated"))
		require.Equal(t, "done", r.do("GET", "/v1/runs/"+id+"?at=2", "").text(t, "state"))

		for _, at := range []string{"0", "3", "-1", "x", "1.5", "", "1&at=2"} {
			r.fails(400, "bad_parameter", r.do("GET", "/v1/runs/"+id+"?at="+at, ""))
		}
		r.fails(400, "bad_parameter", r.do("GET", "/v1/runs/"+id+"?att=1", ""))
		r.fails(404, "run_not_found", r.do("GET", "/v1/runs/"+runlog.NewID(), ""))
		r.fails(404, "run_not_found", r.do("GET", "/v1/runs/nonsense", ""))
		r.fails(404, "run_not_found", r.do("GET", "/v1/runs/"+id, "", "Moorebus-Namespace", "other"))
	})
}

func TestListOfRuns(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			onEveryBus(t, shards, func(t *testing.T, r *rig) {
				var ids []string
				for range 9 {
					ids = append(ids, r.start("task"))
				}
				for _, id := range ids[:3] {
					r.Happens(id, events.Planning, answered("done with "+id))
				}
				var all []string
				for _, info := range r.pages("") {
					all = append([]string{info["run_id"].(string)}, all...)
				}
				require.Equal(t, ids, all, "the newest first")
				require.Len(t, r.pages("state=done&"), 3)
				require.Len(t, r.pages("state=planning&"), 6)
				require.Empty(t, r.pages("state=waiting_for_user&"))

				first := r.pages("state=done&")[2]
				require.Equal(t, ids[0], first["run_id"])
				require.Equal(t, "tester", first["agent"])
				require.Equal(t, "What is 1+1?", first["task"])
				require.EqualValues(t, 2, first["n"])
				require.Equal(t, "done", first["state"])
			})
		})
	}
}

// pages reads the whole list, two runs at a time.
func (r *rig) pages(query string) []map[string]any {
	r.T.Helper()
	var all []map[string]any
	after := ""
	for {
		a := r.do("GET", "/v1/runs?"+query+"limit=2"+after, "")
		require.Equal(r.T, 200, a.status, a.body)
		var page struct {
			Runs []map[string]any
			Next string
		}
		require.NoError(r.T, json.Unmarshal([]byte(a.body), &page))
		require.LessOrEqual(r.T, len(page.Runs), 2)
		all = append(all, page.Runs...)
		if page.Next == "" {
			return all
		}
		after = "&after=" + page.Next
	}
}

func TestListOfManyRuns(t *testing.T) {
	r := simulatedRig(t, nil)
	at := r.Store.Place("default", runlog.NewID())
	for range 150 {
		id := r.start("task")
		for range 40 {
			// Records of another namespace lie in between.
			at.ID = runlog.NewID()
			at.Namespace = "noise"
			_, err := r.Bus.Append(t.Context(), at, 0, journalEntry(at))
			require.NoError(t, err)
		}
		r.Happens(id, events.Control, &events.CancelledRun{})
	}
	require.Len(t, r.pages(""), 150)
	require.Len(t, r.pages("state=cancelled&"), 150)
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	r.start("task")
	r.Happens(id, events.Planning, answered("the FIRST of two"))
	for query, want := range map[string]int{
		"agent=tester": 2, "agent=x": 0, "q=first": 1, "state=done&q=two": 1, "since=2026-01-02T15:04:05Z": 2, "until=2026-01-02T15:04:05%2B02:00": 0,
		"parent=" + id: 0, "waiting=any": 0, "cost_above=0": 0, "q=" + id: 1,
	} {
		require.Len(t, r.pages(query+"&"), want, query)
	}
	a := r.do("GET", "/v1/runs?limit=1", "")
	require.Equal(t, 200, r.do("GET", "/v1/runs?cursor="+a.text(t, "next"), "").status)
}

func TestListErrors(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "state=flying", "state=", "after=x", "after=" + runlog.NewID(), "sate=done", "limit=%ff", "limit=1&limit=2", "a=%zz",
		"agent=", "q=", "since=yesterday", "until=1", "parent=x", "waiting=me", "cost_above=x", "cost_above=NaN", "cost_above=-1", "cursor=x", "cursor=" + id + "&after=" + id} {
		r.fails(400, "bad_parameter", r.do("GET", "/v1/runs?"+query, ""))
	}
}

// TestJustGoneOverHTTP: the client is told when to try again.
func TestJustGoneOverHTTP(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.PoolWait = time.Second })
	require.Eventually(t, func() bool {
		o, err := r.Directory.Offers(t.Context())
		return err == nil && o.First["search"] == "default"
	}, patience, 10*time.Millisecond)
	require.NoError(t, r.Directory.Withdraw(t.Context(), "default", "a"))
	for r.do("POST", "/v1/runs", startBody("task")).status == http.StatusCreated {
		continue // what was announced is known for a second
	}
	a := r.fails(http.StatusServiceUnavailable, "announcements_pending", r.do("POST", "/v1/runs", startBody("task")))
	require.Equal(t, "2", a.header.Get("Retry-After"))
	require.Equal(t, "search", a.text(t, "tool"))
}

func TestAmbiguousTools(t *testing.T) {
	t.Parallel()
	body := `{"agent":{"llm":{"provider":"openai"},"tools":["search"]},"task":"x"}`
	other := searchTool
	other.Pool = "web"
	// It is announced before the gateway runs, which keeps what it has read for a second.
	announced := func(c *config) {
		require.NoError(t, announce.NewDirectory(c.KV, nil).Announce(t.Context(), other.Pool, "b", []events.ToolSpec{other}))
	}
	a := simulatedRig(t, announced).do("POST", "/v1/runs", body)
	require.Equal(t, http.StatusCreated, a.status, "two pools may serve the same tool: %s", a.body)

	other.Description = "Searches elsewhere."
	r := simulatedRig(t, announced)
	a = r.fails(422, "ambiguous_tool", r.do("POST", "/v1/runs", body))
	require.Equal(t, "search", a.text(t, "tool"))
}

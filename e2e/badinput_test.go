package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBadInput gives the gateway, the log, the model and the tools everything
// that they must not trip over, and then plays the conversations.
func TestBadInput(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	names := slices.Sorted(slices.Values(append(toolNames(all), "echo", "huge", "silent")))
	c := startCluster(t, setup{tools: names, toolSettings: map[string]string{"silent": "effect: pure, timeout: 300ms"}})
	s := c.stage()
	s.limit = startTime
	t.Run("requests", func(t *testing.T) { badRequests(t, s) })
	t.Run("inputs", func(t *testing.T) { badInputs(t, s) })
	t.Run("agents", func(t *testing.T) { badAgents(t, c.api) })
	t.Run("model", func(t *testing.T) { badReplies(t, s) })
	t.Run("tools", func(t *testing.T) { badTools(t, s) })
	t.Run("log", func(t *testing.T) { badLog(t, c, s) })
	t.Run("and then", func(t *testing.T) { s.play(t, all, nil) })
}

// refused makes a request that must be refused with a status, and a text in the
// message or the code.
func refused(t *testing.T, a *api, method, path, body string, status int, says string, contentType ...string) {
	t.Helper()
	var refusal *apiError
	err := a.call(t.Context(), method, path, []byte(body), nil, contentType...)
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, status, refusal.Status, refusal.Body)
	require.Contains(t, refusal.Code+" "+refusal.Message, says)
}

func badRequests(t *testing.T, s *stage) {
	const definition = `{"name":"a","llm":{"provider":"openai"},"models":{"default":"m"}}`
	definitionWith := func(more string) string { return strings.TrimSuffix(definition, "}") + "," + more + "}" }
	body := func(task string) string { return `{"agent":` + definition + `,"task":"` + task + `"}` }
	for name, c := range map[string]struct {
		body   string
		status int
		says   string
	}{
		"not JSON":            {`{"agent":`, http.StatusBadRequest, ""},
		"nothing":             {``, http.StatusBadRequest, ""},
		"trailing data":       {body("x") + "{}", http.StatusBadRequest, ""},
		"unknown key":         {`{"agent":` + definition + `,"task":"x","tusk":"y"}`, http.StatusBadRequest, "tusk"},
		"unknown agent key":   {`{"agent":` + definitionWith(`"colour":"red"`) + `,"task":"x"}`, http.StatusBadRequest, "colour"},
		"empty task":          {body(""), http.StatusBadRequest, "task"},
		"invalid UTF-8":       {body("x\xff"), http.StatusBadRequest, ""},
		"run id":              {`{"agent":` + definition + `,"task":"x","run_id":"mine"}`, http.StatusBadRequest, "run_id"},
		"task of 2 MB":        {body(strings.Repeat("x", 2<<20)), http.StatusRequestEntityTooLarge, ""},
		"event over 960 KiB":  {body(strings.Repeat("x", 1000<<10)), http.StatusRequestEntityTooLarge, ""},
		"unknown tool":        {`{"agent":` + definitionWith(`"tools":["echo","sow"]`) + `,"task":"x"}`, http.StatusUnprocessableEntity, "sow"},
		"unknown tool's code": {`{"agent":` + definitionWith(`"tools":["sow"]`) + `,"task":"x"}`, http.StatusUnprocessableEntity, "unknown_tool"},
		"unknown provider":    {strings.Replace(body("x"), `"openai"`, `"oracle"`, 1), http.StatusUnprocessableEntity, "oracle"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, s.api, http.MethodPost, "/v1/runs", c.body, c.status, c.says)
		})
	}
	run := s.begin(t, script{says("Here I am.")})
	s.finish(t, run)
	again := `{"agent":` + definition + `,"task":"x","run_id":"` + run + `"}`
	refused(t, s.api, http.MethodPost, "/v1/runs", again, http.StatusConflict, "run_exists")
	refused(t, s.api, http.MethodGet, "/v1/nothing", "", http.StatusNotFound, "")
	refused(t, s.api, http.MethodDelete, "/v1/runs", "", http.StatusMethodNotAllowed, "")
	refused(t, s.api, http.MethodGet, "/v1/runs/"+newRunID(), "", http.StatusNotFound, "")
	refused(t, s.api, http.MethodGet, "/v1/runs/"+run+"?at=0", "", http.StatusBadRequest, "at")
	refused(t, s.api, http.MethodGet, "/v1/runs/"+run+"?at=99", "", http.StatusBadRequest, "at")
}

// waitingRun starts a conversation and waits until it waits for its user.
func waitingRun(t *testing.T, s *stage, answers ...string) string {
	t.Helper()
	var replies script
	for _, answer := range answers {
		replies = append(replies, says(answer))
	}
	run := s.beginMode(t, "chat", replies)
	awaitState(t, s, run, "waiting_for_user")
	return run
}

// awaitState waits until a run is in a state, and returns it.
func awaitState(t *testing.T, s *stage, run, state string) *runView {
	t.Helper()
	var view *runView
	require.Eventually(t, func() bool {
		var err error
		view, err = s.api.view(t.Context(), run)
		return err == nil && view.State == state
	}, startTime, 10*time.Millisecond, "run %s is not %s", run, state)
	return view
}

func badInputs(t *testing.T, s *stage) {
	run := waitingRun(t, s, "Go on.", "Good bye.")
	before, err := s.api.view(t.Context(), run)
	require.NoError(t, err)
	const good = `{"type":"user-message","message_id":"m-1","content":"Still there?"}`
	for name, c := range map[string]struct {
		body   string
		status int
		says   string
	}{
		"not JSON":      {`[` + good, http.StatusBadRequest, ""},
		"no list":       {good, http.StatusBadRequest, ""},
		"trailing data": {`[` + good + `]]`, http.StatusBadRequest, ""},
		"unknown type":  {`[{"type":"user-mess","content":"x"}]`, http.StatusBadRequest, "user-mess"},
		"unknown key":   {`[{"type":"user-message","message_id":"m-1","content":"x","colour":"red"}]`, http.StatusBadRequest, "colour"},
		"invalid UTF-8": {`[{"type":"user-message","message_id":"m-1","content":"` + "\xc3\x28" + `"}]`, http.StatusBadRequest, ""},
		"one of two":    {`[` + good + `,{"type":"user-mess","content":"x"}]`, http.StatusBadRequest, "user-mess"},
		"too large":     {`[{"type":"user-message","message_id":"m-1","content":"` + strings.Repeat("x", 2<<20) + `"}]`, http.StatusRequestEntityTooLarge, ""},
		"the actor's":   {`[{"type":"tool-call-result","tool_call_id":"c","result":{"is_success":true,"content":"r"}}]`, http.StatusConflict, "not_yours"},
		"the planner's": {`[{"type":"llm-message-complete","message_id":"m","content":"r"}]`, http.StatusConflict, "not_yours"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, s.api, http.MethodPost, "/v1/runs/"+run+"/inputs", c.body, c.status, c.says)
		})
	}
	after, err := s.api.view(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, before.N, after.N, "a refused input was appended")

	// The same again does nothing, and the keys may be in camel case.
	again := strings.Replace(good, "message_id", "messageId", 1)
	for _, body := range []string{good, again} {
		var accepted struct {
			Accepted int    `json:"accepted"`
			N        uint64 `json:"n"`
		}
		require.NoError(t, s.api.call(t.Context(), http.MethodPost, "/v1/runs/"+run+"/inputs", []byte(`[`+body+`]`), &accepted))
		require.Equal(t, 1, accepted.Accepted)
		var view *runView
		require.Eventually(t, func() bool {
			view = awaitState(t, s, run, "waiting_for_user")
			return len(view.Memory.Messages) == 4
		}, startTime, 10*time.Millisecond)
		require.Equal(t, "Good bye.", view.Memory.Messages[3].Content)
	}
	require.NoError(t, s.api.closeRun(t.Context(), run))
	awaitState(t, s, run, "done")
	refused(t, s.api, http.MethodPost, "/v1/runs/"+run+"/close", "", http.StatusConflict, "")
	refused(t, s.api, http.MethodPost, "/v1/runs/"+run+"/inputs", `[{"type":"user-message","message_id":"m-2","content":"x"}]`, http.StatusConflict, "")
}

func badAgents(t *testing.T, a *api) {
	const yaml = "application/yaml"
	path := "/v1/agents/gardener"
	unknown := "name: gardener\nllm: {provider: openai}\nconfig:\n  max_stepz: 3\n"
	refused(t, a, http.MethodPut, path, unknown, http.StatusBadRequest, "max_stepz", yaml)
	refused(t, a, http.MethodPut, path, unknown, http.StatusBadRequest, "line 4", yaml)
	refused(t, a, http.MethodPut, path, "name: gardener\nllm: {provider: openai\n", http.StatusBadRequest, "line", yaml)
	refused(t, a, http.MethodPut, path, "name: gardener\nllm: {provider: openai}\nname: other\n", http.StatusBadRequest, "name", yaml)
	refused(t, a, http.MethodPut, path, "name: gardener\nllm: {provider: openai}\nconfig: {max_steps: many}\n", http.StatusBadRequest, "max_steps", yaml)
	refused(t, a, http.MethodPut, path, `{"name":"gardener","llm":{"provider":"openai"},"tulips":[]}`, http.StatusBadRequest, "tulips")
	refused(t, a, http.MethodPut, "/v1/agents/Not%20A%20Name", "name: gardener\nllm: {provider: openai}\n", http.StatusBadRequest, "", yaml)
	refused(t, a, http.MethodGet, path, "", http.StatusNotFound, "")

	var put, got struct {
		Name string `json:"name"`
		Hash string `json:"hash"`
	}
	good := "name: gardener\nllm: {provider: openai}\ntools: [anything_at_all]\n"
	require.NoError(t, a.call(t.Context(), http.MethodPut, path, []byte(good), &put, yaml))
	require.Equal(t, "gardener", put.Name)
	require.NotEmpty(t, put.Hash)
	require.NoError(t, a.get(t.Context(), path, &got))
	refused(t, a, http.MethodPost, "/v1/runs", `{"agent":"gardener","task":"Dig."}`, http.StatusUnprocessableEntity, "anything_at_all")
}

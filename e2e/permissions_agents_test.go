package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guardedAgents are tools of three pools: the one of agents has a sub-run and a
// hand-off, and the sub-run's tools write to storage.
const guardedAgents = `tools:
  - {builtin: calculator}
  - {builtin: storage_save}
  - {builtin: working_memory_add}
  - {name: pay, description: Pays., schema: {type: object}, pool: web, exec: {command: [echo, paid]}}
  - {agent: scout}
  - {agent: asker}
  - {handoff: teller}
`

// scripted is an agent whose model is a script.
func scripted(name string, tools []string, script ...any) map[string]any {
	return map[string]any{"name": name, "tools": tools, "llm": map[string]any{"provider": "scripted", "script": script}}
}

// calling is an entry of a script that calls one tool.
func calling(id, tool string, arguments map[string]any) map[string]any {
	return map[string]any{"calls": []any{map[string]any{"name": tool, "arguments": arguments, "id": id}}}
}

func texting(text string) map[string]any { return map[string]any{"text": text} }

// TestGuardedAgents adds the pool of agents to a server on which roles have
// permissions, as its README says. A run calls an agent, which keeps something in
// its storage and has some of its memory paged out, and is handed over to another
// one, whose tool is of another pool. Another run is cancelled while its sub-run
// waits for a human. No role tries anything that it may not.
func TestGuardedAgents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "tools.yaml"), []byte(guardedAgents), 0o600))
	s.do(s.block("--credentials keys > permissions.conf"))
	server, _ := s.do(s.block("-c server.conf"))
	s.awaitPort("4222")
	s.do(s.block("operator.nk moorebus init --pools web\n"))
	roles, _ := s.do(s.block("gateway.nk"))
	later := s.block("--pools web,agents")
	s.do(later[:1])
	s.reload(server[0])
	s.do(later[2:3])
	s.awaitUser("actor_agents")
	agents, _ := s.do(later[3:])
	roles = append(roles, agents...)

	a := newAPI(t, "http://127.0.0.1:"+s.port["8080"])
	a.awaitReady()
	a.awaitTools([]string{"scout", "asker", "transfer_to_teller", "pay", "storage_save"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s.agentIsCalledAndHandsOver(ctx, a)
	s.cancelReachesSubrun(ctx, a)
	s.shell("NATS_NKEY=keys/tap.nk NATS_INBOX_PREFIX=_INBOX_tap replay verify --all")
	terminateAll(t, roles)
	for _, role := range roles {
		require.NotContains(t, role.log.String(), "violation", "%s may do what it does", role.name)
	}
}

// agentIsCalledAndHandsOver takes a run through an agent that answers and one that
// it is handed over to.
func (s *site) agentIsCalledAndHandsOver(ctx context.Context, a *api) {
	s.t.Helper()
	scout := scripted("scout", []string{"storage_save", "working_memory_add"},
		calling("s-1", "storage_save", map[string]any{"tags": "map", "value": "north"}),
		calling("s-2", "working_memory_add", map[string]any{"tags": "log", "value": strings.Repeat("far ", 100)}),
		texting("Kept."))
	scout["config"] = map[string]any{"paging_limit": 20}
	s.store(ctx, a, scout)
	// A script goes by how many replies its run has had.
	s.store(ctx, a, scripted("teller", []string{"pay"}, texting("never said"), texting("never said"), calling("t-1", "pay", map[string]any{}), texting("Told: {{observation -1}}")))
	run := s.begin(ctx, a, scripted("chief", []string{"scout", "transfer_to_teller"},
		calling("c-1", "scout", map[string]any{"task": "Scout."}),
		calling("c-2", "transfer_to_teller", map[string]any{"reason": "pay"})))
	s.awaitState(ctx, a, run, "done")
	view, err := a.view(ctx, run)
	require.NoError(s.t, err)
	require.Equal(s.t, "Kept.", view.Memory.ToolCalls["c-1"].text())
	require.NotNil(s.t, view.Memory.FinalAnswer)
	require.Contains(s.t, *view.Memory.FinalAnswer, "Told: paid")
	_, log, err := a.do(ctx, http.MethodGet, "/v1/runs/"+s.subrun(ctx, a, run)+"/events", nil)
	require.NoError(s.t, err)
	for _, happened := range []string{`"type":"StorageSaved"`, `"type":"PageDone"`, `"type":"LlmFinalAnswer"`} {
		require.Contains(s.t, string(log), happened)
	}
}

// cancelReachesSubrun cancels a run whose sub-run waits for a human.
func (s *site) cancelReachesSubrun(ctx context.Context, a *api) {
	s.t.Helper()
	asker := scripted("asker", []string{"calculator"}, calling("a-1", "calculator", map[string]any{"expression": "1"}))
	asker["approval"] = map[string]any{"policy": "always"}
	s.store(ctx, a, asker)
	run := s.begin(ctx, a, scripted("chief", []string{"asker"}, calling("c-1", "asker", map[string]any{"task": "Ask."})))
	var subrun string
	require.Eventually(s.t, func() bool {
		subrun = s.subrun(ctx, a, run)
		return subrun != ""
	}, startTime, 20*time.Millisecond, "the call has a run")
	s.awaitState(ctx, a, subrun, "waiting_for_human")
	require.NoError(s.t, a.call(ctx, http.MethodPost, "/v1/runs/"+run+"/cancel", map[string]any{"by": "ann"}, nil))
	s.awaitState(ctx, a, subrun, "cancelled")
	s.awaitState(ctx, a, run, "cancelled")
}

// store stores an agent under its name.
func (s *site) store(ctx context.Context, a *api, definition map[string]any) {
	s.t.Helper()
	require.NoError(s.t, a.call(ctx, http.MethodPut, "/v1/agents/"+definition["name"].(string), definition, nil))
}

// begin starts a run and returns its id.
func (s *site) begin(ctx context.Context, a *api, definition map[string]any) string {
	s.t.Helper()
	run := newRunID()
	require.NoError(s.t, a.start(ctx, runRequest{Agent: definition, Task: "Go.", RunID: run}))
	return run
}

// subrun returns the run that answers a run's first call of an agent; empty as long
// as there is none.
func (s *site) subrun(ctx context.Context, a *api, run string) string {
	s.t.Helper()
	var page struct {
		Runs []struct {
			ID string `json:"run_id"`
		} `json:"runs"`
	}
	require.NoError(s.t, a.get(ctx, "/v1/runs", &page))
	for _, r := range page.Runs {
		_, log, err := a.do(ctx, http.MethodGet, "/v1/runs/"+r.ID+"/events", nil)
		require.NoError(s.t, err)
		first, _, _ := strings.Cut(string(log), "\n")
		if strings.Contains(first, `"parent":{"run":"`+run+`"`) {
			return r.ID
		}
	}
	return ""
}

package agentfile_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
)

const researcher = `name: researcher
system_prompt: |
  You answer with sources.
llm: {provider: openai, temperature: 0.0, seed: 7}
models: {default: gpt-4o, calculation: gpt-4o-mini}
config: {max_steps: 20, parallel_tools: false}
budget: {max_total_tokens: 200_000, max_cost_usd: 2, max_wall_time: 30m}
approval: {policy: above, risk: medium, expires: 24h, outcome_unknown: ask}
output_schema:
  type: object
  required: [zebra, apple]
  properties: {zebra: {type: number, maximum: 1.50}, apple: {type: string}}
tools: [search, word_count]
blacklist: [delete_everything]
`

func TestParseAgentFillsInDefaults(t *testing.T) {
	a, err := agentfile.ParseAgent([]byte(researcher), agentfile.YAML, agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, events.ModeTask, a.Mode)
	require.Equal(t, "You answer with sources.\n", a.SystemPrompt)
	require.Equal(t, 20, a.Config.MaxSteps)
	require.False(t, a.Config.ParallelTools)
	require.Equal(t, 5, a.Config.ReflectEveryNSteps, "what is not said keeps its default")
	require.Equal(t, 0, a.Config.ContextWindowSize)
	require.Equal(t, 200000, a.Budget.MaxTotalTokens)
	require.Equal(t, events.Duration(30*time.Minute), a.Budget.MaxWallTime)
	require.Equal(t, events.Duration(24*time.Hour), a.Approval.Expires)
	require.Zero(t, *a.LLM.Temperature)
	require.JSONEq(t, `{"type":"object","required":["zebra","apple"],"properties":{"zebra":{"type":"number","maximum":1.50},"apple":{"type":"string"}}}`, string(a.OutputSchema))
	require.Contains(t, string(a.OutputSchema), `"zebra":{"type":"number","maximum":1.50},"apple"`, "order and numbers stay as written")
}

func TestYAMLAndJSONAgree(t *testing.T) {
	fromYAML, err := agentfile.ParseAgent([]byte(researcher), agentfile.YAML, agentfile.Options{})
	require.NoError(t, err)
	fromJSON, err := agentfile.ParseAgent(agentfile.Marshal(fromYAML), agentfile.JSON, agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, agentfile.Hash(fromYAML), agentfile.Hash(fromJSON))
	auto, err := agentfile.ParseAgent(agentfile.Marshal(fromYAML), agentfile.Auto, agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, fromJSON, auto)
}

func TestMalformedAgents(t *testing.T) {
	const head = "name: a\nllm: {provider: openai}\n"
	for name, c := range map[string]struct {
		data string
		want []string
	}{
		"unknown key":            {head + "config:\n  max_stepz: 3\n", []string{"line 4", "config.max_stepz", "did you mean max_steps?"}},
		"unknown key at the top": {head + "nmae: b\n", []string{"line 3", "nmae", "unknown key"}},
		"spelled in camel case":  {head + "systemPrompt: b\n", []string{"line 3", "did you mean system_prompt?"}},
		"wrong case":             {"Name: a\nllm: {provider: openai}\n", []string{"line 1", "Name", "did you mean name?"}},
		"number for text":        {head + "system_prompt: 12\n", []string{"line 3", "system_prompt", `put it in quotes: "12"`}},
		"text for number":        {head + "config: {max_steps: many}\n", []string{"line 3", "config.max_steps", "want a number"}},
		"fraction for number":    {head + "config: {max_steps: 1.5}\n", []string{"line 3", "config.max_steps", "1.5"}},
		"too large":              {head + "config: {max_steps: 99999999999999999999}\n", []string{"line 3", "config.max_steps"}},
		"infinite":               {head + "config: {confidence_threshold: .inf}\n", []string{"line 3", "config.confidence_threshold"}},
		"list for mapping":       {head + "models: [a]\n", []string{"line 3", "models", "want a mapping"}},
		"mapping for list":       {head + "tools: {a: 1}\n", []string{"line 3", "tools", "want a list"}},
		"item of a list":         {head + "tools:\n- a\n- [b]\n", []string{"line 5", "tools[1]"}},
		"yes for true":           {head + "config: {parallel_tools: yes}\n", []string{"line 3", "config.parallel_tools", "truth value"}},
		"bad duration":           {head + "budget: {max_wall_time: soon}\n", []string{"line 3", "budget.max_wall_time", "30s"}},
		"duration as number":     {head + "budget: {max_wall_time: 30}\n", []string{"line 3", "budget.max_wall_time"}},
		"twice":                  {head + "name: b\n", []string{"line 3", "name", "twice", "line 1"}},
		"tool of two pools":      {head + "tools: [web/a, lab/a]\n", []string{"tools[1]", `"a"`, "twice"}},
		"tool of no pool":        {head + "tools: [/a]\n", []string{"tools[0]", "POOL/TOOL"}},
		"tool of no such pool":   {head + "tools: [Web/a]\n", []string{"tools[0]", "POOL/TOOL"}},
		"tool with two slashes":  {head + "tools: [web/a/b]\n", []string{"tools[0]", "POOL/TOOL"}},
		"blacklist with a pool":  {head + "tools: [web/a]\nblacklist: [web/a]\n", []string{"line 4", "blacklist[0]", `write the tool's name alone, "a"`}},
		"approval with a pool":   {head + "tools: [web/a]\napproval: {policy: tools, tools: [web/a]}\n", []string{"line 4", "approval.tools[0]", `write the tool's name alone, "a"`}},
		"tool twice":             {head + "tools:\n- a\n- b\n- a\n", []string{"line 6", "tools[2]", "twice"}},
		"bad value":              {head + "config:\n  max_steps: 0\n", []string{"line 4", "config.max_steps", "at least 1"}},
		"bad mode":               {head + "mode: fast\n", []string{"line 3", "mode", "task or chat"}},
		"bad name":               {"name: A B\nllm: {provider: openai}\n", []string{"line 1", "name"}},
		"no provider":            {"name: a\nllm:\n  text: true\n", []string{"line 3", "llm.provider"}},
		"unknown outcomes":       {head + "approval: {policy: never, outcome_unknown: guess}\n", []string{"line 3", "approval.outcome_unknown", "tell nor ask"}},
		"policy":                 {head + "approval: {policy: maybe}\n", []string{"line 3", "approval.policy"}},
		"schema":                 {head + "output_schema: [1]\n", []string{"line 3", "output_schema"}},
		"syntax":                 {head + "tools: [a\nmode: chat\n", []string{"line"}},
		"second document":        {head + "---\nname: b\n", []string{"line 4", "second document"}},
		"not a mapping":          {"- a\n", []string{"line 1", "a list"}},
		"nothing":                {"# nothing\n", []string{"nothing in it"}},
		"merge key":              {"x: &x {a: 1}\n<<: *x\n", []string{"line 2", "merge"}},
		"own tag":                {head + "system_prompt: !secret x\n", []string{"line 3", "system_prompt", "!secret"}},
		"UTF-8":                  {head + "system_prompt: \xff\n", []string{"line 3", "UTF-8"}},
		"JSON unknown key":       {"{\"name\": \"a\",\n \"llm\": {\n \"providr\": \"x\"}}", []string{"line 3", "llm.providr", "did you mean provider?"}},
		"JSON twice":             {"{\"name\": \"a\",\n\"name\": \"b\"}", []string{"line 2", "name", "twice"}},
		"JSON syntax":            {"{\"name\": \"a\",\n \"llm\": }", []string{"line 2", "not valid JSON"}},
		"JSON trailing":          {"{\"name\": \"a\"}\n{}", []string{"line 2"}},
		"JSON surrogate":         {"{\"name\": \"a\",\n\"system_prompt\": \"\\ud800\"}", []string{"line 2", "system_prompt", "surrogate"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agentfile.ParseAgent([]byte(c.data), agentfile.Auto, agentfile.Options{})
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestSeveralProblemsAreReportedAtOnce(t *testing.T) {
	_, err := agentfile.ParseAgent([]byte("nam: a\nllm: {provider: 1}\nmode: [x]\n"), agentfile.YAML, agentfile.Options{})
	require.ErrorContains(t, err, "line 1: nam")
	require.ErrorContains(t, err, "line 2: llm.provider")
	require.ErrorContains(t, err, "line 3: mode")
}

func TestSizeIsBounded(t *testing.T) {
	_, err := agentfile.ParseAgent([]byte(strings.Repeat("#", agentfile.MaxSize+1)), agentfile.YAML, agentfile.Options{})
	require.ErrorIs(t, err, agentfile.ErrTooLarge)
}

func TestAliasesAreFollowedButNotWithoutEnd(t *testing.T) {
	a, err := agentfile.ParseAgent([]byte("name: &n a\nllm: {provider: openai}\nsystem_prompt: *n\n"), agentfile.YAML, agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, "a", a.SystemPrompt)

	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'h'; c++ {
		prev := string(c - 1)
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+prev+",", 9) + "*" + prev + "]\n"
	}
	_, err = agentfile.ParseAgent([]byte(bomb), agentfile.YAML, agentfile.Options{})
	require.Error(t, err)
}

func TestScriptIsCheckedByTheHook(t *testing.T) {
	const agent = `name: a
llm:
  provider: scripted
  script:
    - text: first
    - {calls: 3}
`
	var got json.RawMessage
	_, err := agentfile.ParseAgent([]byte(agent), agentfile.YAML, agentfile.Options{CheckScript: func(script json.RawMessage) error {
		got = script
		return errors.New("script[1].calls: want a list")
	}})
	require.ErrorContains(t, err, "line 6: llm.script[1].calls: want a list")
	require.Equal(t, `[{"text":"first"},{"calls":3}]`, string(got))
}

func TestNameOptions(t *testing.T) {
	a, err := agentfile.ParseAgent([]byte("llm: {provider: openai}"), agentfile.YAML, agentfile.Options{Name: "given"})
	require.NoError(t, err)
	require.Equal(t, "given", a.Name)
	_, err = agentfile.ParseAgent([]byte("llm: {provider: openai}\nname: other"), agentfile.YAML, agentfile.Options{Name: "given", Fixed: true})
	require.ErrorContains(t, err, "line 2: name")
}

func TestDefinitionsLeaveTheWindowToTheMode(t *testing.T) {
	d, err := agentfile.ParseDefinition([]byte("name: a\nllm: {provider: openai}\n"), agentfile.YAML, agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, events.ByMode, d.Config.ContextWindowSize)
	stored := agentfile.Marshal(d)
	require.NotContains(t, string(stored), "context_window_size\":-1")
	again, err := agentfile.ParseDefinition(stored, agentfile.JSON, agentfile.Options{})
	require.NoError(t, err)
	again.Mode = events.ModeChat
	again, err = again.Resolve()
	require.NoError(t, err)
	require.Equal(t, 10, again.Config.ContextWindowSize)
}

func TestHashIsOfTheContent(t *testing.T) {
	parse := func(text string) events.Agent {
		a, err := agentfile.ParseDefinition([]byte(text), agentfile.YAML, agentfile.Options{})
		require.NoError(t, err)
		return a
	}
	a := parse("name: a\nllm: {provider: openai}\n")
	resolved, err := a.Resolve()
	require.NoError(t, err)
	require.Len(t, agentfile.Hash(a), 64)
	require.Equal(t, agentfile.Hash(a), agentfile.Hash(resolved))
	require.Equal(t, agentfile.Hash(a), agentfile.Hash(parse("llm: {provider: openai}\nmode: task\nname: a\n")))
	require.NotEqual(t, agentfile.Hash(a), agentfile.Hash(parse("llm: {provider: openai}\nmode: chat\nname: a\n")))
}

func TestFileWithBothDocuments(t *testing.T) {
	const tools = "tools:\n- {builtin: calculator}\n"
	for _, text := range []string{researcher + "---\n" + tools, tools + "---\n" + researcher} {
		docs, err := agentfile.ParseFile([]byte(text), agentfile.Options{})
		require.NoError(t, err)
		require.Equal(t, "researcher", docs.Agent.Name)
		require.Equal(t, "calculator", docs.Tools.Tools[0].Name)
	}
	docs, err := agentfile.ParseFile([]byte(tools), agentfile.Options{})
	require.NoError(t, err)
	require.Nil(t, docs.Agent)

	_, err = agentfile.ParseFile([]byte(tools+"---\n"+tools), agentfile.Options{})
	require.ErrorContains(t, err, "line 4: a second tool file")
	_, err = agentfile.ParseFile([]byte(researcher+"---\n"+researcher), agentfile.Options{})
	require.ErrorContains(t, err, `a second agent "researcher" in one file`)
	docs, err = agentfile.ParseFile([]byte(researcher+"---\nname: helper\nllm: {provider: openai}\n"), agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, "researcher", docs.Agent.Name, "the first one runs")
	require.Len(t, docs.Agents(), 2)
	require.Equal(t, "helper", docs.Others[0].Name)
}

func TestReadFileNamesTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "agent.yaml")
	require.NoError(t, os.WriteFile(name, []byte("name: a\nllm: {provider: x}\nmodel: y\n"), 0o600))
	_, err := agentfile.ReadFile(name, agentfile.Options{})
	require.ErrorContains(t, err, "agent.yaml: line 3: model: unknown key")
	_, err = agentfile.ReadFile(name+"x", agentfile.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzParseAgent(f *testing.F) {
	f.Add([]byte(researcher))
	f.Add([]byte(`{"name":"a","llm":{"provider":"openai"},"output_schema":{"b":1,"a":2}}`))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("{\"a\": \"\\ud83d\\ude00\"}"))
	f.Add([]byte("name: 0x1F\nllm: !!binary aGk=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, format := range []agentfile.Format{agentfile.Auto, agentfile.YAML, agentfile.JSON} {
			a, err := agentfile.ParseAgent(data, format, agentfile.Options{})
			if err != nil {
				continue
			}
			again, err := agentfile.ParseAgent(agentfile.Marshal(a), agentfile.JSON, agentfile.Options{})
			require.NoError(t, err, "what was accepted is accepted again")
			require.Equal(t, agentfile.Marshal(a), agentfile.Marshal(again))
			_, _ = agentfile.ParseFile(data, agentfile.Options{})
		}
	})
}

func TestBudgetOfZero(t *testing.T) {
	t.Parallel()
	for limits, says := range map[string]string{
		"{max_total_tokens: 0}":                   "line 3: budget.max_total_tokens: is 0, which would allow nothing; leave it out for no limit",
		"{max_input_tokens: 0}":                   "budget.max_input_tokens: is 0",
		"{max_output_tokens: -0}":                 "budget.max_output_tokens: is 0",
		"{max_cost_usd: 0.0}":                     "budget.max_cost_usd: is 0",
		"{max_wall_time: 0s}":                     "budget.max_wall_time: is 0",
		"{max_wall_time: 0h0m}":                   "budget.max_wall_time: is 0",
		"{max_cost_usd: 2, max_wall_time: \"0\"}": "budget.max_wall_time: is 0",
	} {
		text := "name: a\nllm: {provider: openai}\nbudget: " + limits
		_, err := agentfile.ParseAgent([]byte(text), agentfile.YAML, agentfile.Options{})
		require.ErrorContains(t, err, says, limits)
	}
	for _, limits := range []string{"", "{}", "{max_total_tokens: }", "{max_cost_usd: 0.001}", "{max_wall_time: 1ns}"} {
		_, err := agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}\nbudget: "+limits), agentfile.YAML, agentfile.Options{})
		require.NoError(t, err, limits)
	}
}

func TestSchemaThatIsNone(t *testing.T) {
	t.Parallel()
	options := agentfile.Options{CheckSchema: func(schema json.RawMessage) error {
		if string(schema) == `{"type":"wrong"}` {
			return errors.New("no such type")
		}
		return nil
	}}
	_, err := agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}\noutput_schema: {type: wrong}"), agentfile.YAML, options)
	require.EqualError(t, err, "line 3: output_schema: no such type")
	_, err = agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}\noutput_schema: {type: object}"), agentfile.YAML, options)
	require.NoError(t, err)
	_, err = agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}"), agentfile.YAML, options)
	require.NoError(t, err)
}

func TestAgentsAsTools(t *testing.T) {
	f, err := agentfile.ParseTools([]byte("tools:\n- {agent: helper, timeout: 5m}\n- {handoff: heir}\n- {builtin: calculator}\n"), agentfile.Auto)
	require.NoError(t, err)
	require.Equal(t, "helper", f.Tools[0].Name)
	require.Equal(t, "transfer_to_heir", f.Tools[1].Name)
	require.True(t, f.Tools[0].OfAgent() && f.Tools[1].OfAgent() && !f.Tools[2].OfAgent())
	for entry, want := range map[string]string{
		"{agent: a, handoff: b}":              "exactly one of http, exec, builtin, agent, handoff, a2a and service",
		"{agent: No Name}":                    `.agent: "No Name" is not an agent's name`,
		"{agent: a, pool: web}":               `.pool: agents are called in the pool "agents" alone`,
		"{agent: a, retries: 2}":              ".retries: does not belong to this kind of tool",
		"{agent: a, timeout: 0s}":             "line 2: tools[0].timeout: is 0, which no call could meet; leave it out",
		"{agent: a, timeout: 0m}":             "leave it out",
		"{handoff: a, timeout: 5s}":           ".timeout: does not belong to this kind of tool",
		"{builtin: calculator, pool: agents}": `.pool: "agents" is reserved`,
		"{name: x, a2a: nowhere}":             ".a2a: is not an absolute http or https URL",
		"{a2a: 'http://localhost/x'}":         `.name: "" is not a tool's name`,
		"{builtin: a, headers: {a: b}}":       ".headers: belongs to a2a",
		"{name: x, a2a: 'http://localhost/x', http: {url: 'http://localhost'}}": "is 2 of them",
	} {
		_, err := agentfile.ParseTools([]byte("tools:\n- "+entry+"\n"), agentfile.Auto)
		require.ErrorContains(t, err, want, entry)
	}
}

package httpapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/pkg/events"
)

// A tool with an invalid schema starts no run and no fork.
func TestToolsWithBadSchemasStartNothing(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	r.announce("b", events.ToolSpec{Name: "broken", Schema: json.RawMessage(`{"type":"object","properties":{"q":{"type":"text"}}}`), Effect: "pure", Pool: "odd", Risk: "low"})
	a := r.fails(422, "bad_tool_schema", r.do("POST", "/v1/runs", `{"agent":{"llm":{"provider":"openai"},"tools":["search","broken"]},"task":"x"}`))
	require.Equal(t, "broken", a.text(t, "tool"))
	require.Contains(t, a.text(t, "message"), "/properties/q/type", "the place in the schema")
	r.fails(422, "bad_tool_schema", r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1,"patch":{"tools":["broken"]}}`))
}

// A schema that no check could take is refused wherever a client may give one.
func TestSchemasThatBranchTooOften(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	defs := ""
	for i := range 14 {
		defs += fmt.Sprintf(`"d%d":{"anyOf":[%s]},`, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"$ref":"#/$defs/d%d"},`, i+1), 8), ","))
	}
	branching := `{"$ref":"#/$defs/d0","$defs":{` + defs + `"d14":{"required":["never"]}}}`
	client := fmt.Sprintf(`{"name":"mine","description":"x","schema":%s}`, branching)
	for code, agent := range map[string]string{
		"bad_output_schema": `{"llm":{"provider":"openai"},"output_schema":` + branching + `}`,
		"bad_tool_schema":   `{"llm":{"provider":"openai"},"client_tools":[` + client + `]}`,
	} {
		for _, a := range []answer{
			r.fails(422, code, r.do("PUT", "/v1/agents/a", agent, "Content-Type", "application/json")),
			r.fails(422, code, r.do("POST", "/v1/runs", `{"agent":`+agent+`,"task":"x"}`)),
		} {
			require.Contains(t, a.text(t, "message"), "branches too often")
		}
	}
	require.JSONEq(t, `{"runs":[]}`, r.do("GET", "/v1/runs", "").body, "nothing was started")
}

func TestBudgetsOfZero(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	for _, limit := range []string{`"max_total_tokens":0`, `"max_cost_usd":0.0`, `"max_wall_time":"0s"`} {
		agent := `{"llm":{"provider":"openai"},"budget":{` + limit + `}}`
		a := r.fails(400, "bad_agent", r.do("POST", "/v1/runs", `{"agent":`+agent+`,"task":"x"}`))
		require.Contains(t, a.text(t, "message"), "leave it out for no limit")
		require.Contains(t, a.text(t, "message"), "agent.budget.max_")
		r.fails(400, "bad_agent", r.do("PUT", "/v1/agents/a", agent, "Content-Type", "application/json"))

		id := r.start("task")
		a = r.fails(400, "bad_request", r.do("POST", "/v1/runs/"+id+"/budget", `{"max_input_tokens":5,`+limit+`}`))
		require.Contains(t, a.text(t, "message"), "leave it out to keep the current limit")
		a = r.fails(400, "bad_patch", r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1,"patch":{"budget":{`+limit+`}}}`))
		require.Contains(t, a.text(t, "message"), "leave it out for no limit")
		require.Equal(t, []string{"Start"}, r.Types(id))
	}
}

// The budget of a run that has ended cannot be raised.
func TestBudgetOfARunThatHasEnded(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/cancel", "").status)
	r.fails(409, "run_ended", r.do("POST", "/v1/runs/"+id+"/budget", `{"max_total_tokens":77}`))
}

// oddJSON generates values that are similar to schemas, and others.
func oddJSON(depth int) *rapid.Generator[any] {
	words := []string{"", "object", "string", "#", "#/$defs/a", "file:///x", "https://example.com/s.json", "(", "type", "\u0000"}
	keys := []string{"type", "properties", "required", "$ref", "$defs", "items", "anyOf", "not", "pattern", "minimum", "multipleOf", "enum", "$schema", "$id", "a", ""}
	leaves := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.SampledFrom(words).AsAny(), rapid.IntRange(-2, 1<<40).AsAny(), rapid.Float64Range(-1e30, 1e30).AsAny(),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	return rapid.OneOf(append(slices.Clone(leaves),
		rapid.SliceOfN(oddJSON(depth-1), 0, 3).AsAny(),
		rapid.MapOfN(rapid.SampledFrom(keys), oddJSON(depth-1), 0, 4).AsAny(),
		rapid.MapOfN(rapid.SampledFrom(keys), oddJSON(depth-1), 1, 4).AsAny(),
	)...)
}

// Any value in place of a schema is stored and usable, or refused with its place.
func TestOddSchemas(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	stored, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		value, err := json.Marshal(oddJSON(3).Draw(rt, "schema"))
		require.NoError(rt, err)
		agent := fmt.Sprintf(`{"llm":{"provider":"openai"},"output_schema":%s}`, value)
		a := r.do("PUT", "/v1/agents/odd", agent, "Content-Type", "application/json")
		started := r.do("POST", "/v1/runs", `{"agent":`+agent+`,"task":"x"}`)
		switch a.status {
		case 200:
			stored++
			require.Equal(rt, 201, started.status, started.body)
		case 400, 422:
			refused++
			require.Equal(rt, a.status, started.status, started.body)
			require.Contains(rt, a.body, "output_schema")
		default:
			rt.Fatalf("%d %s", a.status, a.body)
		}
	})
	require.NotZero(t, stored)
	require.NotZero(t, refused)
}

package httpapi_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 3, func(t *testing.T, r *rig) {
		parent := r.acted()
		fork := r.forked(parent, `{"at":1}`)
		reply := called("c1", "c2")
		reply.Calls[1].Arguments = `{"q":"x"}`
		r.Happens(fork, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})

		a := r.do("GET", "/v1/compare?a="+parent+"&b="+fork, "")
		require.Equal(t, 200, a.status, a.body)
		var got map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(a.body), &got))
		require.JSONEq(t, `1`, string(got["fork_point"]))
		require.JSONEq(t, `false`, string(got["same"]))
		require.JSONEq(t, `[{"op":"same","a":{"n":2,"name":"search","arguments":"{}"},"b":{"n":2,"name":"search","arguments":"{}"}},
			{"op":"added","b":{"n":2,"name":"search","arguments":"{\"q\":\"x\"}"}}]`, string(got["calls"]))
		require.JSONEq(t, `{"a":"2","b":null,"same":false}`, string(got["answer"]))
		require.JSONEq(t, `{"a":"done","b":"parallel_acting"}`, string(got["state"]))
		var usage struct{ A, B map[string]float64 }
		require.NoError(t, json.Unmarshal(got["usage"], &usage))
		require.InDelta(t, 2, usage.A["model_calls"], 0)
		require.InDelta(t, 2, usage.B["tool_calls"], 0)

		a = r.do("GET", "/v1/compare?a="+parent+"&b="+r.acted(), "")
		require.Nil(t, a.field(t, "fork_point"))
		require.Equal(t, true, a.field(t, "same"), a.body)
	})
}

func TestCompareWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.acted()
	for _, query := range []string{"?a=" + id, "?b=" + id, "?a=&b=" + id, "?a=" + id + "&b=" + id + "&c=1"} {
		r.fails(400, "bad_parameter", r.do("GET", "/v1/compare"+query, ""))
	}
	for _, other := range []string{"nobody", r.Store.NewID()} {
		r.fails(404, "run_not_found", r.do("GET", "/v1/compare?a="+id+"&b="+other, ""))
		r.fails(404, "run_not_found", r.do("GET", "/v1/compare?a="+other+"&b="+id, ""))
	}
	r.fails(404, "run_not_found", r.do("GET", "/v1/compare?a="+id+"&b="+id, "", "Moorebus-Namespace", "other"))
}

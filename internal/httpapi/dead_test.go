package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

func (r *rig) dead(query string) []dead.Dead {
	r.T.Helper()
	a := r.do("GET", "/v1/dead"+query, "")
	require.Equal(r.T, http.StatusOK, a.status, a.body)
	var all struct{ Dead []dead.Dead }
	require.NoError(r.T, json.Unmarshal([]byte(a.body), &all))
	return all.Dead
}

func TestDead(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		require.Equal(t, `{"dead":[]}`+"\n", r.do("GET", "/v1/dead", "").body)
		ends := func(code string) string {
			id := r.start("task")
			r.Happens(id, events.Planning, &events.FatalError{Outcome: events.Outcome{Code: code, Message: "because"}})
			return id
		}
		exhausted, auth, alive := ends(codes.AttemptsExhausted), ends("auth"), r.start("task")
		listed := r.dead("")
		require.Len(t, listed, 1)
		require.Equal(t, exhausted, listed[0].Run)
		require.Equal(t, codes.AttemptsExhausted, listed[0].Code)
		require.Len(t, r.dead("?all=true"), 2)

		drop := func(names ...string) answer {
			body, err := json.Marshal(map[string][]string{"names": names})
			require.NoError(t, err)
			return r.do("POST", "/v1/dead/drop", string(body))
		}
		r.fails(http.StatusNotFound, refusal.CodeNotDead, drop(exhausted, alive))
		r.fails(http.StatusBadRequest, refusal.CodeBadRequest, drop("nonsense"))
		r.fails(http.StatusBadRequest, refusal.CodeBadRequest, drop())
		require.Len(t, r.dead(""), 1)
		a := drop(exhausted)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Empty(t, r.dead(""))
		require.True(t, r.dead("?dropped=true")[0].Dropped)
		r.fails(http.StatusBadRequest, refusal.CodeBadParameter, r.do("GET", "/v1/dead?all=1", ""))

		first := r.do("POST", "/v1/runs/"+auth+"/retry", "", forking.KeyHeader, "once")
		require.Equal(t, http.StatusCreated, first.status, first.body)
		fork := first.text(t, "run_id")
		require.EqualValues(t, 1, first.field(t, "at"))
		require.Equal(t, "/v1/runs/"+fork, first.header.Get("Location"))
		require.Equal(t, events.Planning, r.memory(fork).State)
		require.Equal(t, fork, r.do("POST", "/v1/runs/"+auth+"/retry", "", forking.KeyHeader, "once").text(t, "run_id"))
		r.fails(http.StatusConflict, refusal.CodeNotDead, r.do("POST", "/v1/runs/"+alive+"/retry", ""))
		r.fails(http.StatusNotFound, refusal.CodeRunNotFound, r.do("POST", "/v1/runs/"+runlog.NewID()+"/retry", ""))
	})
}

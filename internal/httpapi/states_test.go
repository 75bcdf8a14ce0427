package httpapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/pkg/events"
)

// moments returns the run's moments, from lines.
func moments(t testing.TB, text string) []record.Moment {
	t.Helper()
	var all []record.Moment
	for line := range strings.Lines(text) {
		var m record.Moment
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		all = append(all, m)
	}
	return all
}

// checkMoments holds that the moments of a run are those after the events from first on.
func (r *rig) checkMoments(id string, first uint64, all []record.Moment) {
	r.T.Helper()
	var memory []byte
	for i, m := range all {
		require.Equal(r.T, first+uint64(i), m.N)
		if i == 0 {
			memory = m.Memory
		} else {
			require.Empty(r.T, m.Memory)
			text, err := json.Marshal(m.Delta)
			require.NoError(r.T, err)
			patch, err := jsonpatch.DecodePatch(text)
			require.NoError(r.T, err)
			memory, err = patch.Apply(memory)
			require.NoError(r.T, err, "%s", text)
		}
		at := r.do("GET", fmt.Sprintf("/v1/runs/%s?at=%d", id, m.N), "")
		want, err := json.Marshal(at.field(r.T, "memory"))
		require.NoError(r.T, err)
		require.JSONEq(r.T, string(want), string(memory), "event %d", m.N)
		require.Equal(r.T, m.At.Format("2006-01-02T15:04:05.999999999Z07:00"), at.text(r.T, "updated"))
	}
}

func TestStates(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 3, func(t *testing.T, r *rig) {
		id := r.acted()
		path := "/v1/runs/" + id + "/states"
		a := r.do("GET", path, "", "Accept-Encoding", "identity")
		require.Equal(t, "application/x-ndjson", a.header.Get("Content-Type"))
		require.Empty(t, a.header.Get("Content-Encoding"))
		all := moments(t, a.body)
		require.Len(t, all, 5)
		r.checkMoments(id, 1, all)
		some := moments(t, r.do("GET", path+"?from=2&to=4", "").body)
		require.Len(t, some, 3)
		r.checkMoments(id, 2, some)

		packed := r.request("GET", path, "", "Accept-Encoding", "gzip;q=0.5, br")
		require.Equal(t, "gzip", packed.Header.Get("Content-Encoding"))
		unpacked := r.request("GET", path, "") // the client asks for gzip itself
		text, err := io.ReadAll(unpacked.Body)
		require.NoError(t, err)
		require.Equal(t, a.body, string(text))

		fork := r.forked(id, `{"at":3}`)
		r.Happens(fork, events.Observing, &events.Continue{})
		all = moments(t, r.do("GET", "/v1/runs/"+fork+"/states", "").body)
		require.Len(t, all, 2)
		require.Contains(t, string(all[0].Memory), `"last_observation":"SUCCESS: 2"`)
		r.checkMoments(fork, 1, all)

		for _, query := range []string{"from=6", "to=6", "from=3&to=2", "from=0", "to=x", "at=1"} {
			r.fails(http.StatusBadRequest, "bad_parameter", r.do("GET", path+"?"+query, ""))
		}
		r.fails(http.StatusNotFound, "run_not_found", r.do("GET", "/v1/runs/"+r.Store.NewID()+"/states", ""))
	})
}

func TestStatesOfPoisonedRuns(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	r.inject(id, events.Acting, "no event")
	all := moments(t, r.do("GET", "/v1/runs/"+id+"/states", "").body)
	require.Len(t, all, 2)
	r.checkMoments(id, 1, all)
	require.Contains(t, fmt.Sprint(all[1].Delta), "/control/poison")
}

func TestStatesLive(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("task")
		path := "/v1/runs/" + id + "/states"
		live := r.stream(path)
		first := live.next()
		require.Equal(t, "memory", first.event)
		require.Equal(t, "1", first.id)
		r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: called("c1")})
		lines := []string{first.data, live.next().data}
		ahead := r.stream(path + "?from=2&to=3")
		require.Equal(t, "memory", ahead.next().event)
		for _, query := range []string{"?from=3", "?from=3&to=9", "?from=2&to=1"} {
			r.fails(http.StatusBadRequest, "bad_parameter", r.do("GET", path+query, "", "Accept", "text/event-stream"))
		}
		short := r.stream(path + "?from=2&to=2")
		require.Equal(t, "memory", short.next().event)
		short.ends()
		r.Happens(id, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "SUCCESS: 2", Code: "ok"}})
		require.Equal(t, "3", ahead.next().id)
		ahead.ends()
		resumed := r.stream(path, "Last-Event-ID", "2")
		r.Happens(id, events.Observing, &events.Continue{})
		r.Happens(id, events.Planning, answered("2"))
		for n := 3; n <= 5; n++ {
			got := live.next()
			require.Equal(t, sse{event: "delta", id: fmt.Sprint(n), data: got.data}, got)
			require.Equal(t, got, resumed.next())
			lines = append(lines, got.data)
		}
		live.ends()
		resumed.ends()
		r.checkMoments(id, 1, moments(t, strings.Join(lines, "\n")))

		stream := []string{"Accept", "text/event-stream"}
		require.Equal(t, http.StatusNoContent, r.do("GET", path, "", append(stream, "Last-Event-ID", "5")...).status)
		require.Equal(t, http.StatusNoContent, r.do("GET", path+"?to=3", "", append(stream, "Last-Event-ID", "3")...).status)
		for _, query := range []string{"?from=6", "?to=6", "?from=3&to=2"} {
			r.fails(http.StatusBadRequest, "bad_parameter", r.do("GET", path+query, "", stream...))
		}
		r.fails(http.StatusBadRequest, "bad_parameter", r.do("GET", path, "", append(stream, "Last-Event-ID", "x")...))
	})
}

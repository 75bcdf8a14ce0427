package httpapi_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Event streams are bounded by gateway and by client; whoever closes one makes room.
func TestEventStreamsAreBounded(t *testing.T) {
	for name, limit := range map[string]func(*config){
		"of the gateway": func(c *config) { c.http.MaxStreams = 3 },
		"of a client":    func(c *config) { c.http.MaxClientStreams = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			r := simulatedRig(t, limit)
			id := r.start("task")
			run, all := "/v1/runs/"+id+"/events", "/v1/events"
			open := []*stream{r.stream(run), r.stream(all), r.stream(run)}
			for _, path := range []string{run, all} {
				a := r.fails(429, "too_many_streams", r.do("GET", path, "", "Accept", "text/event-stream"))
				require.Equal(t, "5", a.header.Get("Retry-After"))
			}
			require.Equal(t, 200, r.do("GET", run, "").status, "what ends by itself is no stream")
			r.Happens(id, events.Planning, answered("2"))
			for range 2 {
				open[0].next()
			}
			open[0].ends()
			require.Eventually(t, func() bool {
				a := r.do("GET", run, "", "Accept", "text/event-stream", "Last-Event-ID", fmt.Sprint(2))
				return a.status == 204
			}, patience, waitStep, "one that ended made room")
		})
	}
}

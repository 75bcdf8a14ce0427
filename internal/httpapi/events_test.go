package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

const waitStep = 2 * time.Millisecond

func TestEventsAsLines(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("task")
		r.Happens(id, events.Planning, &events.LLMThought{}, answered("a line\nand another — “quoted” <b>"))
		var want []string
		for _, rec := range r.Records(id) {
			want = append(want, string(rec.Body))
		}
		a := r.do("GET", "/v1/runs/"+id+"/events", "")
		require.Equal(t, 200, a.status)
		require.Equal(t, "application/x-ndjson", a.header.Get("Content-Type"))
		require.Equal(t, strings.Join(want, "\n")+"\n", a.body, "byte for byte")
		require.Equal(t, want[1]+"\n"+want[2]+"\n", r.do("GET", "/v1/runs/"+id+"/events?from=2", "").body)
		require.Empty(t, r.do("GET", "/v1/runs/"+id+"/events?from=4", "").body)

		for _, query := range []string{"from=0", "from=x", "from=-1", "form=1"} {
			r.fails(400, "bad_parameter", r.do("GET", "/v1/runs/"+id+"/events?"+query, ""))
			r.fails(400, "bad_parameter", r.do("GET", "/v1/runs/"+id+"/events?"+query, "", "Accept", "text/event-stream"))
		}
		for _, accept := range []string{"*/*", "text/event-stream"} {
			r.fails(404, "run_not_found", r.do("GET", "/v1/runs/"+runlog.NewID()+"/events", "", "Accept", accept))
			r.fails(404, "run_not_found", r.do("GET", "/v1/runs/x/events", "", "Accept", accept))
		}
	})
}

func TestStreamOfARun(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("task")
		path := "/v1/runs/" + id + "/events"
		s := r.stream(path)
		e := s.next()
		require.Equal(t, sse{event: "Start", id: "1", data: string(r.Records(id)[0].Body)}, e)

		run := r.At(id)
		require.NoError(t, r.Bus.PublishChunk(run, []byte(`{"message_id":"m","offset":0,"text":"tw"}`)))
		require.Equal(t, sse{event: "chunk", data: `{"message_id":"m","offset":0,"text":"tw","kind":"text"}`}, s.next())
		delta := `{"message_id":"m","kind":"tool_call","index":0,"name":"add","text":"{"}`
		require.NoError(t, r.Bus.PublishChunk(run, []byte(delta)))
		require.Equal(t, sse{event: "tool_call_delta", data: delta}, s.next())
		require.NoError(t, r.Bus.PublishChunk(run, []byte(`not JSON`)))
		require.NoError(t, r.Bus.PublishChunk(run, []byte(`{"message_id":"m","kind":"else"}`)))
		r.Happens(id, events.Planning, &events.LLMThought{})
		require.Equal(t, "LlmThought", s.next().event)

		resumed := r.stream(path+"?from=1", "Last-Event-ID", "1")
		require.Equal(t, "2", resumed.next().id, "Last-Event-ID wins over from")
		later := r.stream(path + "?from=3")
		r.Happens(id, events.Planning, answered("two"))
		for _, s := range []*stream{s, resumed, later} {
			e := s.next()
			require.Equal(t, "LlmFinalAnswer", e.event)
			require.Equal(t, "3", e.id)
			s.ends()
		}

		all := r.stream(path)
		for n := range 3 {
			require.Equal(t, fmt.Sprint(n+1), all.next().id)
		}
		all.ends()
		one := r.stream(path, "Last-Event-ID", "2")
		require.Equal(t, "3", one.next().id)
		one.ends()
		for _, last := range []string{"3", "9"} {
			a := r.do("GET", path, "", "Accept", "text/event-stream", "Last-Event-ID", last)
			require.Equal(t, http.StatusNoContent, a.status)
		}
		r.fails(400, "bad_parameter", r.do("GET", path, "", "Accept", "text/html, text/event-stream;q=0.9", "Last-Event-ID", "x"))
	})
}

func TestStreamOfAPoisonedRun(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	path := "/v1/runs/" + id + "/events"
	r.inject(id, events.Done, "not\nan\r\nevent")
	s := r.stream(path)
	s.next()
	require.Equal(t, sse{event: "poison", id: "2", data: "not an  event"}, s.next())
	r.do("POST", "/v1/runs/"+id+"/cancel", "")
	require.Equal(t, "Cancelled", s.next().event)
	s.ends()
	r.inject(id, events.Done, "after the end")
	a := r.do("GET", path, "", "Accept", "text/event-stream", "Last-Event-ID", "3")
	require.Equal(t, http.StatusNoContent, a.status, "what comes after the end is not the run's")
	require.Equal(t, 4, strings.Count(r.do("GET", path, "").body, "\n"))
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.http.Heartbeat = 5 * time.Millisecond })
	id := r.start("task")
	for _, path := range []string{"/v1/runs/" + id + "/events?from=2", "/v1/events"} {
		s := r.stream(path)
		for range 3 {
			e, ok := s.any()
			require.True(t, ok)
			require.NotEmpty(t, e.comment)
		}
	}
}

func TestFleetFeed(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			onEveryBus(t, shards, func(t *testing.T, r *rig) {
				r.start("task")
				feed := r.stream("/v1/events")
				answers := r.stream("/v1/events?type=LlmFinalAnswer")
				done := r.stream("/v1/events?state=done")
				elsewhere := r.stream("/v1/events", "Moorebus-Namespace", "other")
				a, b := r.start("task"), r.start("task")
				r.Happens(a, events.Planning, answered("a"))
				r.Happens(b, events.Planning, answered("b"))

				seen := map[string]bool{}
				last := ""
				for range 4 {
					e := feed.next()
					seen[e.event+e.data] = true
					last = e.id
					require.Equal(t, shards-1, strings.Count(e.id, ","))
				}
				require.Len(t, seen, 4, "from now on, each once")
				for range 2 {
					require.Equal(t, "LlmFinalAnswer", answers.next().event)
					require.Equal(t, "LlmFinalAnswer", done.next().event)
				}
				other := r.do("POST", "/v1/runs", startBody("task"), "Moorebus-Namespace", "other")
				require.Equal(t, 201, other.status, other.body)
				require.Contains(t, elsewhere.next().data, other.text(t, "run_id"))

				c := r.start("task")
				resumed := r.stream("/v1/events?from_seq=0:0", "Last-Event-ID", last)
				require.Contains(t, resumed.next().data, c)
				zero := "0:0"
				for shard := 1; shard < shards; shard++ {
					zero += fmt.Sprintf(",%d:0", shard)
				}
				everything := r.stream("/v1/events?from_seq=" + zero)
				for range 6 {
					everything.next()
				}
			})
		})
	}
}

func TestFleetFeedErrors(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	for _, query := range []string{"from_seq=x", "from_seq=0", "from_seq=1:0", "from_seq=0:1,0:2", "from_seq=0:-1", "from_seq=", "state=up", "type=Nothing", "sate=done"} {
		r.fails(400, "bad_parameter", r.do("GET", "/v1/events?"+query, ""))
	}
	r.fails(400, "bad_parameter", r.do("GET", "/v1/events", "", "Last-Event-ID", "7"))
}

func (r *rig) metric(name string) string {
	r.T.Helper()
	for line := range strings.SplitSeq(r.do("GET", "/metrics", "").body, "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return value
		}
	}
	return ""
}

func TestClientThatGoesAway(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	streams := []*stream{r.stream("/v1/runs/" + id + "/events"), r.stream("/v1/events")}
	require.Equal(t, "2", r.metric("moorebus_gateway_stream_clients"))
	for _, s := range streams {
		require.NoError(t, s.res.Body.Close())
	}
	require.Eventually(t, func() bool { return r.metric("moorebus_gateway_stream_clients") == "0" }, patience, waitStep)
}

// Large events are sent unchanged between small ones.
func TestLargeEventsInStreams(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("chat")
		all, one := r.stream("/v1/events?from_seq=0:0"), r.stream("/v1/runs/"+id+"/events")
		for _, size := range []int{10, 31 << 10, 33 << 10, 900 << 10, 20, 100 << 10} {
			a := r.inputs(id, `[{"type":"user-message","content":"`+strings.Repeat("x", size)+`"}]`)
			require.Equal(t, 200, a.status, a.body)
		}
		for i, rec := range r.Records(id) {
			e := one.next()
			require.Equal(t, strconv.Itoa(i+1), e.id)
			require.True(t, string(rec.Body) == e.data, "event %d", i+1)
			f := all.next()
			require.Equal(t, e.event, f.event)
			require.True(t, e.data == f.data, "event %d", i+1)
		}
	})
}

// narrow has connections whose buffers for writing hold little.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn, conn.(*net.TCPConn).SetWriteBuffer(4096)
}

// A client that does not read is dropped, and delays no other client.
func TestClientThatDoesNotRead(t *testing.T) {
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		stalled := newRig(t, r.Bus, func(c *config) { c.http.WriteTimeout, c.http.Listener = time.Second, narrow{listener} })
		stalled.url = "http://" + listener.Addr().String()
		id := stalled.start("chat")
		conn, err := net.Dial("tcp", strings.TrimPrefix(stalled.url, "http://"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
		_, err = io.WriteString(conn, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return stalled.metric("moorebus_gateway_stream_clients") == "1" }, patience, waitStep)

		live := stalled.stream("/v1/runs/" + id + "/events?from=2")
		text := strings.Repeat("x", 200<<10)
		for i := range 4 { // more than all buffers between hold
			a := stalled.inputs(id, `[{"type":"user-message","content":"`+text+`"}]`)
			require.Equal(t, 200, a.status)
			require.Equal(t, fmt.Sprint(i+2), live.next().id)
		}
		require.Eventually(t, func() bool { return stalled.metric("moorebus_gateway_stream_clients") == "1" }, patience, waitStep)
		require.Equal(t, "1", stalled.metric("moorebus_gateway_stream_clients_lost_total"))
	})
}

func TestStreamsEndWithTheGateway(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		own := newRig(t, r.Bus, func(c *config) { c.http.Listener = listener })
		own.url = "http://" + listener.Addr().String()
		id := own.start("task")
		one, fleet := own.stream("/v1/runs/"+id+"/events"), own.stream("/v1/events")
		one.next()
		began := time.Now()
		require.NoError(t, own.stop())
		require.Less(t, time.Since(began), 5*time.Second)
		one.ends()
		fleet.ends()
	})
}

// A record that matches the run's filter on a subject that is not of the log belongs to no
// run: it has no number and is not shown.
func TestMessagesOfNoRun(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	path := "/v1/runs/" + id + "/events"
	live := r.stream(path)
	require.Equal(t, "1", live.next().id)
	r.Bus.(*simtest.Journal).Inject(0, "moore.0.default.NO-STATE.planning.default."+id, []byte("{}"))
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/cancel", "").status)
	last := live.next()
	require.Equal(t, "2", last.id)
	require.Equal(t, "Cancelled", last.event)
	live.ends()
	require.Equal(t, "2", r.stream(path+"?from=2").next().id, "after the end, too")
	require.Equal(t, 1, strings.Count(r.do("GET", path+"?from=2", "").body, "\n"))
	require.Equal(t, "cancelled", r.do("GET", "/v1/runs/"+id+"?at=2", "").text(t, "state"))
}

// Event streams are bounded by gateway and by client. A stream that ends makes room.
func TestEventStreamsAreBounded(t *testing.T) {
	t.Parallel()
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

// Streams do not end at a forged end.
func TestForgedEndInStreams(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	live, cancelled := r.stream("/v1/runs/"+id+"/events"), r.stream("/v1/events?state=cancelled")
	require.Equal(t, "1", live.next().id)
	controltest.Forge(t, r.Bus, r.At(id), events.Control, &events.CancelledRun{}, events.Acting, events.Nobody)
	require.Equal(t, "2", live.next().id)
	second := r.start("task")
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+second+"/cancel", "").status)
	require.Contains(t, cancelled.next().data, second)
	_, err := r.control.Pause(context.Background(), "default", id, events.By{})
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refusal.CodeRunEnded, refused.Code, "it is poisoned, and is ended by whoever meets it")
	end := live.next()
	require.Equal(t, "3", end.id)
	require.Equal(t, "FatalError", end.event)
	live.ends()
	again := r.stream("/v1/runs/" + id + "/events")
	for _, want := range []string{"1", "2", "3"} {
		require.Equal(t, want, again.next().id)
	}
}

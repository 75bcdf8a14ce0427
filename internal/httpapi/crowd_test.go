package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// listen reads a stream to its end, or until each returns false. It calls each with every
// event's id. It tries again if the gateway is too busy.
func (r *rig) listen(client *http.Client, path, after string, each func(id string) bool) error {
	req, err := http.NewRequestWithContext(r.T.Context(), http.MethodGet, r.url+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	res, err := client.Do(req)
	for again := 0; err == nil && res.StatusCode == http.StatusServiceUnavailable && again < 5; again++ {
		_ = res.Body.Close()
		select {
		case <-time.After(time.Second):
		case <-req.Context().Done():
		}
		res, err = client.Do(req)
	}
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent {
		why, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s: %s: %s", path, res.Status, why)
	}
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok && !each(strings.TrimSuffix(id, "\n")) {
			return nil
		}
	}
}

// grow appends n thoughts and an answer to a run, as a planner does.
func (r *rig) grow(id string, n int) error {
	run := r.Store.Acquire(r.At(id))
	defer r.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(r.T.Context()); err != nil {
		return err
	}
	for i := range n + 1 {
		var p events.Payload = &events.LLMThought{}
		if i == n {
			p = answered("all")
		}
		_, err := run.Commit(r.T.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: events.Planning, Payload: p}}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Two hundred clients follow growing runs, from the beginning or from the middle, beside
// clients of all runs. Each gets every event that it asked for once and in order.
func TestCrowdOfStreams(t *testing.T) {
	onEveryBus(t, 2, func(t *testing.T, r *rig) {
		const runs, perRun, thoughts, everything = 20, 10, 20, 10
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		var clients, growing sync.WaitGroup
		fail := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		ids := make([]string, runs)
		for i := range ids {
			ids[i] = r.start("task")
		}
		for range everything {
			clients.Go(func() {
				seen := 0
				at := ""
				fail(r.listen(client, "/v1/events?from_seq=0:0", "", func(id string) bool {
					if id == at {
						t.Errorf("%s came twice", id)
					}
					at = id
					seen++
					return seen < runs*(thoughts+2)
				}))
				if seen != runs*(thoughts+2) {
					t.Errorf("%d events of %d", seen, runs*(thoughts+2))
				}
			})
		}
		for i, id := range ids {
			for k := range perRun {
				after := k * (i % 3) // some begin behind events that are not there yet
				clients.Go(func() {
					n := after
					fail(r.listen(client, "/v1/runs/"+id+"/events", strconv.Itoa(after), func(got string) bool {
						if n++; got != strconv.Itoa(n) {
							t.Errorf("run %s: event %s where %d was due", id, got, n)
						}
						return true
					}))
					if n != thoughts+2 {
						t.Errorf("run %s: the stream from %d ended at %d of %d", id, after, n, thoughts+2)
					}
				})
			}
			growing.Go(func() { fail(r.grow(id, thoughts)) })
		}
		growing.Wait()
		clients.Wait()
		require.Eventually(t, func() bool { return r.metric("moorebus_gateway_stream_clients") == "0" }, patience, waitStep)
	})
}

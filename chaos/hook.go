package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// hook receives what a webhook tells of runs.
type hook struct {
	*httptest.Server
	found func(string)

	mu sync.Mutex
	// told has the number of each notice's event by the notice's id, last that of a run's newest
	// notice.
	told map[string]notice
	last map[string]uint64
}

type notice struct {
	Data struct {
		Run string `json:"run_id"`
		N   uint64 `json:"n"`
	} `json:"data"`
}

func newHook(found func(string)) *hook {
	h := &hook{found: found, told: map[string]notice{}, last: map[string]uint64{}}
	h.Server = httptest.NewServer(http.HandlerFunc(h.take))
	return h
}

// put stores the webhook.
func (h *hook) put(ctx context.Context, c *client) error {
	return c.do(ctx, http.MethodPut, "/v1/webhooks/chaos", map[string]any{"url": h.URL, "sub_runs": true}, nil)
}

// take notes a notice. One may come again after a crash; the first ones of a run come in order.
func (h *hook) take(w http.ResponseWriter, r *http.Request) {
	var n notice
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	id := r.Header.Get("webhook-id")
	if _, again := h.told[id]; !again && n.Data.N < h.last[n.Data.Run] {
		h.found(fmt.Sprintf("webhook: run %s: event %d is told after event %d", n.Data.Run, n.Data.N, h.last[n.Data.Run]))
	}
	h.told[id], h.last[n.Data.Run] = n, max(h.last[n.Data.Run], n.Data.N)
}

// noticeTime is how long the last notices may take: a gateway that was killed has the lease for
// some seconds, and a notice that it had tried is tried again later.
const noticeTime = 40 * time.Second

// check holds the notices to the log: every end is told.
func (h *hook) check(ctx context.Context, a *audit, r *report) {
	ctx, cancel := context.WithTimeout(ctx, noticeTime)
	defer cancel()
	var missing []*history
	for {
		if missing = h.missing(a); len(missing) == 0 || !pause(ctx, 50*time.Millisecond) {
			break
		}
	}
	for _, run := range missing {
		r.found(fmt.Sprintf("webhook: the end of run %s, event %d, is not told", run.run, run.end.N))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r.notices = len(h.told)
}

func (h *hook) missing(a *audit) (all []*history) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, run := range a.runs {
		if run.end != nil && h.last[run.run] != run.end.N {
			all = append(all, run)
		}
	}
	return all
}

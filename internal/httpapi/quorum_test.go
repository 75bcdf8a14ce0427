package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// quorumLog is a log that can lose its quorum. Appends are not answered then; with stores they are
// stored all the same, as those of a leader that comes back.
type quorumLog struct {
	journal.Log
	ports.Fleet
	lost   atomic.Bool
	stores bool
}

func (l *quorumLog) Quorum(context.Context) error {
	if l.lost.Load() {
		return errors.New("stream MOORE_0 has no quorum")
	}
	return nil
}

func (l *quorumLog) Append(ctx context.Context, run events.Run, last uint64, all ...journal.Entry) (uint64, error) {
	if !l.lost.Load() {
		return l.Log.Append(ctx, run, last, all...)
	}
	if l.stores {
		if _, err := l.Log.Append(ctx, run, last, all...); err != nil {
			return 0, err
		}
	}
	<-ctx.Done()
	return 0, fmt.Errorf("%w: %w", journal.ErrUnknownOutcome, ctx.Err())
}

// A start while the log has no quorum is 503 in time. It names its run, with which it can be sent
// again whether it was stored or not.
func TestStartWithoutAQuorum(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for a log without a quorum
	}
	for _, stores := range []bool{true, false} {
		t.Run(fmt.Sprint("stored ", stores), func(t *testing.T) {
			t.Parallel()
			b := natsBus(t, 1)
			log := &quorumLog{Log: b, Fleet: b, stores: stores}
			r := newRig(t, b, func(c *config) { c.Store, c.Fleet = runlog.New(runlog.Options{Log: log}), log })
			require.Equal(t, http.StatusOK, r.do("GET", "/readyz", "").status)
			log.lost.Store(true)
			notReady := r.fails(http.StatusServiceUnavailable, "unavailable", r.do("GET", "/readyz", ""))
			require.Contains(t, notReady.text(t, "message"), "stream MOORE_0 has no quorum")
			began := time.Now()
			a := r.fails(http.StatusServiceUnavailable, "unavailable", r.do("POST", "/v1/runs", startBody("chat")))
			require.Less(t, time.Since(began), 20*time.Second, "access.TestWhileQuorum has the exact bound")
			require.Contains(t, a.text(t, "message"), "nothing can be stored now: stream MOORE_0 has no quorum")
			require.Contains(t, a.text(t, "message"), "may or may not")
			require.NotEmpty(t, a.header.Get("Retry-After"))
			run := a.text(t, "run")
			unknown := r.do("POST", "/v1/runs", strings.ReplaceAll(startBody("chat"), "openai", "nobody"))
			r.fails(http.StatusServiceUnavailable, "unavailable", unknown) // no announcement can be stored, either

			log.lost.Store(false)
			again := strings.Replace(startBody("chat"), "{", `{"run_id":"`+run+`",`, 1)
			if stores {
				require.Equal(t, run, r.fails(http.StatusConflict, "run_exists", r.do("POST", "/v1/runs", again)).text(t, "run"))
			} else {
				require.Equal(t, run, r.do("POST", "/v1/runs", again).text(t, "run_id"))
			}
			require.Equal(t, http.StatusOK, r.do("GET", "/v1/runs/"+run, "").status)
			r.fails(http.StatusUnprocessableEntity, "unknown_provider", r.do("POST", "/v1/runs", strings.ReplaceAll(startBody("chat"), "openai", "nobody")))
		})
	}
}

package backup_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
)

// later is a bus to which it is restored that what happened up to a time was noted. Else a minute
// before that is told again, since clocks differ.
type later struct {
	backup.Target
	t     *testing.T
	noted time.Time
}

func (l later) PutValue(ctx context.Context, v ports.Value) error {
	if strings.HasPrefix(v.Subject, "$KV.webhooks.state.") {
		var state map[string]any
		require.NoError(l.t, json.Unmarshal(v.Data, &state))
		state["noted"] = l.noted
		data, err := json.Marshal(state)
		require.NoError(l.t, err)
		v.Data = data
	}
	return l.Target.PutValue(ctx, v)
}

// The numbers of a restored log's records are others. What was pending, and what happens
// behind the restore, is told; what was delivered is not told again.
func TestWebhooksOfARestoredLog(t *testing.T) {
	t.Parallel()
	down := atomic.Bool{}
	got := make(chan string, 1000)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var n webhooks.Notice
		_ = json.NewDecoder(req.Body).Decode(&n)
		if down.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		got <- n.Data.Run
	}))
	defer receiver.Close()
	next := func() string {
		select {
		case run := <-got:
			return run
		case <-time.After(transfertest.Patience):
			require.Fail(t, "no notice came")
			return ""
		}
	}
	one := newWorld(t, 1).work()
	dir := filepath.Join(t.TempDir(), "backup")
	hooks := one.Host.Gateway().Pushes.(*webhooks.Hooks)
	unseen := one.Start(agent("[" + answer + "]")) // so that numbers differ
	one.Await(unseen, events.Done)
	_, err := hooks.PutWebhook(t.Context(), "", "pager", webhooks.Change{URL: receiver.URL})
	require.NoError(t, err)
	told := one.Start(agent("[" + answer + "]"))
	require.Equal(t, told.ID, next())
	down.Store(true)
	owed := one.Start(agent("[" + answer + "]"))
	require.Equal(t, owed.ID, next())
	require.Eventually(t, func() bool {
		info, err := hooks.Webhook(t.Context(), "", "pager")
		return err == nil && info.Pending == 1 && info.Failing != ""
	}, transfertest.Patience, 20*time.Millisecond)
	one.take(dir, false)
	noted := time.Now().Add(time.Minute)

	two := newWorld(t, 3).work()
	down.Store(false)
	_, err = backup.Restore(t.Context(), openArchive(t, dir, time.Time{}), later{two.Bus, t, noted}, source(backup.RestoreOptions{}))
	require.NoError(t, err)
	fresh := two.Start(agent("[" + answer + "]"))
	require.ElementsMatch(t, []string{owed.ID, fresh.ID}, []string{next(), next()})
	require.Empty(t, got)
}

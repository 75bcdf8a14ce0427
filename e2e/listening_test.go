package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listener is one connection to a run's events that hears the words of one reply.
type listener struct {
	mu   sync.Mutex
	text string // what was said so far
	err  error
	done chan struct{}
}

// listen connects to a run's events, once.
func (a *api) listen(ctx context.Context, run string) *listener {
	l := &listener{done: make(chan struct{})}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/v1/runs/"+run+"/events", nil)
	require.NoError(a.t, err)
	request.Header.Set("Accept", "text/event-stream")
	response, err := a.http.Do(request)
	require.NoError(a.t, err)
	require.Equal(a.t, http.StatusOK, response.StatusCode)
	go func() {
		defer close(l.done)
		defer func() { _ = response.Body.Close() }()
		_ = readSSE(response.Body, l.hear)
	}()
	return l
}

func (l *listener) hear(name, _, data string) error {
	if name != "chunk" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var c chunk
	if err := json.Unmarshal([]byte(data), &c); err != nil || c.Offset != len(l.text) {
		l.err = fmt.Errorf("the chunk %s follows %d bytes: %w", data, len(l.text), err)
	}
	l.text += c.Text
	return l.err
}

// heard is what was said so far. It fails the test if a piece was missing or came twice.
func (l *listener) heard(t *testing.T) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.NoError(t, l.err)
	return l.text
}

// TestListenersWhoComeLate connects to a run while the model is in the middle of a
// reply, over two gateways that are other processes than the planner: everybody
// hears the reply from its beginning, each piece once.
func TestListenersWhoComeLate(t *testing.T) {
	t.Parallel()
	// Nobody dies here: however slow the machine is, no call of the model is repeated.
	c := startCluster(t, setup{gateways: 2, ackWait: 10 * time.Minute})
	other := newAPI(t, "http://"+c.gatewayAddresses[1])
	other.awaitReady()
	reply := says(strings.TrimSpace(strings.Repeat("All of it was said, and 12 times 3 is 36. ", 40)))
	middle, halfway, goOn := len(reply.deltas())/2, make(chan struct{}), make(chan struct{})
	reply.before = func(delta int) {
		if delta == middle {
			close(halfway)
			<-goOn
		}
	}
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release) // else the model's server does not end
	run := c.stage().begin(t, script{reply})
	await(t, halfway, "the model has said the half")

	var listeners []*listener
	for _, at := range []*api{c.api, other, c.api} {
		listeners = append(listeners, at.listen(t.Context(), run))
	}
	text := *reply.content
	for i, l := range listeners {
		require.Eventually(t, func() bool { return strings.HasPrefix(l.heard(t), text[:len(text)/4]) }, startTime, 10*time.Millisecond, "listener %d hears what was said before it came", i)
		require.Less(t, len(l.heard(t)), len(text))
	}
	release()
	for i, l := range listeners {
		await(t, l.done, "the stream ends with its run")
		require.Equal(t, text, l.heard(t), "listener %d", i)
	}
	c.verifyAll()
}

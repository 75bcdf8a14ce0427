package console

import (
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// turned has the page believe that it is hidden or seen, and that a minute is over at once.
const turned = `(hidden => {
	window.later ??= window.setTimeout;
	window.setTimeout = (fn, ms) => window.later(fn, ms >= 60000 ? 0 : ms);
	Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
	document.dispatchEvent(new Event("visibilitychange"));
	return true;
})`

var clients = regexp.MustCompile(`(?m)^moorebus_gateway_stream_clients (\d+)$`)

// streams waits until the gateway has so many clients of streams.
func (g *gateway) streams(count string) {
	g.t.Helper()
	require.Eventually(g.t, func() bool {
		res, err := http.Get(g.url + "/metrics")
		require.NoError(g.t, err)
		text, err := io.ReadAll(res.Body)
		require.NoError(g.t, err)
		require.NoError(g.t, res.Body.Close())
		found := clients.FindSubmatch(text)
		return found != nil && string(found[1]) == count
	}, patience, 20*time.Millisecond, "there are not %s streams", count)
}

// A page that nobody sees leaves its connection to other tabs, and misses nothing for it.
func TestUnseenPage(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.run("cashier", "")
	g.state(id, "waiting_for_human")
	p := g.open()
	p.visit("/runs/" + id)
	p.shows("cashier")
	g.streams("1")
	value[bool](p, turned+`(true)`)
	g.streams("0")
	require.NoError(t, g.ask("POST", "/v1/runs/"+id+"/cancel", map[string]any{"reason": "closing time"}, &struct{}{}))
	value[bool](p, turned+`(false)`)
	p.shows("closing time")
	p.shows("cancelled")
}

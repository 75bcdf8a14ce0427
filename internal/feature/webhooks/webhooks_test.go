package webhooks_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

// What people should know comes, in the order of the run, and nothing else: nothing of before, of
// other agents, or of kinds that are not asked for.
func TestWhatIsTold(t *testing.T) {
	t.Parallel()
	r, got := newRig(t, webhooks.Settings{Allowed: loopback, Retries: quick, ConsoleURL: "https://console.example/"}), newReceiver(t)
	r.ends("tester") // before the webhook
	info := r.put("all", webhooks.Change{URL: got.URL, Agents: []string{"tester"}})
	require.True(t, strings.HasPrefix(info.Secret, "whsec_"), info.Secret)
	r.ends("another")
	id := r.start("tester", func(req *control.StartRequest) { req.Agent.Mode = events.ModeChat })
	r.Happens(id, events.Planning, controltest.TurnDone("Well?"))
	first := got.next()
	require.Equal(t, webhooks.TypeWaitingForUser, first.Type)
	require.Equal(t, "Well?", first.Data.Message)
	require.Equal(t, "tester", first.Data.Agent)
	require.Equal(t, "https://console.example/runs/"+id, first.Data.URL)
	_, err := r.Close(t.Context(), "", id, events.By{Reason: "enough", By: "ada"})
	require.NoError(t, err)
	second := got.next()
	require.Equal(t, webhooks.TypeEnded, second.Type)
	require.Equal(t, "ada", second.Data.By)
	require.Equal(t, id, second.Data.Run)

	r.put("few", webhooks.Change{URL: got.URL, On: []webhooks.Kind{webhooks.Failed}})
	failed := r.start("another")
	r.Happens(failed, events.Planning, &events.MaxSteps{Outcome: events.Outcome{Code: "max_steps", Message: "Too many."}})
	third := got.next()
	require.Equal(t, webhooks.TypeFailed, third.Type)
	require.Equal(t, "few", third.Data.Webhook)
	require.Equal(t, "max_steps", third.Data.Code)
	require.Empty(t, got.posts)
}

// A notice that fails comes again with the same id and body, and until it is there the run's next
// one waits. Other runs and webhooks do not.
func TestRetriesKeepTheOrder(t *testing.T) {
	t.Parallel()
	r, got, other := newRig(t, webhooks.Settings{Allowed: loopback, Retries: quick}), newReceiver(t), newReceiver(t)
	r.put("flaky", webhooks.Change{URL: got.URL})
	r.put("good", webhooks.Change{URL: other.URL})
	id := r.start("tester", func(req *control.StartRequest) { req.Agent.Mode = events.ModeChat })
	got.answers(func(p post, w http.ResponseWriter) {
		if p.Data.Run == id {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	r.Happens(id, events.Planning, controltest.TurnDone("Well?"))
	_, err := r.Close(t.Context(), "", id, events.By{})
	require.NoError(t, err)
	free := r.ends("tester")
	ids := map[string]string{}
	seen := 0
	for attempts := 0; attempts < 2 || seen == 0; {
		p := got.next()
		if p.Data.Run == free {
			seen++
			continue
		}
		attempts++
		require.Equal(t, webhooks.TypeWaitingForUser, p.Type, "its successor waits")
		if attempts == 2 {
			got.answers(nil)
		}
		if ids[p.id] != "" {
			require.Equal(t, ids[p.id], p.body)
		}
		ids[p.id] = p.body
	}
	require.Len(t, ids, 1)
	again := got.next()
	require.Contains(t, ids, again.id)
	require.Equal(t, webhooks.TypeEnded, got.next().Type)
	for range 3 {
		other.next()
	}
	require.Empty(t, other.posts)
	r.until("flaky", func(i webhooks.Info) bool { return i.Pending == 0 && i.Dead == 0 })
}

// What is given up is listed, can be tried again or dropped, and holds back nothing.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	r, got := newRig(t, webhooks.Settings{Allowed: loopback, Retries: quick}), newReceiver(t)
	got.answers(status(http.StatusInternalServerError))
	r.put("down", webhooks.Change{URL: got.URL})
	first, second := r.ends("tester"), r.ends("tester")
	r.until("down", func(i webhooks.Info) bool { return i.Dead == 2 && i.Pending == 0 })
	for range 2 * (len(quick) + 1) {
		got.next()
	}
	letters, err := r.WebhookDead(t.Context(), "", "down")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{first, second}, []string{letters[0].Run, letters[1].Run})
	require.Equal(t, webhooks.TypeEnded, letters[0].Type)
	require.Equal(t, len(quick)+1, letters[0].Attempts)
	require.Contains(t, letters[0].Reason, "500")

	_, err = r.RetryWebhook(t.Context(), "", "down", []string{"x"})
	require.True(t, refusal.Is(err, refusal.CodeNotDead), "%v", err)
	got.answers(nil)
	n, err := r.RetryWebhook(t.Context(), "", "down", []string{letters[0].ID})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, letters[0].ID+"_down", got.next().id)
	n, err = r.DropWebhook(t.Context(), "", "down", nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	r.until("down", func(i webhooks.Info) bool { return i.Dead == 0 && i.Pending == 0 })
	require.Empty(t, got.posts)
	require.Eventually(t, func() bool {
		for range r.bus.Each(t.Context(), row.Bucket, "retry.>") {
			return false
		}
		return true
	}, patience, 20*time.Millisecond)
}

// TestLinesOfADeadReceiver: the log has a line for each change of how a receiver does, however
// many notices it fails.
func TestLinesOfADeadReceiver(t *testing.T) {
	t.Parallel()
	r, got := newRig(t, webhooks.Settings{Allowed: loopback, Retries: quick}), newReceiver(t)
	got.answers(status(http.StatusInternalServerError))
	r.put("down", webhooks.Change{URL: got.URL})
	for range 5 {
		r.ends("tester")
	}
	r.until("down", func(i webhooks.Info) bool { return i.Dead == 5 && i.Pending == 0 })
	errors := func(n int) func() bool { return func() bool { return r.lines.count("level=ERROR") >= n } }
	require.Eventually(t, errors(1), patience, 20*time.Millisecond, "a notice is stored as given up before that is logged")
	require.Equal(t, 1, r.lines.count("level=WARN"), r.lines.all())
	require.Equal(t, 1, r.lines.count("level=ERROR"), r.lines.all())
	got.answers(nil)
	r.ends("tester")
	r.until("down", func(i webhooks.Info) bool { return i.Pending == 0 })
	require.Eventually(t, func() bool { return r.lines.count("takes notices again") == 1 }, patience, 20*time.Millisecond)
	got.answers(status(http.StatusInternalServerError))
	r.ends("tester")
	r.until("down", func(i webhooks.Info) bool { return i.Dead == 6 && i.Pending == 0 })
	require.Eventually(t, errors(2), patience, 20*time.Millisecond)
	require.Equal(t, 2, r.lines.count("level=WARN"), r.lines.all())
	require.Equal(t, 2, r.lines.count("level=ERROR"), r.lines.all())
}

// 410 Gone disables a webhook. What waits is given up, and to put it again enables it from then on.
func TestGone(t *testing.T) {
	t.Parallel()
	r, got := newRig(t, webhooks.Settings{Allowed: loopback, Retries: quick}), newReceiver(t)
	got.answers(status(http.StatusGone))
	r.put("gone", webhooks.Change{URL: got.URL})
	r.ends("tester")
	info := r.until("gone", func(i webhooks.Info) bool { return i.Disabled != "" })
	require.Equal(t, 1, info.Dead)
	got.next()
	r.ends("tester") // while it is disabled
	got.answers(nil)
	info = r.put("gone", webhooks.Change{URL: got.URL})
	require.Empty(t, info.Secret, "it keeps its secret")
	require.Empty(t, info.Disabled)
	id := r.ends("tester")
	require.Equal(t, id, got.next().Data.Run)
}

// A webhook cannot be used to reach what only the gateway can, by whatever name or redirection, and
// answers tell nothing of secrets.
func TestForbiddenAddresses(t *testing.T) {
	t.Parallel()
	r, got := newRig(t, webhooks.Settings{}), newReceiver(t)
	_, anything, stopAnything := r.gateway(t, webhooks.Settings{Allowed: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}})
	defer stopAnything()
	target := strings.Replace(got.URL, "127.0.0.1", "localhost", 1)
	for _, url := range []string{got.URL, target, "http://[::ffff:169.254.169.254]/latest", "http://10.0.0.1", "https://[64:ff9b::a9fe:a9fe]/", "https://[fd00::1]/", "http://0.0.0.0:1/"} {
		change := webhooks.Change{URL: url + "?token=hidden", AllowHTTP: true}
		_, err := r.PutWebhook(t.Context(), "", "inner", change)
		require.True(t, refusal.Is(err, row.CodeBadWebhook), "%v", err)
		require.ErrorContains(t, err, "not public", url)
		require.NotContains(t, err.Error(), "hidden")
		_, err = anything.PutWebhook(t.Context(), "", "inner", change)
		require.NoError(t, err, url)
		tested, err := r.TestWebhook(t.Context(), "", "inner")
		require.NoError(t, err)
		require.False(t, tested.Delivered)
		require.Contains(t, tested.Error, "not public", url)
		require.NotContains(t, tested.Error, "hidden")
	}
	require.Empty(t, got.posts)
	info, err := r.Webhook(t.Context(), "", "inner")
	require.NoError(t, err)
	require.NotContains(t, info.URL, "hidden")
	require.Empty(t, info.Secret)

	_, allowed, stop := r.gateway(t, webhooks.Settings{Allowed: loopback})
	defer stop()
	got.answers(func(_ post, w http.ResponseWriter) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	_, err = allowed.PutWebhook(t.Context(), "", "inner", webhooks.Change{URL: got.URL})
	require.NoError(t, err)
	tested, err := allowed.TestWebhook(t.Context(), "", "inner")
	require.NoError(t, err)
	require.Equal(t, webhooks.Tested{Status: 307, Error: tested.Error, Took: tested.Took}, tested)
	require.Contains(t, tested.Error, "not followed")
	got.next()
	require.Empty(t, got.posts)
}

// Of two gateways one delivers, and when it ends the other one goes on, without doing anything twice.
func TestTwoGateways(t *testing.T) {
	t.Parallel()
	settings := webhooks.Settings{Allowed: loopback, Retries: quick}
	r, got := newRig(t, settings), newReceiver(t)
	r.put("one", webhooks.Change{URL: got.URL})
	first := r.ends("tester")
	require.Equal(t, first, got.next().Data.Run)
	second, hooks, _ := r.gateway(t, settings)
	r.stop()
	r.Controller, r.Hooks = second, hooks
	id := r.ends("tester")
	require.Equal(t, id, got.next().Data.Run)
	require.Empty(t, got.posts)
}

// A receiver that is down gets everything once it is up again, though more waits for it than is
// kept in memory.
func TestManyWait(t *testing.T) {
	t.Parallel()
	again := make([]time.Duration, 1000)
	for i := range again {
		again[i] = 100 * time.Millisecond
	}
	r, got := newRig(t, webhooks.Settings{Allowed: loopback, Retries: again}, func(h *webhooks.Hooks) { webhooks.Bound(h, 10) }), newReceiver(t)
	arrived := make(chan string, 1000)
	got.answers(status(http.StatusServiceUnavailable))
	r.put("down", webhooks.Change{URL: got.URL})
	want := map[string]bool{}
	for range 40 {
		want[r.ends("tester")] = true
	}
	r.until("down", func(i webhooks.Info) bool { return i.Pending == 10 && i.Failing != "" })
	got.answers(func(p post, _ http.ResponseWriter) { arrived <- p.Data.Run })
	for len(want) > 0 {
		select {
		case id := <-arrived:
			delete(want, id)
		case <-time.After(patience):
			require.Fail(t, "notices are missing", "%d", len(want))
		}
	}
	r.until("down", func(i webhooks.Info) bool { return i.Pending == 0 && i.Dead == 0 })
}

// A receiver that asks to be left alone is, for longer than the schedule says.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	r, got := newRig(t, webhooks.Settings{Allowed: loopback, Retries: quick}), newReceiver(t)
	got.answers(func(_ post, w http.ResponseWriter) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	r.put("busy", webhooks.Change{URL: got.URL})
	r.ends("tester")
	info := r.until("busy", func(i webhooks.Info) bool { return i.Failing != "" })
	require.Contains(t, info.Failing, "429")
	require.WithinDuration(t, time.Now().Add(time.Hour), info.Next, 2*patience)
	got.next()
	require.Empty(t, got.posts)
}

// A bus that was set up by an older build is no failure: the gateway says what to do.
func TestOlderBus(t *testing.T) {
	t.Parallel()
	r := newRig(t, webhooks.Settings{})
	r.stop()
	js, err := jetstream.New(r.bus.Conn())
	require.NoError(t, err)
	require.NoError(t, js.DeleteKeyValue(t.Context(), "webhooks"))
	logged, log := io.Pipe()
	defer func() { _ = log.Close() }()
	lines := bufio.NewScanner(logged)
	c, err := control.New(control.Config{
		Base:   worker.Base{Store: runlog.New(runlog.Options{Log: r.bus}), Queue: r.bus, Feed: r.bus, Instance: "test", Logger: slog.New(slog.NewTextHandler(log, nil))},
		Timers: r.bus, KV: r.bus, Leases: r.bus,
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.RunAll(ctx, c.Run, webhooks.New(c, webhooks.Settings{}).Run) }()
	found := false
	for !found && lines.Scan() {
		found = strings.Contains(lines.Text(), "webhooks are not delivered: run `moorebus init` and print the permissions again")
	}
	require.True(t, found)
	go func() { _, _ = io.Copy(io.Discard, logged) }()
	require.Empty(t, done)
	stop()
	require.NoError(t, <-done)
}

// A command on the bus refuses what the gateway that delivers may not reach, and nothing else.
func TestReachOfTheGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t, webhooks.Settings{Allowed: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	c, err := control.New(control.Config{
		Base:   worker.Base{Store: runlog.New(runlog.Options{Log: r.bus}), Queue: r.bus, Feed: r.bus, Instance: "command"},
		Timers: r.bus, KV: r.bus, Leases: r.bus,
	})
	require.NoError(t, err)
	h := webhooks.New(c, webhooks.Settings{Allowed: loopback, Client: true})
	require.Eventually(t, func() bool {
		_, err := h.PutWebhook(t.Context(), "", "x", webhooks.Change{URL: "https://10.1.2.3/"})
		return err == nil
	}, patience, 20*time.Millisecond)
	_, err = h.PutWebhook(t.Context(), "", "x", webhooks.Change{URL: "http://127.0.0.1:1/"})
	require.True(t, refusal.Is(err, row.CodeBadWebhook), "%v", err)
}

// Requests that cannot be are refused.
func TestRefusedWebhooks(t *testing.T) {
	t.Parallel()
	r := newRig(t, webhooks.Settings{})
	for text, c := range map[string]webhooks.Change{
		"not a URL":   {URL: "ftp://x"},
		"allow_http":  {URL: "http://x.example"},
		"user":        {URL: "https://a:b@x.example"},
		"on:":         {URL: "https://x.example", On: []webhooks.Kind{"nothing"}},
		"form:":       {URL: "https://x.example", Form: "teams"},
		"secret:":     {URL: "https://x.example", Secret: "whsec_eA=="},
		"rotate:":     {URL: "https://x.example", Secret: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", Rotate: true},
		"agents:":     {URL: "https://x.example", Agents: []string{"A b"}},
		"longer than": {URL: "https://x.example/" + strings.Repeat("x", 3000)},
	} {
		_, err := r.PutWebhook(t.Context(), "", "x", c)
		require.True(t, refusal.Is(err, row.CodeBadWebhook), "%v", err)
		require.ErrorContains(t, err, text)
	}
	_, err := r.PutWebhook(t.Context(), "", "No", webhooks.Change{URL: "https://x.example"})
	require.ErrorContains(t, err, "name:")
	_, err = r.Webhook(t.Context(), "", "x")
	require.True(t, refusal.Is(err, row.CodeWebhookNotFound), "%v", err)
	r.put("x", webhooks.Change{URL: "https://x.example"})
	require.NoError(t, r.DeleteWebhook(t.Context(), "", "x"))
	all, err := r.Webhooks(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, all)
}

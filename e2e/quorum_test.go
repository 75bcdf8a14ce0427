package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	outages = flag.Int("quorum.times", 1, "how often TestLostQuorum takes two of three servers away")
	away    = flag.Duration("quorum.away", 15*time.Second, "for how long TestLostQuorum takes two of three servers away")
	plain   = flag.Bool("quorum.plain", false, "let TestLostQuorum run without users and TLS")
)

const (
	// readyWithin is how soon /readyz answers, and refusedWithin how soon a request does that
	// would store something, while the log has no quorum. A single outage, beside other tests,
	// may take twice as long.
	readyWithin, refusedWithin = 5 * time.Second, 8 * time.Second
	// patience bounds what is not measured.
	patience = 2 * time.Minute
)

// waitAgent has a tool that ends when the test lets it, and calculates after that.
const waitAgent = `
name: waits
llm:
  provider: scripted
  script:
    - calls: [{name: gate, arguments: {}, id: gate}]
    - calls: [{name: calculator, arguments: {expression: 40 + 2}, id: sum}]
    - text: It is {{observation -1}}.
tools: [gate, calculator]
`

const chatAgent = `
name: chats
mode: chat
llm: {provider: scripted, script: [{text: Hello.}, {text: Yes.}, {text: Indeed.}]}
tools: []
`

// gateTools has the tool gate, which may be called again.
const gateTools = `tools:
  - {builtin: calculator}
  - {name: gate, description: Waits., schema: {type: object}, effect: pure, timeout: 10m, exec: {command: [sh, -c, "until test -e gate.open; do sleep 0.1; done; echo open"]}}
`

// trio is three servers with every role, each role in a process of its own.
type trio struct {
	*site
	api     *api
	lines   []string // that start the servers
	servers []*process
	roles   []*process
	// probes has where each role tells whether it is ready.
	probes map[string]string
}

// plainServer is the configuration of a server without users.
const plainServer = `server_name: n%d
listen: 127.0.0.1:%s
jetstream { store_dir: data/n%d }
cluster { name: moorebus, listen: 127.0.0.1:%s, routes: [ %s ] }
`

func newTrio(t *testing.T) *trio {
	t.Helper()
	c := &trio{site: newSite(t), probes: map[string]string{}}
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "tools.yaml"), []byte(gateTools), 0o600))
	credentials := func(string) string { return "" }
	if *plain {
		c.withoutUsers()
	} else {
		block := c.block("cluster/n1.conf")
		require.Len(t, block, 6)
		c.do(block[:1])
		c.lines = block[1:4]
		c.startServers(0, 1, 2)
		c.do(block[4:])
		credentials = func(user string) string {
			return fmt.Sprintf("NATS_NKEY=keys/%s.nk NATS_INBOX_PREFIX=_INBOX_%s ", user, user)
		}
	}
	roles := []struct{ user, name, flags string }{
		{"planner", "planner", ""}, {"planner", "planner", ""}, {"observer", "observer", ""},
		{"actor_default", "actor", " --pool default --tools tools.yaml"}, {"actor_default", "actor", " --pool default --tools tools.yaml"},
		{"gateway", "gateway", " --listen 127.0.0.1:" + c.port["8080"]},
	}
	for i, address := range freeAddresses(t, len(roles)) {
		r, name := roles[i], fmt.Sprintf("%s-%d", roles[i].name, i)
		c.roles = append(c.roles, c.start(fmt.Sprintf("%s%s --instance %s --metrics-listen %s%s", credentials(r.user), r.name, name, address, r.flags)))
		c.probes[name] = "http://" + address
	}
	c.probes["the gateway's API"] = "http://127.0.0.1:" + c.port["8080"]
	c.api = newAPI(t, c.probes["the gateway's API"])
	return c
}

// withoutUsers sets the servers up without users and TLS.
func (c *trio) withoutUsers() {
	var routes []string
	for _, port := range []string{"6222", "6223", "6224"} {
		routes = append(routes, "nats://127.0.0.1:"+c.port[port])
	}
	for i, ports := range [][2]string{{"4222", "6222"}, {"4223", "6223"}, {"4224", "6224"}} {
		text := fmt.Sprintf(plainServer, i+1, c.port[ports[0]], i+1, c.port[ports[1]], strings.Join(routes, ", "))
		file := fmt.Sprintf("n%d.conf", i+1)
		require.NoError(c.t, os.WriteFile(filepath.Join(c.dir, file), []byte(text), 0o600))
		c.lines = append(c.lines, "nats-server -c "+file)
	}
	c.env = append(c.env, fmt.Sprintf("NATS_URL=nats://127.0.0.1:%s,nats://127.0.0.1:%s,nats://127.0.0.1:%s", c.port["4222"], c.port["4223"], c.port["4224"]))
	c.startServers(0, 1, 2)
	c.shell("moorebus init --replicas 3 --wait")
}

func (c *trio) startServers(which ...int) {
	c.servers = append(c.servers, make([]*process, len(c.lines)-len(c.servers))...)
	for _, i := range which {
		c.servers[i] = c.start(c.lines[i])
	}
}

// within returns how long something with that bound may take.
func within(bound time.Duration) time.Duration {
	if *outages == 1 {
		return 2 * bound
	}
	return bound
}

// ready asks every role whether it is ready, at once, and returns those that are not, with the reason.
func (c *trio) ready() map[string]string {
	var mu sync.Mutex
	var all sync.WaitGroup
	reasons := map[string]string{}
	for name, base := range c.probes {
		all.Go(func() {
			status, answer, took, err := c.ask(http.MethodGet, base+"/readyz", "", nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				reasons[name] = err.Error()
			} else if status != http.StatusOK {
				reasons[name] = answer
			}
			if took > within(readyWithin) {
				c.t.Errorf("/readyz of %s took %s: %s", name, took, answer)
			}
		})
	}
	all.Wait()
	return reasons
}

// ask sends a request, with an Idempotency-Key if it is not empty.
func (c *trio) ask(method, url, key string, body any) (status int, answer string, took time.Duration, err error) {
	var data []byte
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return 0, "", 0, err
		}
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(data))
	if err != nil {
		return 0, "", 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	client := http.DefaultClient // the listeners for probes have no description
	if strings.HasPrefix(url, c.api.base) {
		client = c.api.http
	}
	began := time.Now()
	res, err := client.Do(req)
	if err != nil {
		return 0, "", 0, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), time.Since(began), err
}

// alive fails the test if a role has ended.
func (c *trio) alive(when string) {
	c.t.Helper()
	for _, p := range c.roles {
		select {
		case <-p.done:
			c.t.Errorf("%s: %s has ended: %s", when, p.name, p.cmd.ProcessState)
		default:
		}
		// Such a request does nothing, and once ended the work of others.
		if text := p.log.String(); strings.Contains(text, "not permitted") {
			c.t.Errorf("%s: %s asks for what its user may not", when, p.name)
		}
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

func (c *trio) awaitReady(when string) {
	c.t.Helper()
	var reasons map[string]string
	require.Eventually(c.t, func() bool {
		c.alive(when)
		reasons = c.ready()
		return len(reasons) == 0
	}, patience, 100*time.Millisecond, "%s: every role is ready; %v", when, lazy(func() string { return fmt.Sprint(reasons) }))
}

// lost is what a role says for a log without a quorum.
var lost = regexp.MustCompile(`MOORE_0|the bus is away|whether the log has a quorum`)

// awaitUnready waits until no role is ready, and each says why.
func (c *trio) awaitUnready() {
	c.t.Helper()
	var reasons map[string]string
	require.Eventually(c.t, func() bool {
		reasons = c.ready()
		for _, reason := range reasons {
			if !lost.MatchString(reason) {
				return false
			}
		}
		return len(reasons) == len(c.probes)
	}, patience, 100*time.Millisecond, "no role is ready; %v", lazy(func() string { return fmt.Sprint(reasons) }))
}

// begin starts a run and returns its id. A bucket whose leader has just changed may refuse a
// try with 503.
func (c *trio) begin(agent string) string {
	c.t.Helper()
	run := newRunID()
	c.repeatStart(write{method: "POST", path: "/v1/runs", body: map[string]any{"agent": agent, "task": "Go.", "run_id": run}})
	return run
}

func (c *trio) reaches(run, state string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	c.awaitState(ctx, c.api, run, state)
}

// write is a request that stores something.
type write struct {
	method, path, key string
	body              any
}

// writes are requests by every door. The chat is there to be changed.
func writes(chat, started string) map[string]write {
	type object = map[string]any
	of := "/v1/runs/" + chat
	return map[string]write{
		"start":    {"POST", "/v1/runs", "", object{"agent": "chats", "task": "Go.", "run_id": started}},
		"inline":   {"POST", "/v1/runs", "", object{"agent": object{"name": "inline", "llm": object{"provider": "scripted", "script": []any{object{"text": "Yes."}}}}, "task": "Go."}},
		"message":  {"POST", of + "/inputs", "", []any{object{"type": "user-message", "message_id": "m", "content": "And?"}}},
		"pause":    {"POST", of + "/pause", "", object{"by": "ann"}},
		"budget":   {"POST", of + "/budget", "", object{"max_total_tokens": 500000}},
		"fork":     {"POST", of + "/fork", "one", object{"at": 1}},
		"agent":    {"PUT", "/v1/agents/other", "", object{"llm": object{"provider": "scripted", "script": []any{object{"text": "Yes."}}}}},
		"schedule": {"PUT", "/v1/schedules/never", "", object{"cron": "0 0 1 1 *", "agent": "chats", "task": "Go."}},
		"quota":    {"PUT", "/v1/quotas/other", "", object{"active": 50}},
		"webhook":  {"PUT", "/v1/webhooks/hook", "", object{"url": "https://hooks.example/x", "on": []string{"failed"}}},
		"A2A":      {"POST", "/v1/a2a/chats/message:send", "", object{"message": object{"messageId": "a", "role": "ROLE_USER", "parts": []any{object{"text": "Hello."}}}}},
		"AG-UI":    {"POST", "/v1/ag-ui/chats", "", object{"threadId": "t", "runId": "r", "state": object{}, "messages": []any{object{"id": "m", "role": "user", "content": "Hello."}}, "tools": []any{}, "context": []any{}, "forwardedProps": object{}}},
	}
}

// refused sends all writes at once: each is 503 within its time.
func (c *trio) refused(all map[string]write) string {
	var mu sync.Mutex
	var waiting sync.WaitGroup
	var report strings.Builder
	for name, w := range all {
		waiting.Go(func() {
			status, answer, took, err := c.ask(w.method, c.api.base+w.path, w.key, w.body)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(&report, " %s %.1fs", name, took.Seconds())
			if err != nil || status != http.StatusServiceUnavailable || took > within(refusedWithin) {
				c.t.Errorf("%s while the log has no quorum: HTTP %d after %s (%v): %s", name, status, took, err, answer)
			}
		})
	}
	waiting.Wait()
	return report.String()
}

// TestLostQuorum takes two of three servers away while runs work, as long as announcements and
// caches need to grow old if -quorum.away says so. Roles say that they are not ready, requests
// that store something are refused in time, and no process ends. When the servers are back, the
// same requests succeed, and every run ends.
func TestLostQuorum(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.awaitReady("at first")
	for name, text := range map[string]string{"waits": waitAgent, "chats": chatAgent} {
		require.EventuallyWithT(t, func(try *assert.CollectT) {
			require.NoError(try, c.api.call(t.Context(), "PUT", "/v1/agents/"+name, []byte(text), nil, "application/yaml"))
		}, patience, 100*time.Millisecond)
	}
	for outage := range *outages {
		c.loseQuorum(outage)
	}
	terminateAll(t, c.roles)
}

func (c *trio) loseQuorum(outage int) {
	t, gate := c.t, filepath.Join(c.dir, "gate.open")
	require.NoError(t, os.RemoveAll(gate))
	working := []string{c.begin("waits"), c.begin("waits"), c.begin("waits"), c.begin("waits")}
	chat, started := c.begin("chats"), newRunID()
	for _, run := range working {
		c.reaches(run, "acting")
	}
	c.reaches(chat, "waiting_for_user")

	gone := []int{outage % 3, (outage + 1) % 3}
	for _, i := range gone {
		c.servers[i].kill()
	}
	began := time.Now()
	over := time.After(*away)
	all := writes(chat, started)
	var early sync.WaitGroup // the last leader still believes that it leads
	early.Go(func() { t.Logf("refused at once:%s", c.refused(all)) })
	c.awaitUnready()
	unready := time.Since(began)
	require.NoError(t, os.WriteFile(gate, nil, 0o600)) // the calls end now
	early.Wait()
	refusals := c.refused(all)
	<-over
	c.alive("while two servers are away")
	reasons := c.ready()
	require.Len(t, reasons, len(c.probes), "no role is ready while two servers are away: %v", reasons)

	lasted := time.Since(began)
	began = time.Now()
	c.startServers(gone...)
	c.awaitReady("after the outage")
	usable := time.Since(began)
	c.repeatStart(all["start"])
	startable := time.Since(began)
	c.reaches(started, "waiting_for_user")
	c.repeatFork(all["fork"])
	for _, run := range append(working, c.begin("waits")) {
		c.reaches(run, "done")
	}
	c.alive("after the outage")
	t.Logf("outage %d of %s: nobody ready after %s; refused:%s; servers back: ready after %s, a start is 201 after %s, all runs done after %s",
		outage+1, lasted.Round(time.Second), unready.Round(100*time.Millisecond), refusals,
		usable.Round(100*time.Millisecond), startable.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
}

// repeatStart sends a start of unknown outcome again until the run is there. Only a 503 may pass
// by itself.
func (c *trio) repeatStart(w write) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		status, answer, _, err := c.ask(w.method, c.api.base+w.path, w.key, w.body)
		if err != nil || status == http.StatusServiceUnavailable {
			return false
		}
		if status != http.StatusCreated && !strings.Contains(answer, "run_exists") {
			c.t.Errorf("a start: HTTP %d: %s", status, answer)
		}
		return true
	}, patience, 50*time.Millisecond)
}

// repeatFork sends a fork of unknown outcome again, twice: its key leads to one run.
func (c *trio) repeatFork(w write) {
	c.t.Helper()
	var ids []string
	require.Eventually(c.t, func() bool {
		status, answer, _, err := c.ask(w.method, c.api.base+w.path, w.key, w.body)
		var fork struct {
			RunID string `json:"run_id"`
		}
		if err != nil || status != http.StatusOK || json.Unmarshal([]byte(answer), &fork) != nil {
			return false
		}
		ids = append(ids, fork.RunID)
		return len(ids) == 2
	}, patience, 50*time.Millisecond)
	require.Equal(c.t, ids[0], ids[1])
}

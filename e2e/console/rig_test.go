package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
)

var (
	bin string
	// chromium is the browser's command; empty: there is none.
	chromium string
	// allocator starts the one browser of all tests.
	allocator context.Context
)

func TestMain(m *testing.M) {
	flag.Parse()
	// They share a browser, and some of them measure how fast it is.
	if err := flag.Set("test.parallel", "2"); err != nil {
		panic(err)
	}
	code := 1
	func() {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			if path, err := exec.LookPath(name); err == nil && chromium == "" {
				chromium = path
			}
		}
		if chromium != "" && !testing.Short() {
			var err error
			if bin, err = commandtest.Build("cmd", "./cmd/moorebus"); err != nil {
				fmt.Fprintln(os.Stderr, "e2e/console:", err)
				return
			}
			options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
				chromedp.Flag("disable-background-timer-throttling", true), chromedp.Flag("font-render-hinting", "none"))
			var stop func()
			allocator, stop = chromedp.NewExecAllocator(context.Background(), options...)
			defer stop()
			var closed func()
			allocator, closed = chromedp.NewContext(allocator)
			defer closed()
			if err := chromedp.Do(allocator); err != nil {
				fmt.Fprintln(os.Stderr, "e2e/console: starting chromium:", err)
				return
			}
		}
		code = m.Run()
	}()
	os.Exit(code)
}

// patience is how long a test waits for what it does not measure.
const patience = time.Minute

// needs skips a test of a short run, or where there is no browser.
func needs(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: it starts a browser and processes
	}
	if chromium == "" {
		t.Skip("reason: chromium is missing; this test drives it. On Debian: apt-get install chromium")
	}
}

// gateway is a process with all roles, which can be ended and started again.
type gateway struct {
	t       testing.TB
	address string
	url     string
	args    []string
	cmd     *exec.Cmd
	ended   <-chan struct{}
	log     bytes.Buffer
}

// serve starts a gateway with the agents of testdata.
func serve(t testing.TB) *gateway {
	needs(t)
	addresses, err := freeport.Addresses(1)
	require.NoError(t, err)
	g := &gateway{t: t, address: addresses[0], url: "http://" + addresses[0]}
	g.args = []string{"dev", "--agent", "testdata/agents.yaml", "--data", t.TempDir(), "--fsync", "relaxed", "--listen", addresses[0]}
	g.start()
	t.Cleanup(func() {
		g.kill()
		if t.Failed() {
			t.Log(g.log.String())
		}
	})
	return g
}

func (g *gateway) start() {
	g.t.Helper()
	g.cmd = exec.Command(filepath.Join(bin, "moorebus"), g.args...)
	g.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.t.TempDir()}
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	var err error
	g.ended, err = commandtest.Start(g.cmd)
	require.NoError(g.t, err)
	// It is ready before it has stored the agents of its file, of which this is the last.
	require.Eventually(g.t, func() bool { return g.ask("GET", "/v1/agents/hostile", nil, &struct{}{}) == nil }, patience, 50*time.Millisecond, "the gateway is not ready")
}

// kill ends the process as a crash does.
func (g *gateway) kill() {
	_ = g.cmd.Process.Kill() // it may have ended
	<-g.ended
}

// ask sends a request and decodes its answer. An answer that is not 2xx is an error.
func (g *gateway) ask(method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, g.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, data)
	}
	return json.Unmarshal(data, answer)
}

func (g *gateway) run(agent, task string) string {
	g.t.Helper()
	var answer struct {
		ID string `json:"run_id"`
	}
	require.NoError(g.t, g.ask("POST", "/v1/runs", starts(agent, task), &answer))
	return answer.ID
}

// runs starts many runs and returns when they have ended.
func (g *gateway) runs(agent string, count int) {
	g.t.Helper()
	before := g.overs()
	var all sync.WaitGroup
	failed := make(chan error, count)
	next := make(chan int, count)
	for i := range count {
		next <- i
	}
	close(next)
	for range 16 {
		all.Go(func() {
			for i := range next {
				if err := g.ask("POST", "/v1/runs", map[string]any{"agent": agent, "task": fmt.Sprintf("Do sum number %d.", i)}, &struct{}{}); err != nil {
					failed <- err
				}
			}
		})
	}
	all.Wait()
	close(failed)
	require.NoError(g.t, <-failed)
	require.Eventually(g.t, func() bool { return g.overs() >= before+count }, patience, 50*time.Millisecond, "the runs do not end")
}

// overs is how many runs have ended.
func (g *gateway) overs() int {
	g.t.Helper()
	var stats struct {
		Runs struct {
			ByState map[string]int `json:"by_state"`
		} `json:"runs"`
	}
	require.NoError(g.t, g.ask("GET", "/v1/stats", nil, &stats))
	return stats.Runs.ByState["done"] + stats.Runs.ByState["error"] + stats.Runs.ByState["cancelled"]
}

// state waits until a run is in a state.
func (g *gateway) state(id, state string) {
	g.t.Helper()
	var run struct{ State string }
	require.Eventually(g.t, func() bool {
		return g.ask("GET", "/v1/runs/"+id, nil, &run) == nil && run.State == state
	}, patience, 20*time.Millisecond, "run %s does not come to %s", id, state)
}

// tab is a page of the browser, with storage of its own.
type tab struct {
	t   testing.TB
	ctx context.Context
	g   *gateway

	mu    sync.Mutex
	wrong []string
}

// open opens a tab. The test fails at its end if the page reported an error.
func (g *gateway) open() *tab {
	g.t.Helper()
	p := &tab{t: g.t, g: g}
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithNewBrowserContext(), chromedp.WithListener(p.hear))
	p.ctx = ctx
	require.NoError(g.t, chromedp.Do(ctx, chromedp.EmulateViewport(1400, 900)))
	g.t.Cleanup(func() {
		if g.t.Failed() {
			p.picture(filepath.Join(os.TempDir(), "moorebus-console-"+strings.ReplaceAll(g.t.Name(), "/", "-")+".png"))
		}
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.wrong) > 0 {
			g.t.Errorf("the page reported errors:\n%s", strings.Join(p.wrong, "\n"))
		}
	})
	return p
}

// hear notes what the page reports as an error. That requests fail is for the page to show.
func (p *tab) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.wrong = append(p.wrong, text)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			p.wrong = append(p.wrong, e.Entry.Text)
		}
	}
}

// in bounds an action by a test's patience.
func in[T any](p *tab, what string, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, stop := context.WithTimeout(p.ctx, patience)
	defer stop()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		short, stop := context.WithTimeout(p.ctx, 5*time.Second)
		defer stop()
		text, _ := chromedp.Run(short, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 3000)`))
		require.NoError(p.t, err, "%s\nThe page shows: %s", what, text)
	}
	return v
}

// visit goes to a path of the console.
func (p *tab) visit(path string) {
	p.t.Helper()
	in(p, "visit "+path, chromedp.Navigate(p.g.url+path))
}

// settle waits until presses are meant for the page.
func (p *tab) settle() {
	p.t.Helper()
	p.until("presses are meant for the page", `"settled" in document.documentElement.dataset`)
}

// until waits for an expression of JavaScript to be true.
func (p *tab) until(what, expression string) {
	p.t.Helper()
	in(p, "wait until "+what, chromedp.Poll[bool]("!!("+expression+")", chromedp.WithPollingTimeout(0), chromedp.WithPollingInterval(30*time.Millisecond)))
}

func quoted(text string) string {
	data, _ := json.Marshal(text) // a string is always JSON
	return string(data)
}

// shows waits until the page shows a text.
func (p *tab) shows(text string) {
	p.t.Helper()
	p.until("the page shows "+text, "document.body.innerText.includes("+quoted(text)+")")
}

// value evaluates an expression of JavaScript.
func value[T any](p *tab, expression string) T {
	p.t.Helper()
	return in(p, expression, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// finder finds what can be pressed under a name, in the open dialog if there is one.
const finder = `((name, kinds) => {
  const root = [...document.querySelectorAll("dialog[open]")].pop() ?? document;
  const plain = text => (text ?? "").replace(/\s+/g, " ").trim();
  return [...root.querySelectorAll(kinds)].find(el => el.checkVisibility() && !el.disabled && [el.getAttribute("aria-label"), el.textContent].some(text => plain(text) === name));
})`

// press clicks with the mouse on a button, a link, a tab or the like with this name.
func (p *tab) press(name string) {
	p.t.Helper()
	p.click("press "+name, finder+"("+quoted(name)+`, "button, a, summary, label, [role=tab]")`)
}

// click clicks with the mouse on the element that an expression of JavaScript returns. An element
// that does not move any more is clicked, as a person would do.
func (p *tab) click(what, expression string) {
	p.t.Helper()
	p.settle()
	at := in(p, what, chromedp.Poll[[]float64](`(async () => {
		const el = `+expression+`;
		if (!el) return false;
		el.scrollIntoView({block: "nearest"});
		const a = el.getBoundingClientRect();
		await new Promise(requestAnimationFrame);
		const b = el.getBoundingClientRect(), x = b.x + b.width / 2, y = b.y + b.height / 2;
		const top = document.elementFromPoint(x, y);
		return el.isConnected && a.x === b.x && a.y === b.y && b.width > 0 && top && (el.contains(top) || top.contains(el)) && [x, y];
	})()`, chromedp.WithPollingTimeout(0), chromedp.WithPollingInterval(50*time.Millisecond)))
	in(p, what, chromedp.MouseClickXY(at[0], at[1]))
}

// fill replaces what a field holds, which is found by its label.
func (p *tab) fill(label, text string) {
	p.t.Helper()
	p.until("there is a field "+label, `(() => {
		const root = [...document.querySelectorAll("dialog[open]")].pop() ?? document;
		const named = [...root.querySelectorAll("input, textarea, select")].filter(el => el.checkVisibility());
		const el = named.find(el => el.getAttribute("aria-label") === `+quoted(label)+` || [...el.labels ?? []].some(l => (l.querySelector("span") ?? l).textContent.trim() === `+quoted(label)+`));
		if (!el) return false;
		el.focus();
		el.select?.();
		return document.activeElement === el;
	})()`)
	if value[bool](p, `document.activeElement instanceof HTMLSelectElement`) {
		value[bool](p, `(el => { el.value = `+quoted(text)+`; el.dispatchEvent(new Event("input", {bubbles: true})); el.dispatchEvent(new Event("change", {bubbles: true})); return el.value === `+quoted(text)+`; })(document.activeElement)`)
		return
	}
	p.key(kb.Delete)
	if text != "" {
		p.key(text)
	}
}

// key types keys, as a keyboard does: a key that the page took writes nothing into a field.
func (p *tab) key(keys ...string) {
	p.t.Helper()
	p.settle()
	for _, k := range keys {
		in(p, "type "+k, chromedp.KeyEvent(k, func(event *input.DispatchKeyEventParams) {
			if event.Type == input.DispatchKeyEventTypeKeyDown {
				event.Type = input.DispatchKeyEventTypeRawKeyDown
			}
		}))
	}
}

// look sets the size of the window, and whether it is dark.
func (p *tab) look(width, height int64, dark bool) {
	p.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	in(p, "look", chromedp.EmulateViewport(width, height))
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	require.NoError(p.t, err)
}

// picture writes what the window shows to a file.
func (p *tab) picture(file string) {
	ctx, stop := context.WithTimeout(p.ctx, 20*time.Second)
	defer stop()
	data, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		p.t.Logf("no picture: %s", err)
		return
	}
	p.t.Logf("the page as it was: %s", file)
}

// starts is the body of a request that starts a run; without a task the agent has its own.
func starts(agent, task string) map[string]any {
	body := map[string]any{"agent": agent}
	if task != "" {
		body["task"] = task
	}
	return body
}

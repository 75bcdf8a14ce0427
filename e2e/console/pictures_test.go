package console

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/nodetest"
)

var pictures = flag.String("pictures", "", "write a picture of every page to this folder")

// axe is the text of axe-core, which checks what WCAG demands.
func axe(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(nodetest.Modules(t), "node_modules", "axe-core", "axe.min.js"))
	require.NoError(t, err)
	return string(text)
}

// accessible fails the test where axe-core finds a violation of WCAG A or AA.
func (p *tab) accessible(axe, where string) {
	p.t.Helper()
	if !value[bool](p, `typeof axe !== "undefined"`) {
		value[bool](p, axe+`; true`)
	}
	found := value[string](p, `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], resultTypes: ["violations"]}).then(r =>
		JSON.stringify(r.violations.map(v => ({id: v.id, help: v.help, nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + " " + (n.any[0]?.message ?? n.all[0]?.message ?? n.none[0]?.message ?? ""))}))))`)
	var violations []struct {
		ID, Help string
		Nodes    []string
	}
	require.NoError(p.t, json.Unmarshal([]byte(found), &violations))
	for _, v := range violations {
		p.t.Errorf("%s: %s: %s\n%q", where, v.ID, v.Help, v.Nodes)
	}
}

// TestPages shows every page at the width of a telephone, a tablet and a desk, light and dark. None
// needs to be scrolled sideways, and axe-core finds nothing in any.
func TestPages(t *testing.T) {
	t.Parallel()
	g := serve(t)
	checks := axe(t)
	done := g.run("counter", "")
	failed := g.run("invoices", "")
	waiting := g.run("cashier", "")
	question := g.run("asker", "")
	g.state(done, "done")
	g.state(failed, "error")
	g.state(waiting, "waiting_for_human")
	g.state(question, "waiting_for_human")
	var fork struct {
		ID string `json:"run_id"`
	}
	require.NoError(t, g.ask("POST", "/v1/runs/"+done+"/fork", map[string]any{"at": 3}, &fork))
	g.state(fork.ID, "done")
	pages := []struct{ name, path, shows string }{
		{"runs", "/", "invoices"},
		{"nothing", "/?agent=nobody", "No run"},
		{"run", "/runs/" + done + "#n=6", "counter"},
		{"states", "/runs/" + done + "?tab=states#n=6", "observing: ToolSuccess led here"},
		{"memory", "/runs/" + done + "?tab=memory#n=6", "What event 6 changed"},
		{"request", "/runs/" + done + "?tab=request#n=6", "scripted"},
		{"raw", "/runs/" + done + "?tab=raw#n=6", "ToolSuccess"},
		{"usage", "/runs/" + done + "?tab=usage#n=6", "By tool"},
		{"failed", "/runs/" + failed, "refused the request"},
		{"waiting", "/runs/" + waiting, "cashier"},
		{"missing", "/runs/0198c5a0-5a6b-7c00-8000-000000000001", "run_not_found"},
		{"inbox", "/inbox", "cashier"},
		{"workers", "/workers", "calculator"},
		{"agents", "/agents", "cashier"},
		{"dead", "/dead", ""},
		{"compare", "/compare?a=" + done + "&b=" + fork.ID, "calculator"},
	}
	for _, page := range all.Features().Pages() {
		if page.Path != "/compare" {
			pages = append(pages, struct{ name, path, shows string }{strings.TrimPrefix(page.Path, "/"), page.Path, page.Name})
		}
	}
	p := g.open()
	for _, page := range pages {
		for _, width := range []int64{1400, 768, 360} {
			loaded := width == 768 // in dark; each page is loaded once at a width, and then shown in the other shade
			where := fmt.Sprintf("%s at %d px", page.name, width)
			p.look(width, 900, loaded)
			p.visit(page.path)
			p.until(where+" is there", `document.querySelector("main h1")`)
			if page.shows != "" {
				p.shows(page.shows)
			}
			value[bool](p, still)
			if wide := value[float64](p, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
				t.Errorf("%s needs to be scrolled sideways by %v px", where, wide)
			}
			for _, dark := range []bool{loaded, !loaded} {
				p.look(width, 900, dark)
				where := fmt.Sprintf("%s, dark %t", where, dark)
				p.accessible(checks, where)
				if *pictures != "" {
					shade := map[bool]string{false: "light", true: "dark"}[dark]
					p.picture(filepath.Join(*pictures, fmt.Sprintf("%s-%d-%s.png", page.name, width, shade)))
				}
			}
		}
	}
}

// still is true when nothing was drawn for a while, or after two seconds.
const still = `new Promise(done => {
	let timer = setTimeout(() => done(true), 300);
	const seen = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(() => done(true), 300); });
	seen.observe(document.body, {childList: true, subtree: true});
	setTimeout(() => done(true), 2000);
})`

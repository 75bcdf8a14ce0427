package console

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// focused is the name of what has the focus.
const focused = `((el) => (el?.getAttribute("aria-label") ?? el?.labels?.[0]?.querySelector("span")?.textContent ?? el?.textContent ?? "").replace(/\s+/g, " ").trim())(document.activeElement)`

// tabTo presses Tab until what has the focus has this name. Whatever gets the focus can be seen.
func (p *tab) tabTo(name string) {
	p.t.Helper()
	for range 80 {
		if value[string](p, focused) == name {
			return
		}
		p.key(kb.Tab)
		require.True(p.t, value[bool](p, `document.activeElement === document.body || (el => el.checkVisibility() && (el.matches(".skip") || getComputedStyle(el).outlineStyle !== "none" || getComputedStyle(el).boxShadow !== "none"))(document.activeElement)`),
			"%s has the focus, and it cannot be seen", value[string](p, `document.activeElement.outerHTML.slice(0, 300)`))
	}
	require.Fail(p.t, "Tab does not lead to "+name)
}

// TestKeyboardOnly goes from the list of runs to a decision without a mouse.
func TestKeyboardOnly(t *testing.T) {
	t.Parallel()
	g := serve(t)
	pending, counted := g.run("cashier", ""), g.run("counter", "")
	g.state(pending, "waiting_for_human")
	g.state(counted, "done")
	p := g.open()
	p.visit("/")
	p.shows("counter")

	p.key("/")
	p.until("the search has the focus", `document.activeElement.name === "q"`)
	p.key("twice that")
	p.until("one run is found", `document.querySelectorAll(".list-row").length === 1`)
	p.tabTo("More filters")
	for range 20 {
		if value[bool](p, `!!document.activeElement.closest(".list-row")`) {
			break
		}
		p.key(kb.Tab)
	}
	require.True(t, value[bool](p, `!!document.activeElement.closest(".list-row")`), "Tab leads into the list")
	p.key(kb.Enter)
	p.until("the run is there", `location.pathname === "/runs/`+counted+`" && `+moment+" > 3")

	last := value[int](p, moment)
	p.key(kb.ArrowLeft, kb.ArrowLeft)
	p.until("it went back", fmt.Sprintf("%s === %d", moment, last-2))
	p.key(kb.Home)
	p.until("it went to the beginning", moment+" === 1")
	p.key("3")
	p.until("the memory is shown", `!document.querySelector("#panel-memory").hidden`)
	p.tabTo("Memory")
	p.key(kb.ArrowRight)
	p.until("the next tab is shown, and nothing else moved", `!document.querySelector("#panel-request").hidden && document.activeElement.id === "tab-request" && `+moment+" === 1")
	p.tabTo("Moment of the run")
	p.key(kb.ArrowRight)
	p.until("the slider moves", moment+" === 2")
	p.key(kb.End)
	p.until("the slider is at the end", fmt.Sprintf("%s === %d", moment, last))

	p.tabTo("Fork from here…")
	p.key(kb.Enter)
	p.until("the dialog is open", `document.querySelector("dialog[open]")?.contains(document.activeElement)`)
	for range 15 {
		p.key(kb.Tab)
		require.True(t, value[bool](p, `document.activeElement === document.body || !!document.activeElement.closest("dialog")`), "the focus leaves the dialog")
	}
	p.key(kb.Escape)
	p.until("the dialog is closed, and its button has the focus", `!document.querySelector("dialog") && `+focused+` === "Fork from here…"`)

	p.key("?")
	p.until("the keys are shown", `document.querySelector("dialog[open]")?.textContent.includes("Follow the live edge")`)
	p.key(kb.Escape)
	p.until("they are closed", `!document.querySelector("dialog")`)

	p.tabTo("Inbox")
	p.key(kb.Enter)
	p.until("the inbox is there", `location.pathname === "/inbox"`)
	p.shows("cashier")
	p.tabTo("Your name")
	p.key("Ada")
	p.tabTo("Approve")
	p.settle() // the keys before may have come early
	p.key("a")
	p.shows("approved it")
	g.state(pending, "done")
	all := g.events(t, pending)
	approvals := 0
	for _, e := range all {
		if e.Data["decision"] == "approved" {
			approvals++
			require.Equal(t, "Ada", e.Data["by"])
		}
	}
	require.Equal(t, 1, approvals)
	require.NotEqual(t, "body", value[string](p, "document.activeElement.localName"), "the focus is lost after the decision")
}

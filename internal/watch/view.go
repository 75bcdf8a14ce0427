package watch

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
)

// Styles of text.
const (
	bold    = "1"
	faint   = "2"
	reverse = "7"
	red     = "31"
	green   = "32"
	yellow  = "33"
	blue    = "36"
)

func (m *model) paint(style, text string) string {
	if !m.o.Color || style == "" || text == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[m"
}

// fit cuts a text to a number of columns.
func fit(text string, columns int) string { return ansi.Truncate(text, max(columns, 1), "…") }

// View draws the screen.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.screen(), "\n"))
	v.AltScreen = true
	return v
}

// The heights of the parts of the screen: what stands around timeline and panel, and the
// smallest ones of those.
const (
	around = 5
	least  = 2
)

func (m *model) rows() int { return max((m.height-around)*2/5, least) }

// body is the height of the panel.
func (m *model) body() int { return max(m.height-around-m.rows(), 1) }

func (m *model) screen() []string {
	lines := m.header()
	if m.mode == helping {
		lines = append(lines, help...)
	} else {
		lines = append(lines, m.slider())
		lines = append(lines, m.timeline()...)
		lines = append(lines, m.tabs())
		lines = append(lines, m.window()...)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(m.height-1, 0)], m.footer())
	for i := range lines {
		lines[i] = strings.TrimRight(fit(lines[i], m.width), " ")
	}
	return lines
}

// colorOf is the style of a state.
func colorOf(s events.State) string {
	switch s {
	case events.Done:
		return green
	case events.Errored, events.Cancelled:
		return red
	case events.WaitingForHuman, events.WaitingForUser:
		return yellow
	}
	return blue
}

func (m *model) header() []string {
	now, mem := m.history.moment(m.at), m.history.head()
	state := print.StateShape(now.state) + " " + string(now.state)
	if now.paused {
		state += " " + print.PausedFor(now.pauseReason)
	}
	if m.awaits != "" && m.at == m.history.len() && !m.ended() {
		state += " (" + m.awaits + ")"
	}
	cost := ""
	if now.usage.Cost > 0 {
		cost = fmt.Sprintf("  $%.4f", now.usage.Cost)
	}
	return []string{
		m.paint(colorOf(now.state), terminal.Visible(state)) + "  " + m.paint(bold, print.Plain(mem.Control.Agent.Name)) + "  " + m.paint(faint, mem.RunID),
		fmt.Sprintf("tokens %d in, %d out%s  step %d  age %s  ", now.usage.Input, now.usage.Output, cost, now.step, m.age()) + m.paint(faint, print.Cut(mem.Task, 200)),
	}
}

// age is how old the run was at the moment; of the last one while it works, how old it is now.
func (m *model) age() string {
	started, now := m.history.started(), m.o.Now()
	if e := m.history.moment(m.at).event; e != nil && (m.at < m.history.len() || m.ended()) {
		now = e.Time
	}
	return max(now.Sub(started), 0).Truncate(time.Second).String()
}

// slider shows where the moment is in the run, and how it continues.
func (m *model) slider() string {
	total := m.history.len()
	how := "stands"
	switch {
	case m.playing:
		how = fmt.Sprintf("plays %gx", m.speed)
	case m.live && m.ended():
		how = "ended"
	case m.live:
		how = "live"
	}
	right := fmt.Sprintf(" %d/%d %s", m.at, total, how)
	length := max(m.width-ansi.StringWidth(right)-1, 4)
	at := 0
	if total > 1 {
		at = (m.at - 1) * (length - 1) / (total - 1)
	}
	return m.paint(blue, strings.Repeat("━", at)+"●") + m.paint(faint, strings.Repeat("─", length-1-at)) + right
}

// wide is the width from which on the timeline has the columns of every other command.
const wide = 110

func (m *model) timeline() []string {
	rows := m.rows()
	from := min(max(m.at-rows/2, 1), max(m.history.len()-rows+1, 1))
	lines := make([]string, rows)
	for i := range lines {
		if at := from + i; at <= m.history.len() {
			lines[i] = m.entry(at)
		}
	}
	return lines
}

func (m *model) entry(at int) string {
	here := m.history.moment(at)
	text := fmt.Sprintf("%5d  not a legal event", here.n)
	if e := here.event; e != nil {
		started := m.history.started()
		text = print.EventLine(e, started)
		if m.width < wide {
			text = fmt.Sprintf("%5d  %9s  %s  %s  %s", e.N, print.Elapsed(e.Time.Sub(started)), print.StateShape(e.To), print.Pad(string(e.Type()), 21), print.Cut(events.Summary(e.Data), 100))
		}
	}
	text = fit(terminal.Visible(text), m.width-2)
	switch {
	case at == m.at:
		return m.paint(reverse, ">"+text+strings.Repeat(" ", max(m.width-1-ansi.StringWidth(text), 0)))
	case here.refused != nil:
		return m.paint(red, " "+text)
	}
	return m.paint(colorOf(here.state), " "+text)
}

func (m *model) tabs() string {
	var names []string
	for p, name := range panelNames {
		if panel(p) == m.panel {
			names = append(names, m.paint(bold, "["+name+"]"))
		} else {
			names = append(names, " "+name+" ")
		}
	}
	return strings.Join(names, " ")
}

// window is the part of the panel that is seen.
func (m *model) window() []string {
	all, height := m.lines(), m.body()
	first := all.first
	most := max(len(all.lines)-height, 0)
	if first == last {
		first = most
	}
	from := min(max(first+m.scroll, 0), most)
	m.scroll = from - first // what is beyond the ends does not count
	return all.lines[from:min(from+height, len(all.lines))]
}

var help = []string{
	"", "  ← →        the previous, the next event", "  Home End   the first, the last event", "  space      play, stop",
	"  + -        faster, slower: 0.5 to 16 times", "  L          the live edge: follow the run", "  Tab        the next panel",
	"  ↑ ↓ PgUp PgDn  move in the panel", "  x          memory: also show what did not change", "  /          find the next event with a text",
	"  y n        approve or answer, reject the waiting call", "  q          quit; the run continues", "",
	"  any key goes back",
}

func (m *model) footer() string {
	cursor := m.paint(reverse, " ")
	switch m.mode {
	case searching:
		return "find: " + string(m.input) + cursor
	case confirming:
		return m.paint(yellow, "approve "+print.Cut(m.asked.Tool+" "+m.asked.Arguments, max(m.width-38, 20))+"? y approves, any key does not")
	case writing:
		if m.verb == Answer {
			return m.paint(yellow, "answer: ") + string(m.input) + cursor
		}
		return m.paint(yellow, "reject "+print.Cut(m.asked.Tool, 20)+", because: ") + string(m.input) + cursor
	}
	if m.note != "" {
		return m.paint(yellow, print.Plain(m.note))
	}
	if waits, any := m.undecided(); any {
		what := "y approves, n rejects "
		if waits.Asks {
			what = "y answers, n rejects "
		}
		return m.paint(yellow, "waits for you: "+what+print.Plain(waits.Tool)) + m.paint(faint, "  ? help  q quit")
	}
	return m.paint(faint, "? help  q quit  ← → step  space play  + - speed  L live  Tab panel  / find")
}

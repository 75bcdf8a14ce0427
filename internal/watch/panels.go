package watch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// panel is what is shown of a moment.
type panel int

const (
	conversation panel = iota
	memory
	asked
	stored
	panels // how many there are
)

var panelNames = [panels]string{"conversation", "memory", "request", "event"}

// mostText is how many bytes of one text a panel shows.
const mostText = 128 << 10

// shown are the lines of a panel, and what they are of.
type shown struct {
	panel panel
	at    int
	edge  bool // it is the last moment
	width int
	whole bool
	lines []string
	// first is the line that is looked at first; last for the end.
	first int
}

// last is the place of a panel that is read from its end.
const last = -1

// lines returns the panel's lines, each at most as wide as the screen.
func (m *model) lines() shown {
	want := shown{panel: m.panel, at: m.at, edge: m.at == m.history.len(), width: m.width, whole: m.whole}
	if have := m.shown; have.lines != nil && have.panel == want.panel && have.at == want.at && have.edge == want.edge && have.width == want.width && have.whole == want.whole {
		return have
	}
	p := &page{model: m}
	switch m.panel {
	case conversation:
		want.first = last
		m.conversation(p)
	case memory:
		m.memory(p)
	case asked:
		m.requested(p)
	case stored:
		m.stored(p)
	}
	want.lines = p.lines
	m.shown = want
	return want
}

// page collects lines.
type page struct {
	*model
	lines []string
}

// text adds a text in a style, wrapped and moved to the right.
func (p *page) text(style string, indent int, text string) {
	cut := ""
	if len(text) > mostText {
		cut = fmt.Sprintf("… and %d bytes more", len(text)-mostText)
		text = strings.ToValidUTF8(text[:mostText], "")
	}
	text = strings.ReplaceAll(terminal.Visible(strings.TrimRight(text, "\n")), "\t", "    ")
	for _, line := range strings.Split(ansi.Hardwrap(text, max(p.width-indent, 8), true), "\n") {
		p.lines = append(p.lines, strings.Repeat(" ", indent)+p.paint(style, line))
	}
	if cut != "" {
		p.lines = append(p.lines, strings.Repeat(" ", indent)+p.paint(faint, cut))
	}
}

var oneLine = strings.NewReplacer("\n", " ", "\t", " ")

// line adds a text on one line.
func (p *page) line(style, text string) {
	p.lines = append(p.lines, p.paint(style, fit(oneLine.Replace(terminal.Visible(text)), p.width)))
}

func (m *model) conversation(p *page) {
	mem, err := m.history.memory(m.ctx, m.at)
	if err != nil {
		p.text(red, 0, err.Error())
		return
	}
	for _, turn := range mem.Control.Turns {
		who := map[string]string{"user": "user", "reply": "model"}[string(turn.Kind)]
		if who == "" {
			who = string(turn.Kind)
		}
		if turn.Interrupted {
			who += " (interrupted)"
		}
		p.line(bold, who)
		if text := turn.Reasoning.Text(); text != "" {
			p.line(faint, "  reasoned: "+print.Cut(text, p.width))
		}
		for _, item := range turn.Reasoning.Items() {
			p.line(faint, "  provider: "+print.Cut(item, p.width))
		}
		if turn.Content != "" || len(turn.Parts) > 0 {
			p.text("", 2, events.Shown(turn.Content, turn.Parts))
		}
		for _, id := range turn.Calls {
			p.call(mem.ToolCalls[id])
		}
	}
	p.waits(mem)
	if mem.Error != nil {
		p.text(red, 0, "error "+mem.Error.Code+": "+mem.Error.Message)
	}
}

func (p *page) call(c *reducer.ToolCallRecord) {
	if c == nil {
		return
	}
	p.text(blue, 2, "→ "+c.Name+" "+c.Parameters)
	switch {
	case c.Result == nil:
		p.line(yellow, "  ← no result yet")
	case c.Result.Failed != nil:
		p.text(red, 2, "← "+c.Result.Text())
	default:
		p.text(green, 2, "← "+c.Result.Text())
	}
	if c.Run != "" {
		p.line(faint, "    answered by run "+c.Run)
	}
}

// waits says what the run waited for.
func (p *page) waits(mem *reducer.Memory) {
	if a := mem.PendingApproval; a != nil {
		for _, r := range a.Requests {
			what := "waits for a decision on "
			if r.Asks {
				what = "waits for an answer by a person: "
			}
			p.text(yellow, 0, what+r.Tool+" "+r.Arguments+" (risk "+r.Risk+") "+r.Reason)
		}
		for _, d := range a.Decisions {
			p.line(yellow, d.By+": "+d.Decision+" "+d.CallID)
		}
	}
}

// memory shows the memory, and how the event changed it.
func (m *model) memory(p *page) {
	before := map[string]json.RawMessage{}
	var err error
	if m.at > 1 {
		before, err = m.sections(m.at - 1)
	}
	after := map[string]json.RawMessage{}
	if err == nil {
		after, err = m.sections(m.at)
	}
	if err != nil {
		p.text(red, 0, err.Error())
		return
	}
	t := tree{p}
	names := slices.SortedFunc(maps.Keys(both(before, after)), func(a, b string) int {
		rank := func(name string) int { // what changed is first, what few people look for last
			switch {
			case !bytes.Equal(before[name], after[name]) && name != "control" && name != "trace":
				return 0
			case !bytes.Equal(before[name], after[name]):
				return 1
			}
			return 2
		}
		return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
	})
	for _, name := range names {
		t.value(0, name, before[name], after[name])
	}
}

// both has the keys of both objects.
func both(a, b map[string]json.RawMessage) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// sections returns the memory of a moment by its keys. It keeps those of the last two moments,
// so that a step needs one.
func (m *model) sections(at int) (all map[string]json.RawMessage, err error) {
	if m.parted[at] != nil {
		return m.parted[at], nil
	}
	mem, err := m.history.memory(m.ctx, at)
	if err != nil {
		return nil, err
	}
	data, err := codec.Append(nil, mem)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	maps.DeleteFunc(m.parted, func(i int, _ map[string]json.RawMessage) bool { return i < at-1 || i > at+1 })
	m.parted[at] = all
	return all, err
}

// tree shows two states of a document in one: what is equal is folded unless the page is whole.
type tree struct{ *page }

func (t tree) members(depth int, before, after map[string]json.RawMessage) {
	for _, name := range slices.Sorted(maps.Keys(both(before, after))) {
		t.value(depth, name, before[name], after[name])
	}
}

func (t tree) items(depth int, before, after []json.RawMessage) {
	folded := 0
	flush := func() {
		if folded > 0 {
			t.row(" ", faint, depth, fmt.Sprintf("… %d as before", folded))
			folded = 0
		}
	}
	for i := range max(len(before), len(after)) {
		var a, b json.RawMessage
		if i < len(before) {
			a = before[i]
		}
		if i < len(after) {
			b = after[i]
		}
		if bytes.Equal(a, b) && !t.whole {
			folded++
			continue
		}
		flush()
		t.value(depth, fmt.Sprintf("[%d]", i), a, b)
	}
	flush()
}

func (t tree) value(depth int, name string, a, b json.RawMessage) {
	equal := bytes.Equal(a, b)
	open := !equal || t.whole
	switch {
	case open && is('{', a, b):
		t.row(sign(equal), "", depth, name)
		t.members(depth+1, decoded[map[string]json.RawMessage](a), decoded[map[string]json.RawMessage](b))
	case open && is('[', a, b):
		t.row(sign(equal), "", depth, name)
		t.items(depth+1, decoded[[]json.RawMessage](a), decoded[[]json.RawMessage](b))
	case equal:
		t.row(" ", faint, depth, name+": "+preview(b))
	default:
		if a != nil {
			t.row("-", red, depth, name+": "+preview(a))
		}
		if b != nil {
			t.row("+", green, depth, name+": "+preview(b))
		}
	}
}

func (t tree) row(sign, style string, depth int, text string) {
	t.line(style, sign+" "+strings.Repeat("  ", depth)+text)
}

func sign(equal bool) string {
	if equal {
		return " "
	}
	return "~"
}

// is reports whether both values are objects, or both lists, that are not empty. One of them may
// be missing.
func is(kind byte, values ...json.RawMessage) bool {
	some := false
	for _, v := range values {
		if len(v) > 0 && v[0] != kind && !bytes.Equal(v, []byte("null")) {
			return false
		}
		some = some || len(v) > 2 && v[0] == kind
	}
	return some
}

func decoded[T any](v json.RawMessage) (value T) {
	_ = json.Unmarshal(v, &value) // null and nothing are empty
	return value
}

// previewed is how much of a value is shown on its line, in bytes.
const previewed = 1024

func preview(v json.RawMessage) string {
	return strings.ToValidUTF8(string(v[:min(len(v), previewed)]), "")
}

// request is what the model was asked, as far as it is known.
type request struct {
	about   string
	body    []byte
	err     error
	pending bool
}

// keptRequests is how many requests are kept, about.
const keptRequests = 64

// reply returns the number of the last reply of a model up to the moment, 0 at the live edge of
// a run that waits for one, and whether there is any.
func (m *model) reply() (n uint64, found bool) {
	if head := m.history.head().State; m.at == m.history.len() && (head == events.Planning || head == events.Reflecting) {
		return 0, true
	}
	for i := m.at; i > 0; i-- {
		if e := m.history.moment(i).event; e != nil && events.Billed(e.Data) != nil && e.Run == m.o.Run.ID {
			return e.N, true
		}
	}
	return 0, false
}

// fetch asks for the request that the panel shows, if it is not there.
func (m *model) fetch() tea.Cmd {
	n, any := m.reply()
	if m.panel != asked || !any || m.o.Request == nil || m.requests[n] != nil {
		return nil
	}
	if len(m.requests) > keptRequests {
		clear(m.requests)
	}
	m.requests[n] = &request{pending: true}
	return func() tea.Msg {
		about, body, err := m.o.Request(m.ctx, n)
		return requestMsg{n, about, body, err}
	}
}

func (m *model) requested(p *page) {
	n, any := m.reply()
	r := m.requests[n]
	switch {
	case !any:
		p.text("", 0, "No model was asked up to here.")
		return
	case r == nil || r.pending:
		p.text(faint, 0, "…")
		return
	}
	if n == 0 {
		p.line(bold, "what the model is asked now")
	} else {
		p.line(bold, fmt.Sprintf("what the model was asked for event %d", n))
	}
	if r.err != nil {
		p.text(red, 0, r.err.Error())
		return
	}
	p.line(faint, r.about)
	p.text("", 0, indented(r.body))
}

// indented returns JSON for people, and other text as it is.
func indented(text []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return string(text)
	}
	return b.String()
}

// stored shows the event as it is in the log, and whether the chain of hashes holds there.
func (m *model) stored(p *page) {
	at := m.history.moment(m.at)
	if at.refused != nil {
		p.text(red, 0, "not a legal event: "+at.refused.Error())
	}
	if e := at.event; e != nil {
		p.line("", fmt.Sprintf("%s  %s  by %s", e.Type(), e.Time.In(m.o.Now().Location()).Format("2006-01-02 15:04:05.000"), e.Source))
		switch {
		case e.Prev == "":
			p.line(faint, "the first event")
		case m.at > 1 && e.Prev == events.Hash(m.history.moment(m.at-1).rec.Body):
			p.line(green, "its hash of the event before it is right")
		default:
			p.line(red, "its hash of the event before it is wrong: "+e.Prev)
		}
	}
	p.line(faint, "hash    "+events.Hash(at.rec.Body))
	p.line(faint, fmt.Sprintf("subject %s, sequence %d", at.rec.Subject, at.rec.Seq))
	p.text("", 0, indented(at.rec.Body))
}

package watch

import (
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"

	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// mode is what keys mean.
type mode int

const (
	browsing mode = iota
	helping
	searching
	confirming // y approves
	writing    // the reason of a rejection, or an answer
)

// The speeds of playing, and the longest pause between two events.
const (
	slowest = 0.5
	fastest = 16
	gapMost = 2 * time.Second
)

// model is what the screen shows. It is a [tea.Model].
type model struct {
	o       Options
	ctx     context.Context
	history *history
	// at is the moment that is shown, counted from 1. With live it is the last one.
	at            int
	live, playing bool
	gen           int
	speed         float64
	panel         panel
	// scroll is how many lines the panel was moved, whole whether it shows what did not change.
	scroll int
	whole  bool
	// awaits is for what the run waits at its last moment.
	awaits        string
	width, height int
	mode          mode
	input         []rune
	query         string
	// asked is the call that is decided, verb what was decided.
	asked    events.Request
	verb     Verb
	note     string
	requests map[uint64]*request
	shown    shown
	parted   map[int]map[string]json.RawMessage // memories by moments, see sections
}

func newModel(ctx context.Context, o Options) *model {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &model{o: o, ctx: ctx, history: newHistory(o), live: true, speed: 1, width: 80, height: 24, requests: map[uint64]*request{}, parted: map[int]map[string]json.RawMessage{}}
}

// Init starts the clock.
func (m *model) Init() tea.Cmd { return m.clock() }

// clock has the age of the run grow on the screen.
func (m *model) clock() tea.Cmd {
	return tea.Tick(time.Second, func(time.Time) tea.Msg { return clockMsg{} })
}

// Update takes what happened.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.PasteMsg:
		m.write(msg.Content)
	case recordMsg:
		return m, m.record(journal.Record(msg))
	case awaitsMsg:
		m.awaits = string(msg)
	case brokenMsg:
		if !m.ended() { // else there is nothing to follow
			m.note = "the run is not followed any more: " + msg.Error()
		}
	case playMsg:
		return m, m.next(msg.gen)
	case clockMsg:
		return m, m.clock()
	case requestMsg:
		m.requests[msg.n] = &request{msg.about, msg.body, msg.err, false}
		m.shown = shown{}
	case decidedMsg:
		m.note = "the decision is in the log"
		if msg.err != nil {
			m.note = msg.err.Error()
		}
	}
	return m, nil
}

// record takes an event of the run that was stored just now.
func (m *model) record(rec journal.Record) tea.Cmd {
	if err := m.history.add(m.ctx, rec); err != nil {
		return func() tea.Msg { return brokenMsg{err} }
	}
	delete(m.requests, 0)
	if m.live {
		return m.seek(m.history.len())
	}
	return nil
}

// seek shows a moment, the nearest one there is.
func (m *model) seek(at int) tea.Cmd {
	m.at = min(max(at, 1), m.history.len())
	m.scroll = 0
	return m.fetch()
}

// stand shows a moment and stops following and playing.
func (m *model) stand(at int) tea.Cmd {
	m.live, m.playing = false, false
	return m.seek(at)
}

var keys = map[string]func(*model) tea.Cmd{
	"left": func(m *model) tea.Cmd { return m.stand(m.at - 1) }, "right": func(m *model) tea.Cmd { return m.stand(m.at + 1) },
	"home": func(m *model) tea.Cmd { return m.stand(1) }, "end": func(m *model) tea.Cmd { return m.stand(m.history.len()) },
	"up": func(m *model) tea.Cmd { return m.move(-1) }, "down": func(m *model) tea.Cmd { return m.move(1) },
	"pgup": func(m *model) tea.Cmd { return m.move(-m.body()) }, "pgdown": func(m *model) tea.Cmd { return m.move(m.body()) },
	"space": (*model).play, "+": func(m *model) tea.Cmd { return m.pace(2) }, "=": func(m *model) tea.Cmd { return m.pace(2) },
	"-": func(m *model) tea.Cmd { return m.pace(0.5) },
	"L": (*model).toEdge, "l": (*model).toEdge,
	"tab": func(m *model) tea.Cmd { return m.show(m.panel + 1) }, "shift+tab": func(m *model) tea.Cmd { return m.show(m.panel + panels - 1) },
	"x": func(m *model) tea.Cmd { m.whole = !m.whole; return nil },
	"?": func(m *model) tea.Cmd { m.mode = helping; return nil },
	"/": func(m *model) tea.Cmd { m.mode, m.input = searching, nil; return nil },
	"y": func(m *model) tea.Cmd { return m.ask(Approve) }, "n": func(m *model) tea.Cmd { return m.ask(Reject) },
	"q": func(*model) tea.Cmd { return tea.Quit },
}

func (m *model) key(msg tea.KeyPressMsg) tea.Cmd {
	key := msg.String()
	if key == "ctrl+c" {
		return tea.Quit
	}
	m.note = ""
	switch m.mode {
	case helping:
		m.mode = browsing
		return nil
	case confirming:
		m.mode = browsing
		if key != "y" {
			m.note = "nothing was decided"
			return nil
		}
		return m.decide("")
	case searching, writing:
		return m.typed(key, msg.Text)
	}
	if do := keys[key]; do != nil {
		return do(m)
	}
	return nil
}

// typed takes a key of a line of text.
func (m *model) typed(key, text string) tea.Cmd {
	switch key {
	case "esc":
		m.mode = browsing
	case "backspace":
		m.input = m.input[:max(len(m.input)-1, 0)]
	case "enter":
		was, line := m.mode, strings.TrimSpace(string(m.input))
		if was == searching {
			m.mode = browsing
			return m.search(line)
		}
		if line == "" {
			return nil // the model sees why, so there must be something
		}
		m.mode = browsing
		return m.decide(line)
	default:
		m.write(text)
	}
	return nil
}

// write appends to the line of text that is written.
func (m *model) write(text string) {
	if m.mode != searching && m.mode != writing {
		return
	}
	for _, r := range text {
		if unicode.IsSpace(r) {
			r = ' '
		}
		if len(m.input) < 1000 && terminal.Visible(string(r)) == string(r) {
			m.input = append(m.input, r)
		}
	}
}

func (m *model) move(lines int) tea.Cmd {
	m.scroll += lines
	return nil
}

func (m *model) show(p panel) tea.Cmd {
	m.panel, m.scroll = p%panels, 0
	return m.fetch()
}

func (m *model) toEdge() tea.Cmd {
	m.live, m.playing = true, false
	return m.seek(m.history.len())
}

func (m *model) pace(factor float64) tea.Cmd {
	m.speed = min(max(m.speed*factor, slowest), fastest)
	if !m.playing {
		return nil
	}
	return m.wait()
}

// play begins to play, or stops. At the end it begins at the beginning.
func (m *model) play() tea.Cmd {
	if m.playing {
		m.playing = false
		return nil
	}
	if m.playing, m.live = true, false; m.at == m.history.len() {
		return tea.Batch(m.seek(1), m.wait())
	}
	return m.wait()
}

// wait shows the next event when its time comes.
func (m *model) wait() tea.Cmd {
	m.gen++
	gen := m.gen
	return tea.Tick(m.pause(), func(time.Time) tea.Msg { return playMsg{gen} })
}

// pause is how long the moment is shown while the run plays.
func (m *model) pause() time.Duration {
	if m.at >= m.history.len() {
		return 0
	}
	now, then := m.history.moment(m.at).event, m.history.moment(m.at+1).event
	if now == nil || then == nil {
		return 0
	}
	gap := min(max(then.Time.Sub(now.Time), 0), gapMost)
	return max(time.Duration(float64(gap)/m.speed), time.Millisecond)
}

// next shows the next event of a run that plays. Behind the last one the run is followed, or
// stands if it has ended.
func (m *model) next(gen int) tea.Cmd {
	switch {
	case !m.playing || gen != m.gen:
		return nil
	case m.at >= m.history.len():
		m.playing, m.live = false, !m.ended()
		return nil
	}
	return tea.Batch(m.seek(m.at+1), m.wait())
}

// ended reports whether the run has ended by now.
func (m *model) ended() bool {
	return m.o.Machine.Table().Terminal(m.history.head().State)
}

// search shows the next event with a text, and begins again at the first. An empty query is the
// last one.
func (m *model) search(query string) tea.Cmd {
	if query != "" {
		m.query = query
	}
	want := strings.ToLower(m.query)
	if want == "" {
		return nil
	}
	total := m.history.len()
	for i := range total {
		at := (m.at+i)%total + 1
		if strings.Contains(strings.ToLower(string(m.history.moment(at).rec.Body)), want) {
			return m.stand(at)
		}
	}
	m.note = "no event has the text " + m.query
	return nil
}

// undecided returns the first call that waits for a decision now.
func (m *model) undecided() (events.Request, bool) {
	a := m.history.head().PendingApproval
	if a == nil || m.history.head().State != events.WaitingForHuman {
		return events.Request{}, false
	}
	for _, r := range a.Requests {
		decided := false
		for _, d := range a.Decisions {
			decided = decided || d.CallID == r.CallID
		}
		if !decided {
			return r, true
		}
	}
	return events.Request{}, false
}

// ask begins a decision: approving asks once more, rejecting asks for the reason, and a question
// for its answer.
func (m *model) ask(v Verb) tea.Cmd {
	waits, any := m.undecided()
	switch {
	case !any:
		m.note = "nothing waits for a decision"
		return nil
	case m.o.Decide == nil:
		m.note = m.o.Refusal
		return nil
	}
	m.asked, m.verb, m.input, m.mode = waits, v, nil, writing
	switch {
	case v == Approve && waits.Asks:
		m.verb = Answer
	case v == Approve:
		m.mode = confirming
	}
	return nil
}

func (m *model) decide(text string) tea.Cmd {
	asked, verb := m.asked, m.verb
	if waits, any := m.undecided(); !any || waits.CallID != asked.CallID {
		m.note = "the call does not wait any more"
		return nil
	}
	m.note = "sending the decision…"
	return func() tea.Msg { return decidedMsg{verb, m.o.Decide(m.ctx, asked, verb, text)} }
}

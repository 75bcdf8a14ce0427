package watch

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

var update = flag.Bool("update", false, "write the golden screens anew")

func add(t *testing.T, r *reducertest.Run, origin events.State, payloads ...events.Payload) {
	t.Helper()
	for _, p := range payloads {
		_, _, err := r.Append(origin, p)
		require.NoError(t, err)
	}
}

func reply(id, arguments string) events.ToolCallReply {
	return events.ToolCallReply{
		Content: "I look it up.", Calls: []events.Call{{ID: id, Name: "alpha", Arguments: arguments}}, Confidence: 1,
		Usage: events.Usage{Input: 10, Output: 2, Total: 12},
	}
}

// looked is a run that called a tool once: four events.
func looked(t *testing.T) *reducertest.Run {
	r := reducertest.NewRun(nil)
	add(t, r, events.Idle, reducertest.StartOf("How many files are there?", events.ModeTask))
	add(t, r, events.Planning, &events.LLMToolCall{ToolCallReply: reply("c1", `{"path": "."}`)})
	add(t, r, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "42 files", Code: "ok"}})
	add(t, r, events.Observing, &events.Continue{})
	return r
}

func done(t *testing.T) *reducertest.Run {
	r := looked(t)
	cost := 0.25
	add(t, r, events.Planning, &events.LLMFinalAnswer{MessageID: "m1", Reply: events.Reply{Content: "There are 42.", Usage: events.Usage{Input: 5, Output: 3, Total: 8, CostUSD: &cost}}})
	return r
}

// screen is a model on a run that is stored.
type screen struct {
	*testing.T
	m   *model
	run *reducertest.Run
	// decided are the decisions that were sent.
	decided []string
}

func open(t *testing.T, r *reducertest.Run, change func(*Options)) *screen {
	t.Helper()
	log := simtest.New(simtest.Options{})
	for _, rec := range r.Records {
		log.Inject(0, rec.Subject, rec.Body)
	}
	s := &screen{T: t, run: r}
	o := Options{
		Log: log, Machine: r.Machine, Run: r.ID, Now: func() time.Time { return time.Date(2026, 1, 2, 3, 5, 5, 0, time.UTC) },
		Request: func(_ context.Context, n uint64) (string, []byte, error) {
			return "openai gpt-x", fmt.Appendf(nil, `{"model":"gpt-x","messages":[{"role":"user","content":"for event %d"}]}`, n), nil
		},
		Decide: func(_ context.Context, waits events.Request, v Verb, text string) error {
			s.decided = append(s.decided, strings.TrimSpace(fmt.Sprint(v, " ", waits.CallID, " ", text)))
			return nil
		},
	}
	if change != nil {
		change(&o)
	}
	m, _, err := load(t.Context(), o)
	require.NoError(t, err)
	s.m = m
	return s
}

// send gives a message to the model and runs what it asks for, but not clocks.
func (s *screen) send(msg tea.Msg) {
	s.Helper()
	_, cmd := s.m.Update(msg)
	s.do(cmd)
}

func (s *screen) do(cmd tea.Cmd) {
	if cmd == nil || s.m.playing {
		return
	}
	switch msg := cmd().(type) {
	case nil, tea.QuitMsg:
	case tea.BatchMsg:
		for _, c := range msg {
			s.do(c)
		}
	default:
		s.send(msg)
	}
}

var special = map[string]tea.KeyPressMsg{
	"left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight}, "home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd}, "tab": {Code: tea.KeyTab},
	"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "space": {Code: tea.KeySpace, Text: " "},
	"shift+tab": {Code: tea.KeyTab, Mod: tea.ModShift}, "pgup": {Code: tea.KeyPgUp}, "backspace": {Code: tea.KeyBackspace},
}

// press presses keys, and types what is no key.
func (s *screen) press(keys ...string) {
	s.Helper()
	for _, key := range keys {
		if msg, known := special[key]; known {
			require.Equal(s, key, msg.String())
			s.send(msg)
			continue
		}
		for _, r := range key {
			s.send(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
}

func (s *screen) text() string { return s.m.View().Content }

// shows compares the screen with a golden one.
func (s *screen) shows(name string) {
	s.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(s, os.MkdirAll("testdata", 0o755))
		require.NoError(s, os.WriteFile(file, []byte(s.text()+"\n"), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(s, err)
	require.Equal(s, string(want), s.text()+"\n")
	s.fits()
}

// fits holds the screen to its size.
func (s *screen) fits() {
	s.Helper()
	lines := strings.Split(s.text(), "\n")
	require.LessOrEqual(s, len(lines), s.m.height, s.text())
	for _, line := range lines {
		require.LessOrEqual(s, ansi.StringWidth(line), s.m.width, line)
	}
}

func TestScreens(t *testing.T) {
	s := open(t, done(t), nil)
	s.shows("conversation")
	s.press("tab", "home", "right", "right")
	s.shows("memory")
	s.send(tea.WindowSizeMsg{Width: 80, Height: 500})
	require.NotContains(t, s.text(), "confidence_threshold: 0.4")
	s.press("x")
	require.Contains(t, s.text(), "\n        confidence_threshold: 0.4\n", "what is equal, too")
	s.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	s.press("x", "tab")
	s.shows("request")
	s.press("tab")
	s.shows("event")
	s.press("?")
	s.shows("help")
	s.press("?", "shift+tab", "shift+tab", "shift+tab")
	s.send(tea.WindowSizeMsg{Width: 60, Height: 16})
	s.shows("narrow")
	s.send(tea.WindowSizeMsg{Width: 140, Height: 24})
	require.Contains(t, s.text(), "    2    +1.000s  planning → acting              LlmToolCall            alpha")
	for _, size := range [][2]int{{1, 1}, {10, 3}, {20, 8}, {400, 100}} {
		s.send(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		s.fits()
	}
}

func TestKeysMoveInTime(t *testing.T) {
	s := open(t, done(t), nil)
	require.Contains(t, s.text(), " 5/5 ended\n")
	for _, step := range []struct {
		keys []string
		want string
	}{
		{[]string{"left"}, " 4/5 stands\n"}, {[]string{"left", "left", "left", "left"}, " 1/5 stands\n"}, {[]string{"right"}, " 2/5 stands\n"},
		{[]string{"end"}, " 5/5 stands\n"}, {[]string{"L"}, " 5/5 ended\n"}, {[]string{"home"}, " 1/5 stands\n"},
		{[]string{"/", "42 FILES", "enter"}, " 3/5 stands\n"}, {[]string{"/", "enter"}, " 3/5 stands\n"},
		{[]string{"/", "there are 43", "backspace", "2.", "enter"}, " 5/5 stands\n"}, {[]string{"/", "nobody said this", "enter"}, "\nno event has the text nobody said this"},
		{[]string{"/", "x", "esc"}, "\n? help  q quit"}, {[]string{"y"}, "nothing waits for a decision"},
	} {
		s.press(step.keys...)
		require.Contains(t, s.text(), step.want, "%v", step.keys)
	}
	_, cmd := s.m.Update(tea.KeyPressMsg{Code: 'q', Text: "q"})
	require.Equal(t, tea.QuitMsg{}, cmd())
	s.press("/")
	_, cmd = s.m.Update(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl})
	require.Equal(t, tea.QuitMsg{}, cmd(), "Ctrl-C leaves wherever one is")
}

// Played, a run takes its own time divided by the speed, and stops at its end.
func TestPlay(t *testing.T) {
	s := open(t, done(t), nil)
	s.press("space")
	require.Contains(t, s.text(), " 1/5 plays 1x\n", "it begins again")
	require.Equal(t, time.Second, s.m.pause())
	for range 10 {
		s.press("+")
	}
	require.Contains(t, s.text(), " 1/5 plays 16x\n")
	require.Equal(t, time.Second/16, s.m.pause())
	s.send(playMsg{s.m.gen - 1})
	require.Equal(t, 1, s.m.at, "an earlier pace does not count")
	for at := 2; at <= 5; at++ {
		s.send(playMsg{s.m.gen})
		require.Equal(t, at, s.m.at)
	}
	s.send(playMsg{s.m.gen})
	require.Contains(t, s.text(), " 5/5 stands\n")
	s.press("home", "space")
	for range 10 {
		s.press("-")
	}
	require.Equal(t, 2*time.Second, s.m.pause())
	s.press("space")
	s.send(playMsg{s.m.gen})
	require.Equal(t, 1, s.m.at, "it was stopped")
}

// What is stored shows at once at the live edge, and does not move who looks at the past.
func TestFollow(t *testing.T) {
	whole := done(t)
	part := whole.Clone()
	part.Records = part.Records[:4]
	s := open(t, part, nil)
	require.Contains(t, s.text(), " 4/4 live\n")
	require.Contains(t, s.text(), "age 58s", "it still grows")
	s.send(brokenMsg{fmt.Errorf("the bus is gone")})
	require.Contains(t, s.text(), "the run is not followed any more: the bus is gone")
	s.press("tab", "tab")
	require.Contains(t, s.text(), "what the model is asked now")
	s.press("left")
	rec := whole.Records[4]
	s.send(recordMsg(journal.Record{Subject: rec.Subject, Body: rec.Body}))
	require.Contains(t, s.text(), " 3/5 stands\n")
	s.press("L")
	require.Contains(t, s.text(), " 5/5 ended\n")
	require.Contains(t, s.text(), "for event 5")
	s.send(brokenMsg{fmt.Errorf("the stream is over")})
	require.NotContains(t, s.text(), "the stream is over")
}

func waits(t *testing.T, asks bool) *reducertest.Run {
	r := looked(t)
	p := &events.HumanApprovalRequired{ToolCallReply: reply("c2", `{"amount": 1}`)}
	p.Requests = []events.Request{{CallID: "c2", Tool: "alpha", Arguments: `{"amount": 1}`, Risk: "high", Reason: "Is it so?", Asks: asks}}
	add(t, r, events.Planning, p)
	return r
}

func TestDecide(t *testing.T) {
	s := open(t, waits(t, false), nil)
	s.shows("waits")
	s.press("y")
	require.Contains(t, s.text(), "approve alpha {\"amount\": 1}? y approves")
	s.press("q")
	require.Contains(t, s.text(), "nothing was decided")
	require.Empty(t, s.decided)
	s.press("home", "y", "y", "n", "enter", "too much", "enter")
	require.Equal(t, []string{"approve c2", "reject c2 too much"}, s.decided)

	s = open(t, waits(t, true), nil)
	s.press("y", "y es", "enter")
	require.Equal(t, []string{"answer c2 y es"}, s.decided)

	s = open(t, waits(t, false), func(o *Options) { o.Decide, o.Refusal = nil, "nobody serves it" })
	s.press("y")
	require.Contains(t, s.text(), "nobody serves it")
	s = open(t, waits(t, false), func(o *Options) {
		o.Decide = func(context.Context, events.Request, Verb, string) error { return fmt.Errorf("ada was first") }
	})
	s.press("y", "y")
	require.Contains(t, s.text(), "ada was first")
}

// Nothing that a run holds reaches the terminal as it is.
func TestHostileRun(t *testing.T) {
	const evil = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202e\u2028\r\t\x00日本"
	r := reducertest.NewRun(nil)
	start := reducertest.StartOf("task"+evil, events.ModeTask)
	start.Agent.Name = "tester"
	add(t, r, events.Idle, start)
	p := &events.HumanApprovalRequired{ToolCallReply: reply("c1", `{"a":"`+strings.Repeat(evil, 2000)+`"}`)}
	p.Content = evil
	p.Requests = []events.Request{{CallID: "c1", Tool: "alpha", Arguments: evil, Risk: evil, Reason: evil}}
	add(t, r, events.Planning, p)
	for _, color := range []bool{false, true} {
		s := open(t, r, func(o *Options) {
			o.Color = color
			o.Request = func(context.Context, uint64) (string, []byte, error) { return evil, []byte(evil), nil }
		})
		for range panels {
			for _, keys := range []string{"home", "right", "x", "y"} {
				s.press(keys)
				s.fits()
				text := s.text()
				for _, style := range []string{"", bold, faint, reverse, red, green, yellow, blue} {
					text = strings.ReplaceAll(text, "\x1b["+style+"m", "")
				}
				for _, c := range []string{"\x1b", "\x07", "\u009b", "\u202e", "\u2028", "\r", "\x00", "\t"} {
					require.NotContains(t, text, c)
				}
			}
			s.press("q", "tab")
		}
	}
}

// A record that is no legal event has a line, and its reason.
func TestPoisonedRun(t *testing.T) {
	r := looked(t)
	subject := events.Subject{Run: r.ID, From: events.Planning, To: events.Done, Pool: "default"}
	require.Error(t, r.Store(subject.String(), []byte("junk")))
	s := open(t, r, nil)
	require.Contains(t, s.text(), ">    5  not a legal event")
	s.press("tab", "tab", "tab")
	require.Contains(t, s.text(), "not a legal event: ")
	require.Contains(t, s.text(), "\njunk")
}

// The memory of any moment is that of a fold up to there, in whatever order one looks.
func TestMemories(t *testing.T) {
	r := reducertest.NewRun(nil)
	add(t, r, events.Idle, reducertest.StartOf("count", events.ModeTask))
	for i := range 400 {
		add(t, r, events.Planning, &events.LLMThought{Reply: events.Reply{Content: fmt.Sprint("hm ", i)}})
	}
	fork, err := r.Fork(300, events.Forked{})
	require.NoError(t, err)
	for range 100 {
		add(t, fork, events.Planning, &events.LLMThought{Reply: events.Reply{Content: "well"}})
	}
	log := simtest.New(simtest.Options{})
	for _, run := range []*reducertest.Run{r, fork} {
		for _, rec := range run.Records {
			log.Inject(0, rec.Subject, rec.Body)
		}
	}
	for _, run := range []*reducertest.Run{r, fork} {
		m, _, err := load(t.Context(), Options{Log: log, Machine: run.Machine, Run: run.ID})
		require.NoError(t, err)
		for _, i := range []int{90, 1, 2, 101, 100, 64, 65, 33, 99, 32, 31} {
			mem, err := m.history.memory(t.Context(), i)
			require.NoError(t, err)
			require.Equal(t, reducertest.Canonical(run.At(uint64(i))), reducertest.Canonical(mem), i)
		}
	}
}

func TestNoRun(t *testing.T) {
	err := Run(t.Context(), Options{Log: simtest.New(simtest.Options{}), Machine: reducer.NewMachine(reducer.MachineOptions{}), Run: reducertest.NewRun(nil).ID})
	require.ErrorIs(t, err, journal.ErrNotFound)
}

// The head says for which pool the run waits, at its last moment only.
func TestAwaits(t *testing.T) {
	s := open(t, looked(t), nil)
	s.send(awaitsMsg("waits for an actor of pool web"))
	require.Contains(t, s.m.header()[0], "(waits for an actor of pool web)")
	s.m.at--
	require.NotContains(t, s.m.header()[0], "pool web")
	s.m.at++
	s.send(awaitsMsg(""))
	require.NotContains(t, s.m.header()[0], "pool web")
}

package session

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// view writes lines and, on a terminal, one line below them that changes: what
// the run does, for how long, and the end of what the model is saying.
type view struct {
	w           io.Writer
	live, color bool

	mu      sync.Mutex
	started time.Time
	since   time.Time
	state   events.State
	said    string
	shown   bool
	frame   int
}

var frames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// liveWidth is how many characters of the model's words are shown; with what
// stands before them they fit into 80 columns.
const liveWidth = 48

func newView(w io.Writer, live, color bool) *view {
	return &view{w: w, live: live, color: color, since: time.Now(), state: events.Idle}
}

// start keeps the live line moving until stop is called.
func (v *view) start() (stop func()) {
	if !v.live {
		return func() {}
	}
	done := make(chan struct{})
	var finished sync.WaitGroup
	finished.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				v.mu.Lock()
				v.frame++
				v.draw()
				v.mu.Unlock()
			case <-done:
				return
			}
		}
	})
	return func() { close(done); finished.Wait(); v.clear() }
}

func (v *view) event(e *events.Event, mem *reducer.Memory) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.started.IsZero() {
		v.started = e.Time
	}
	v.erase()
	_, _ = fmt.Fprintln(v.w, console.EventLine(e, v.started, v.color))
	v.state, v.since, v.said = mem.State, time.Now(), ""
	v.draw()
}

func (v *view) line(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	_, _ = fmt.Fprintln(v.w, text)
	v.draw()
}

func (v *view) words(again bool, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if again {
		v.said = ""
	}
	v.said = tail(v.said+text, liveWidth)
	v.draw()
}

// tail returns the last characters of a text, on one line.
func tail(text string, limit int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' || r == 0x1b }), " ")
	for utf8.RuneCountInString(text) > limit {
		_, size := utf8.DecodeRuneInString(text)
		text = text[size:]
	}
	return text
}

func (v *view) prompt(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	_, _ = io.WriteString(v.w, text)
}

// clear takes the live line away.
func (v *view) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
}

func (v *view) erase() {
	if v.shown {
		_, _ = io.WriteString(v.w, "\r\x1b[K")
		v.shown = false
	}
}

func (v *view) draw() {
	if !v.live || v.state == events.WaitingForUser {
		return
	}
	v.erase()
	_, _ = fmt.Fprintf(v.w, "%s %s %4.1fs  %s", frames[v.frame%len(frames)], v.state, time.Since(v.since).Seconds(), v.said)
	v.shown = true
}

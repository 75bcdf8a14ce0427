package interactive

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// view writes lines. On a terminal it keeps one live line below them: the state, for how long,
// and the end of the model's text.
type view struct {
	w           io.Writer
	live, color bool
	// reasoning shows all that the model reasoned instead of one line.
	reasoning bool
	// columns returns the width of the terminal.
	columns func() int

	mu      sync.Mutex
	started time.Time
	since   time.Time
	state   events.State
	said    string
	shown   bool
	frame   int
}

var frames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// maxSaid is how many characters of the model's text are kept for the live line.
const maxSaid = 200

func newView(w io.Writer, live, color bool, columns func() int) *view {
	return &view{w: w, live: live, color: color, columns: columns, since: time.Now(), state: events.Idle}
}

// start refreshes the live line until stop is called.
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
	timeline := &print.Timeline{Out: v.w, Color: v.color, Reasoning: v.reasoning}
	_ = timeline.Write("", print.Entry{Event: e, Started: v.started, Reasoning: print.ShowsReasoning(mem)})
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
	said := []rune(v.said + text)
	v.said = string(said[max(0, len(said)-maxSaid):])
	v.draw()
}

// tail returns the end of a text, on one line that fits a number of columns.
func tail(text string, columns int) string {
	shown := []rune(print.Plain(text))
	first := len(shown)
	for first > 0 && columns >= terminal.Width(shown[first-1]) {
		first--
		columns -= terminal.Width(shown[first])
	}
	return string(shown[first:])
}

func (v *view) prompt(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	_, _ = io.WriteString(v.w, text)
}

func (v *view) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
}

func (v *view) erase() {
	if v.shown {
		_, _ = io.WriteString(v.w, terminal.EraseLine())
		v.shown = false
	}
}

func (v *view) draw() {
	if !v.live || v.state == events.WaitingForUser {
		return
	}
	v.erase()
	doing := fmt.Sprintf("%s %s %4.1fs  ", frames[v.frame%len(frames)], v.state, time.Since(v.since).Seconds())
	// A wrapped line cannot be erased, and some terminals wrap after the last column.
	left := v.columns() - 1
	for _, r := range doing {
		left -= terminal.Width(r)
	}
	_, _ = io.WriteString(v.w, doing+tail(v.said, left))
	v.shown = true
}

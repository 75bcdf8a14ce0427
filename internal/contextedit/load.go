package contextedit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// loadBytes bounds what one reply may show again, loadedBytes what is shown again at any
// time: older messages, and calls with their results. A result that is kept whole fits
// alone.
const (
	loadBytes   = 256<<10 + 16<<10
	loadedBytes = 2 * loadBytes
)

// loads is what one reply may still show again.
type loads struct {
	room int
	// older are the sizes of the messages before the window, the newest first. cut says
	// that there are more, which do not fit.
	older []int
	cut   bool
	// loaded are the calls that are already shown again.
	loaded map[string]bool
}

// newLoads copies what is shown of a run, under its lock.
func newLoads(mem *reducer.Memory) loads {
	loaded, bytes := mem.Loaded()
	l := loads{room: max(0, min(loadBytes, loadedBytes-bytes)), loaded: loaded}
	l.older, l.cut = mem.Older(l.room)
	return l
}

// messages reserves room for that many older messages and returns how many fit.
func (l *loads) messages(wanted int) int {
	for n := range wanted {
		switch {
		case len(l.older) == 0 && !l.cut:
			return wanted
		case len(l.older) == 0 || l.older[0] > l.room:
			l.cut, l.older = true, nil // what is older does not fit either
			return n
		}
		l.room -= l.older[0]
		l.older = l.older[1:]
	}
	return wanted
}

// call reserves room for a call and reports whether it fits.
func (l *loads) call(c pastResult) bool {
	if l.loaded[c.id] {
		return true
	}
	if c.bytes > l.room {
		return false
	}
	l.room -= c.bytes
	l.loaded[c.id] = true
	return true
}

// tooLarge tells the model that something does not fit.
var tooLarge = fmt.Sprintf("At most %d KiB are shown at once and %d KiB in all: load fewer.", loadBytes>>10, loadedBytes>>10)

func (e *Edits) loadMessages(text string) (increment int, answer, code string) {
	var in struct {
		Count float64 `json:"count"` // a schema's integer may be written 5.0
	}
	arguments(text, &in)
	total := e.total
	increment = int(min(in.Count, float64(total)))
	if increment < 1 {
		increment = max(1, e.expand)
	}
	before := min(e.window, total)
	wanted := min(before+increment, total) - before
	if wanted == 0 {
		return increment, fmt.Sprintf("All %d messages of the conversation are shown already.", total), tool.CodeOK
	}
	fit := e.messages(wanted)
	if fit == 0 {
		return 0, reducer.ErrorPrefix + "No older message is shown: the next one is too large. " + tooLarge, reducer.CodeTooLarge
	}
	if fit < wanted {
		increment = fit
	}
	e.window = before + fit
	answer = fmt.Sprintf("%d older messages are shown: now the last %d of %d.", fit, e.window, total)
	if fit < wanted {
		answer += " The one before them is too large. " + tooLarge
	}
	return increment, answer, tool.CodeOK
}

// loadResults returns the calls that are shown again. The answer names unknown calls and
// calls that do not fit; the others are shown.
func (e *Edits) loadResults(text string) (ids []string, answer, code string) {
	ids, code = []string{}, tool.CodeOK
	var large, shown, unknown, says []string
	for _, wanted := range wantedCalls(text) {
		past, known := e.answered[wanted]
		switch {
		case !known:
			unknown = append(unknown, fmt.Sprintf("%.100q", wanted))
		case slices.Contains(ids, past.id):
		case !e.call(past):
			large = append(large, fmt.Sprintf("%s (%d bytes)", Clip(listedID, past.id), past.bytes))
		default:
			ids, shown = append(ids, past.id), append(shown, Clip(listedID, past.id))
		}
	}
	if len(large) > 0 {
		code = reducer.CodeTooLarge
		says = append(says, fmt.Sprintf("%d are not shown, since they are too large. %s Not shown: %s.", len(large), tooLarge, firstOf(large)))
	}
	if len(ids) > 0 {
		says = append(says, "Shown: "+strings.Join(shown, ", ")+".")
	}
	if len(unknown) > 0 {
		code = tool.CodeNotFound
		says = append(says, "No such tool call: "+strings.Join(unknown, ", ")+". "+searchToolCalls+" lists them.")
	}
	answer = strings.Join(says, " ")
	if code != tool.CodeOK {
		answer = reducer.ErrorPrefix + answer
	}
	return ids, Clip(maxSaid, answer), code
}

// firstOf lists the first of some names, and how many more there are.
func firstOf(names []string) string {
	const most = 5
	text := strings.Join(names[:min(len(names), most)], ", ")
	if rest := len(names) - most; rest > 0 {
		text += fmt.Sprintf(", and %d more", rest)
	}
	return text
}

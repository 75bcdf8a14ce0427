// Package terminal keeps the text of runs from controlling terminals. Commands write only to
// [Stdout] and [Stderr], which show control characters as escapes. Only the results of [Style]
// and [EraseLine] control the terminal, so code that does not check its text is safe too.
//
// Pipes and files get every byte unchanged.
package terminal

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// Stdout and Stderr are those of the process.
var (
	Stdout = New(os.Stdout)
	Stderr = New(os.Stderr)
)

// mark begins our own control sequences. It is random in each process, so foreign text does
// not hold it.
var mark = "\x1b" + rand.Text()

// Style returns styled text for an [Output] that is a terminal. parameters are those of the
// SGR sequence, such as 1 for bold.
func Style(parameters, text string) string {
	return mark + "[" + parameters + "m" + text + mark + "[0m"
}

// EraseLine returns what erases the current line of an [Output] that is a terminal.
func EraseLine() string { return mark + "[K" }

// Output is a file that may be a terminal. It is safe for concurrent use.
type Output struct {
	file     *os.File // nil for other writers
	terminal bool

	mu sync.Mutex
	w  io.Writer
	// incomplete are the first bytes of an incomplete character.
	incomplete []byte
}

// New returns the output of a file.
func New(f *os.File) *Output {
	return &Output{file: f, w: f, terminal: term.IsTerminal(int(f.Fd()))}
}

// File returns the file itself, for a program that draws the entire screen and shows all foreign
// text by [Visible].
func (o *Output) File() *os.File { return o.file }

// IsTerminal reports whether the output is a terminal.
func (o *Output) IsTerminal() bool { return o.terminal }

// Color reports whether text may be styled: the output is a terminal with styles, and NO_COLOR
// is not set. getenv is os.Getenv.
func (o *Output) Color(getenv func(string) string) bool {
	return o.terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Columns returns the width of the terminal, 80 if it is unknown.
func (o *Output) Columns() int {
	if o.file != nil {
		if columns, _, err := term.GetSize(int(o.file.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// Write writes data, to a terminal as [Visible] shows it. A character may be split over
// writes.
func (o *Output) Write(data []byte) (int, error) {
	if !o.terminal {
		return o.w.Write(data)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	text := append(o.incomplete, data...)
	shown := make([]byte, 0, len(text))
	for len(text) > 0 {
		if sequence, size := own(text); size > 0 {
			shown, text = append(shown, sequence...), text[size:]
			continue
		}
		if !utf8.FullRune(text) {
			break
		}
		size := 0
		shown, size = appendVisible(shown, text)
		text = text[size:]
	}
	o.incomplete = bytes.Clone(text)
	if _, err := o.w.Write(shown); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Flush writes the bytes of an incomplete character. Call it after the last write.
func (o *Output) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = io.WriteString(o.w, Visible(string(o.incomplete))) // the process ends: there is no caller for the error
	o.incomplete = nil
}

// own returns the control sequence for our own mark at the beginning of text, and the length
// of the mark; 0 if text begins otherwise.
func own(text []byte) (sequence []byte, size int) {
	rest, found := bytes.CutPrefix(text, []byte(mark+"["))
	if !found {
		return nil, 0
	}
	if bytes.HasPrefix(rest, []byte("K")) {
		return []byte("\r\x1b[K"), len(mark) + len("[K")
	}
	end := bytes.IndexByte(rest, 'm')
	if end < 0 || len(bytes.Trim(rest[:end], "0123456789;")) > 0 {
		return nil, 0
	}
	return append([]byte("\x1b["), rest[:end+1]...), len(mark) + len("[") + end + 1
}

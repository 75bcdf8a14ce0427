// Package terminal stands between what runs say and the terminals of people. The
// commands write to [Stdout] and [Stderr] alone, which make visible what would
// control a terminal. Only what [Style] and [EraseLine] return controls it, so a
// place that forgets to look at its text is safe.
//
// What is no terminal (a pipe, a file) gets every byte as it is.
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

// Stdout and Stderr are the process's own.
var (
	Stdout = New(os.Stdout)
	Stderr = New(os.Stderr)
)

// mark begins what we ourselves want of a terminal. It is another one in each
// process, so no text that comes from elsewhere has it.
var mark = "\x1b" + rand.Text()

// Style returns text in a style, given as the parameters of the SGR sequence, such
// as 1 for bold. It is for an [Output] that is a terminal.
func Style(parameters, text string) string {
	return mark + "[" + parameters + "m" + text + mark + "[0m"
}

// EraseLine returns what takes the current line of a terminal away. It is for an
// [Output] that is a terminal.
func EraseLine() string { return mark + "[K" }

// Output is a file that may be a terminal. It is safe for concurrent use.
type Output struct {
	file     *os.File // nil for other writers
	terminal bool

	mu sync.Mutex
	w  io.Writer
	// held are the first bytes of a character whose rest is yet to be written.
	held []byte
}

// New returns the output to a file.
func New(f *os.File) *Output {
	return &Output{file: f, w: f, terminal: term.IsTerminal(int(f.Fd()))}
}

// IsTerminal reports whether somebody looks at the output.
func (o *Output) IsTerminal() bool { return o.terminal }

// Color reports whether text may be styled: the output is a terminal that can, and
// NO_COLOR is not set. getenv is os.Getenv, or a test's.
func (o *Output) Color(getenv func(string) string) bool {
	return o.terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Columns returns the width of the terminal, 80 where it is not known.
func (o *Output) Columns() int {
	if o.file != nil {
		if columns, _, err := term.GetSize(int(o.file.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// Write writes data, to a terminal as [Visible] shows it. A character may come in
// several writes.
func (o *Output) Write(data []byte) (int, error) {
	if !o.terminal {
		return o.w.Write(data)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	text := append(o.held, data...)
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
	o.held = bytes.Clone(text)
	if _, err := o.w.Write(shown); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Flush writes what is held of a character that was never completed. Call it when
// nothing more is written.
func (o *Output) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = io.WriteString(o.w, Visible(string(o.held))) // there is nobody left to tell
	o.held = nil
}

// own returns the control sequence for what we made at the beginning of text, and
// the length of the latter; 0 if text begins otherwise.
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

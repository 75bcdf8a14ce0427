package mcptool

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// The bounds of what a command's standard error brings into the log.
const (
	maxErrorLine   = 1 << 10
	maxErrorLines  = 20 // in errorInterval
	errorInterval  = time.Second
	errorReadAhead = 4 << 10
)

// errorLog writes a command's standard error to the log.
type errorLog struct {
	logger  *slog.Logger
	conceal *strings.Replacer

	mu      sync.Mutex
	recent  string
	since   time.Time
	lines   int
	dropped int
}

// copy reads to the end.
func (e *errorLog) copy(r io.Reader) {
	in := bufio.NewReaderSize(r, errorReadAhead)
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part[:min(len(part), errorReadAhead-len(line))]...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if said := e.shown(line); said != "" {
			e.say(said)
		}
		line = line[:0]
		if err != nil {
			return
		}
	}
}

// shown is what is to be seen of a line. It is cut last, so that no secret is cut
// before it is found.
func (e *errorLog) shown(line []byte) string {
	said := e.conceal.Replace(strings.ToValidUTF8(string(line), "\uFFFD"))
	return strings.ToValidUTF8(strings.TrimSpace(said[:min(len(said), maxErrorLine)]), "")
}

func (e *errorLog) say(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recent = line
	if now := time.Now(); now.Sub(e.since) >= errorInterval {
		e.report()
		e.since, e.lines = now, 0
	}
	if e.lines++; e.lines > maxErrorLines {
		e.dropped++
		return
	}
	e.logger.Info("an MCP server says", "stderr", line)
}

// report says how many lines were left out since it was said last.
func (e *errorLog) report() {
	if e.dropped > 0 {
		e.logger.Info("an MCP server says more than is logged", "lines", e.dropped)
		e.dropped = 0
	}
}

func (e *errorLog) flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.report()
}

// last returns the last line.
func (e *errorLog) last() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.recent
}

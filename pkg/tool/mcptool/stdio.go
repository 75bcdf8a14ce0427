package mcptool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// endGrace is how long a command may take to end after its input has ended, and again
	// after SIGTERM.
	endGrace = 500 * time.Millisecond
	// writeTimeout bounds the writing of one message.
	writeTimeout = 10 * time.Second
	// outputGrace is how long to wait for a command's end when its output has ended, since
	// the exit status says more.
	outputGrace = time.Second
)

// process is a server that is a command: the connection of one session.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	lines  *bufio.Reader
	max    int
	logger *slog.Logger
	inlet  inlet
	said   *errorLog
	// conceal removes secrets from the command's output.
	conceal *strings.Replacer

	writing sync.Mutex
	// gone is closed when the command has ended with result and its group was killed.
	gone    chan struct{}
	result  error
	heard   chan struct{} // closed at the end of standard error
	once    sync.Once
	garbage bool // some output was not a message
}

var _ mcp.Connection = (*process)(nil)

// startProcess starts the command.
func startProcess(o Options, logger *slog.Logger, conceal *strings.Replacer) (*process, error) {
	p := &process{
		max: o.MaxMessage, logger: logger, conceal: conceal, said: &errorLog{logger: logger, conceal: conceal},
		gone: make(chan struct{}), heard: make(chan struct{}),
	}
	p.cmd = exec.Command(o.Command[0], o.Command[1:]...)
	p.cmd.Dir, p.cmd.Env = o.Dir, o.environment()
	ownGroup(p.cmd)
	var theirs [3]*os.File
	defer func() { closeAll(theirs[:]...) }()
	var errs [3]error
	theirs[0], p.stdin, errs[0] = os.Pipe()
	p.stdout, theirs[1], errs[1] = os.Pipe()
	p.stderr, theirs[2], errs[2] = os.Pipe()
	if err := errors.Join(errs[:]...); err != nil {
		closeAll(p.stdin, p.stdout, p.stderr)
		return nil, err
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if err := p.cmd.Start(); err != nil {
		closeAll(p.stdin, p.stdout, p.stderr)
		return nil, fmt.Errorf("the command %q cannot be started: %w", o.Command[0], err)
	}
	p.lines = bufio.NewReaderSize(p.stdout, 64<<10)
	go func() { p.said.copy(p.stderr); close(p.heard) }()
	go func() {
		p.result = p.cmd.Wait()
		killGroup(p.cmd)
		close(p.gone)
	}()
	return p, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // a pipe's end: nothing is lost
		}
	}
}

// SessionID returns "", since a process is one session.
func (p *process) SessionID() string { return "" }

// Read returns the server's next message that matters. It skips output that is not a
// message, such as a banner.
func (p *process) Read(context.Context) (jsonrpc.Message, error) {
	for {
		line, err := p.line()
		if err != nil {
			return nil, p.ended(err)
		}
		if len(line) == 0 {
			continue
		}
		msg, err := jsonrpc.DecodeMessage(line)
		if err != nil {
			if !p.garbage {
				p.garbage = true
				// The reason is not logged: it has a part of the line, which may end in a secret.
				p.logger.Warn("an MCP server writes output that is not a message; it is ignored", "line", head(p.conceal.Replace(string(line))))
			}
			continue
		}
		take, err := p.inlet.admits(msg)
		if err != nil {
			return nil, p.ended(err)
		}
		if take {
			return msg, nil
		}
	}
}

// line reads one line without its end.
func (p *process) line() ([]byte, error) {
	var whole []byte
	for {
		part, err := p.lines.ReadSlice('\n')
		if len(whole)+len(part) > p.max {
			return nil, tooLong(p.max)
		}
		whole = append(whole, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return bytes.TrimSpace(whole), nil
	}
}

// ended returns the reason why there is nothing more to read.
func (p *process) ended(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
		return &endedError{reason: err.Error()}
	}
	wait := time.NewTimer(outputGrace)
	defer wait.Stop()
	select {
	case <-p.gone:
	case <-wait.C:
		return &endedError{reason: "it closed its output"}
	}
	select {
	case <-p.heard:
	case <-wait.C:
	}
	reason := "it ended"
	if p.result != nil {
		reason = "it ended: " + p.result.Error()
	}
	if last := p.said.last(); last != "" {
		reason += "; its last words: " + last
	}
	return &endedError{reason: reason}
}

// Write sends a message. It ends a command that does not read for too long.
func (p *process) Write(ctx context.Context, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(written(msg))
	if err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	p.inlet.answered(msg)
	_ = p.stdin.SetWriteDeadline(time.Now().Add(writeTimeout)) // some systems have no deadlines
	noteSent(ctx)
	_, err = p.stdin.Write(append(data, '\n'))
	if err == nil {
		return nil
	}
	killGroup(p.cmd) // part of the message may have arrived, so nothing can follow it
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &endedError{reason: "it does not read its input"}
	}
	return p.ended(io.EOF)
}

// Close ends the command: it closes its input, then sends SIGTERM, then kills it and its
// group. It returns when nothing is left of them.
func (p *process) Close() error {
	p.once.Do(func() {
		_ = p.stdin.Close() // a pipe's end
		for _, insist := range []func(*exec.Cmd){endGroup, killGroup} {
			select {
			case <-p.gone:
			case <-time.After(endGrace):
				insist(p.cmd)
			}
		}
		<-p.gone
		closeAll(p.stdout, p.stderr)
		<-p.heard
		p.said.flush()
	})
	return nil
}

// endedError is the reason why a session ended.
type endedError struct{ reason string }

// tooLong says that a message was too long.
func tooLong(most int) error {
	return &endedError{reason: fmt.Sprintf("it sent a message of more than %d bytes", most)}
}

func (e *endedError) Error() string { return e.reason }

// head returns the beginning of a line, for the log.
func head(line string) string {
	const most = 200
	if len(line) > most {
		return line[:most] + "…"
	}
	return line
}

// Bounds of the standard error that is logged.
const (
	maxErrorLine   = 1 << 10
	maxErrorLines  = 20 // in errorInterval
	errorInterval  = time.Second
	errorReadAhead = 4 << 10
)

// errorLog logs a command's standard error.
type errorLog struct {
	logger  *slog.Logger
	conceal *strings.Replacer

	mu      sync.Mutex
	recent  string
	since   time.Time
	lines   int
	dropped int
}

// copy reads r to its end.
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

// shown returns the part of a line that is logged. It cuts the line last, so that a secret
// is found before it is cut.
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

// report logs how many lines were dropped since the last report.
func (e *errorLog) report() {
	if e.dropped > 0 {
		e.logger.Info("an MCP server writes more to stderr than is logged", "lines", e.dropped)
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

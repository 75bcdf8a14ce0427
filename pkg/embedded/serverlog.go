package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

// serverLog passes the server's warnings and errors on. The server reports a
// failed start, such as a port in use, only through Fatalf, so the first of
// those is kept.
type serverLog struct {
	out *slog.Logger
	// failed is told of errors, sawError says that there was one, and muted that they
	// are not passed on.
	failed          chan struct{}
	sawError, muted atomic.Bool

	mu    sync.Mutex
	first error
}

func newServerLog(out *slog.Logger) *serverLog {
	if out == nil {
		out = slog.Default()
	}
	return &serverLog{out: out, failed: make(chan struct{}, 1)}
}

// begin forgets why an earlier start failed.
func (l *serverLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = nil
}

// mute keeps errors back while it is known why there are some: the server logs one
// for every message that it cannot store.
func (l *serverLog) mute(on bool) { l.muted.Store(on) }

func (l *serverLog) Noticef(string, ...any) {}
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) Warnf(format string, args ...any) {
	l.out.Warn("nats-server: " + fmt.Sprintf(format, args...))
}

func (l *serverLog) Errorf(format string, args ...any) {
	l.sawError.Store(true)
	select {
	case l.failed <- struct{}{}:
	default: // it is told already
	}
	if !l.muted.Load() {
		l.out.Error("nats-server: " + fmt.Sprintf(format, args...))
	}
}

func (l *serverLog) Fatalf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.out.Error("nats-server: " + text)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		l.first = errors.New(text)
	}
}

func (l *serverLog) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

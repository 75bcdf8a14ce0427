package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// serverLog passes the server's warnings and errors on. The server reports a
// failed start, such as a port in use, only through Fatalf, so the first of
// those is kept.
type serverLog struct {
	out *slog.Logger

	mu    sync.Mutex
	first error
}

func (l *serverLog) Noticef(string, ...any) {}
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) Warnf(format string, args ...any) {
	l.out.Warn("nats-server: " + fmt.Sprintf(format, args...))
}

func (l *serverLog) Errorf(format string, args ...any) {
	l.out.Error("nats-server: " + fmt.Sprintf(format, args...))
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

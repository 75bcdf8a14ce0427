package mcptool

import (
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/tool"
)

// announcer puts a server's tools into the registry and takes them out when the
// server has been away for a while.
type announcer struct {
	put    func([]tool.Tool)
	linger time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	offered bool // there is something in the registry
	said    bool // put was called
	closed  bool
	// absence counts the times that the server was there again, so that a timer
	// that fires late takes nothing away.
	absence int
}

// here says which tools there are.
func (a *announcer) here(tools []tool.Tool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absence++
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	a.offered, a.said = true, true
	a.put(tools)
}

// late says that there are no tools for now if nothing was said yet.
func (a *announcer) late() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.said && !a.closed {
		a.said = true
		a.put(nil)
	}
}

// away says that the server cannot be called for now. One that is starting is given
// the time until late before it is said that it has no tools. It reports whether
// something was said about its tools, now or before.
func (a *announcer) away(starting bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.said && !starting {
		a.said = true
		a.put(nil)
	}
	if a.offered && a.timer == nil {
		absence := a.absence
		a.timer = time.AfterFunc(a.linger, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.absence == absence {
				a.offered, a.timer = false, nil
				a.put(nil)
			}
		})
	}
	return a.said
}

// close puts nothing any more.
func (a *announcer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.absence++
	if a.timer != nil {
		a.timer.Stop()
	}
}

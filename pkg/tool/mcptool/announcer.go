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

// away says that the server cannot be called for now.
func (a *announcer) away() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.said {
		a.said = true
		a.put(nil)
	}
	if !a.offered || a.timer != nil {
		return
	}
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

// close puts nothing any more.
func (a *announcer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absence++
	if a.timer != nil {
		a.timer.Stop()
	}
}

package embedded

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/moorebus/moorebus/internal/diskspace"
	"github.com/moorebus/moorebus/internal/retry"
)

const (
	// mostReserve and reserveShare bound what is kept free on the disk: 64 MiB, and a
	// 20th of a small disk. The server's bookkeeping fits into it.
	mostReserve  = 64 << 20
	reserveShare = 20
	// lookEvery is how often the disk is checked.
	lookEvery = 250 * time.Millisecond
)

// restartPauses are how long a server is not restarted again after a restart that did
// not help.
var restartPauses = retry.Policy{First: 5 * time.Second, Factor: 2, Max: time.Minute}

// fullError says that the server accepts no writes because its disk is full.
type fullError struct {
	// Dir is the data directory, Free how many bytes its disk has left, and Need with
	// how many it takes writes again.
	Dir        string
	Free, Need uint64
	// Reason is why the server stores nothing, however much space is free; empty if it would
	// still store something.
	Reason string
}

// Error says what to do.
func (e *fullError) Error() string {
	if e.Reason != "" && e.Free >= e.Need {
		return fmt.Sprintf("the server cannot write to %s; it is restarted until it can: %s", e.Dir, e.Reason)
	}
	return fmt.Sprintf("the disk of %s is full: %d MiB are free; appends continue by themselves when %d MiB are free", e.Dir, e.Free>>20, e.Need>>20)
}

// Full returns nil while the server takes writes, else an error that says why not. Nothing
// should be stored then: a disk that is full to the last byte stops a stream until
// the server is restarted. It is cheap.
func (s *Server) Full() error {
	if full := s.full.Load(); full != nil {
		return full
	}
	return nil
}

// Storable returns how many bytes the streams should have together at most: three
// quarters of what the disk has free and of what they have already. 0: it is not
// known.
func (s *Server) Storable() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	free, _, known := diskspace.Free(s.dir)
	info, err := s.nats.Jsz(nil)
	if err != nil || !known {
		return 0
	}
	return int64((free + info.Store) / 4 * 3)
}

// watch checks the disk until the server is shut down.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var turns restarts
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.log.failed:
		case <-tick.C:
		}
		s.checkRoom()
		full := s.full.Load()
		if !turns.due(full, time.Now()) {
			continue
		}
		if s.group && strings.Contains(full.Reason, syscall.EIO.Error()) {
			s.fatal(full) // the page cache has what the disk may not have
			return
		}
		if err := s.restart(ctx); err != nil && ctx.Err() == nil {
			s.log.out.Error("the embedded server did not start again; it is tried again", "reason", err)
		}
		turns.last = time.Now()
		s.checkRoom()
	}
}

// restarts decides when a server that stores nothing is restarted.
type restarts struct {
	// last is when the last restart ended, inRow how many did not help.
	last  time.Time
	inRow int
}

// due reports whether the server is to be restarted now, and counts that as a restart.
// A restart only helps if space is free. If the server soon stores nothing again although space
// was free all the time, the next restart waits longer.
func (r *restarts) due(full *fullError, now time.Time) bool {
	switch since := now.Sub(r.last); {
	case full == nil && since > restartPauses.Max, full != nil && full.Free < full.Need:
		r.inRow = 0
		return false
	case full == nil || full.Reason == "" || r.inRow > 0 && since < restartPauses.Delay(r.inRow):
		return false
	}
	r.last = now
	r.inRow++
	return true
}

// checkRoom notes whether space is free, and logs a change. It must not run concurrently.
func (s *Server) checkRoom() {
	was := s.full.Load()
	now := s.room(was)
	s.full.Store(now)
	switch {
	case now != nil && was == nil:
		s.log.mute(true)
		s.log.out.Error("nothing is stored any more", "reason", now)
	case now == nil && was != nil:
		s.log.mute(false)
		s.log.out.Warn("the disk has free space again: waiting appends are stored", "dir", s.dir)
	}
}

// room returns nil if enough space is free, given what it returned before. A disk that was full
// must have twice as much free, so that the result does not flap.
func (s *Server) room(was *fullError) *fullError {
	free, total, known := diskspace.Free(s.dir)
	least := s.reserve
	if least == 0 {
		least = min(mostReserve, total/reserveShare)
	}
	now := &fullError{Dir: s.dir, Free: free, Need: 2 * least}
	if was != nil {
		least = now.Need
	}
	if !known {
		least, now.Need = 0, 0
	}
	reason := s.ill()
	if s.suspect {
		now.Reason = reason // it was ill at the last look, too
	}
	s.suspect = reason != ""
	if now.Reason == "" && now.Free >= least {
		return nil
	}
	return now
}

// ill returns why the server stores nothing any more until it is restarted, else "".
func (s *Server) ill() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.nats.JetStreamEnabled() {
		return "JetStream ended"
	}
	if sawError := s.log.sawError.Swap(false); !sawError && !s.suspect {
		return ""
	}
	reason, known := writeError(s.nats.Healthz(&server.HealthzOptions{Details: true}))
	if !known {
		s.log.sawError.Store(true) // look again
	}
	return reason
}

// writeError returns what the server's health says about a stream that it could not
// write, else "". Everything else stays as it is after a restart, such as a directory
// of a stream that could not be recovered. It is unknown if the server did not
// check its streams.
func writeError(health *server.HealthStatus) (reason string, known bool) {
	for _, e := range health.Errors {
		switch {
		case e.Type == server.HealthzErrorConn:
			return "", false
		case e.Type == server.HealthzErrorStream && strings.Contains(e.Error, " write error: "):
			return e.Error, true
		}
	}
	return "", true
}

// restart stops the server and starts it on the same directory and address. Its
// clients connect again by themselves.
func (s *Server) restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.out.Warn("the embedded server is restarted, since it could not write to its disk", "dir", s.dir)
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	s.closeFlushers()
	inner, err := boot(ctx, s.settings, s.log, s.startTimeout)
	if err != nil {
		return err
	}
	s.nats = inner
	return nil
}

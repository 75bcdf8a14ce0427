package embedded

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// mostReserve and reserveShare bound what is kept free on the disk: 64 MiB, and a
	// 20th of a small disk. What the server notes for itself has room in it.
	mostReserve  = 64 << 20
	reserveShare = 20
	// lookEvery is how often the disk is looked at.
	lookEvery = 250 * time.Millisecond
	// restartPause is the least time between two restarts of a server that stores
	// nothing.
	restartPause = 5 * time.Second
)

// FullError says that the server takes no writes for want of room on its disk.
type FullError struct {
	// Dir is the data directory, Free how many bytes its disk has left, and Need with
	// how many it takes writes again.
	Dir        string
	Free, Need uint64
	// Reason is what the server says about its streams; empty if it would still
	// store something.
	Reason string
}

// Error says what to do.
func (e *FullError) Error() string {
	if e.Reason != "" && e.Free >= e.Need {
		return fmt.Sprintf("the server cannot write to %s, it is being restarted: %s", e.Dir, e.Reason)
	}
	return fmt.Sprintf("the disk of %s is full: %d MiB are free; appends go on by themselves when there are %d MiB", e.Dir, e.Free>>20, e.Need>>20)
}

// Full returns nil while the server takes writes, else a [*FullError]. Nothing
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
	free, _, known := FreeSpace(s.dir)
	info, err := s.nats.Jsz(nil)
	if err != nil || !known {
		return 0
	}
	return int64((free + info.Store) / 4 * 3)
}

// watch looks at the disk until the server is shut down.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var restarted time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.log.failed:
		case <-tick.C:
		}
		if s.look() && time.Since(restarted) >= restartPause {
			restarted = time.Now()
			if err := s.restart(ctx); err != nil && ctx.Err() == nil {
				s.log.out.Error("the embedded server did not start again; it is tried again", "reason", err)
			}
			s.look()
		}
	}
}

// look notes whether there is room, says so where that changed, and reports whether
// the server has to be restarted, which only helps where there is room.
func (s *Server) look() (restart bool) {
	was := s.full.Load()
	now := s.room(was)
	s.full.Store(now)
	switch {
	case now != nil && was == nil:
		s.log.mute(true)
		s.log.out.Error("nothing is stored any more", "reason", now)
	case now == nil && was != nil:
		s.log.mute(false)
		s.log.out.Warn("there is room on the disk again: what waits is stored", "dir", s.dir)
	}
	return now != nil && now.Reason != "" && now.Free >= now.Need
}

// room returns nil if there is room, given what it returned before. A disk that was
// full has to have twice as much free, so that this does not change all the time.
func (s *Server) room(was *FullError) *FullError {
	free, total, known := FreeSpace(s.dir)
	least := s.reserve
	if least == 0 {
		least = min(mostReserve, total/reserveShare)
	}
	now := &FullError{Dir: s.dir, Free: free, Need: 2 * least}
	if was != nil {
		least = now.Need
	}
	if !known {
		least, now.Need = 0, 0
	}
	if s.log.sawError.Load() || was != nil && was.Reason != "" {
		now.Reason = s.ill()
	}
	if now.Reason == "" && now.Free >= least {
		return nil
	}
	return now
}

// ill returns what the server says of streams that store nothing any more, else "".
func (s *Server) ill() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.nats.JetStreamEnabled() {
		return "JetStream ended"
	}
	if health := s.nats.Healthz(&server.HealthzOptions{}); health.StatusCode != 0 && health.StatusCode != http.StatusOK {
		return health.Error
	}
	s.log.sawError.Store(false)
	return ""
}

// restart stops the server and starts it on the same directory and address. Its
// clients connect again by themselves.
func (s *Server) restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.out.Warn("the embedded server is restarted, since it could not write to its disk", "dir", s.dir)
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	inner, err := boot(ctx, s.settings, s.log, s.startTimeout)
	if err != nil {
		return err
	}
	s.nats = inner
	return nil
}

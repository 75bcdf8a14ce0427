package natsbus

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// fullFor is how long a refusal for want of storage is taken for true without
// another one: a role announces itself again each second while that fails, and
// what it cannot append it tries again as well.
const fullFor = 30 * time.Second

// storageSign is the last refusal for want of storage. It costs nothing: no
// request is made for its sake.
type storageSign struct {
	// refused says that err is set.
	refused atomic.Bool

	mu  sync.Mutex
	at  time.Time
	err error
}

// note takes what storing something came to, and returns it.
func (s *storageSign) note(err error) error {
	full := errors.Is(err, journal.ErrFull)
	if err != nil && !full {
		return err // it says nothing of the storage
	}
	if !full && !s.refused.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.err = time.Now(), err
	s.refused.Store(full)
	return err
}

// last returns the refusal, nil if something was stored since or if it is of long
// ago.
func (s *storageSign) last() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) > fullFor {
		return nil
	}
	return s.err
}

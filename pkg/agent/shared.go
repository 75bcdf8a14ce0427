package agent

import (
	"context"
	"sync"
)

// shared is the service that an agent's runs have in common while there are any. Its
// lock is held while a service opens or closes, since a place is that of one service
// at a time; nobody else waits for that.
type shared struct {
	mu  sync.Mutex
	now *tenancy
}

// tenancy is a service and how many runs use it. The last one closes it.
type tenancy struct {
	service *service
	users   int
	close   func() error
}

// acquire returns the service, and what lets go of it. It is opened for the first run,
// and anew where its roles have ended by themselves: whoever uses the old one is told
// so by [Run.Release].
func (s *shared) acquire(ctx context.Context, open func(context.Context) (*service, error)) (*service, func() error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && s.now.service.over() {
		_ = s.now.close() // its runs return the error
		s.now = nil
	}
	if s.now == nil {
		service, err := open(ctx)
		if err != nil {
			return nil, nil, err
		}
		s.now = &tenancy{service: service, close: sync.OnceValue(service.close)}
	}
	t := s.now
	t.users++
	return t.service, sync.OnceValue(func() error { return s.release(t) }), nil
}

// release closes a service after its last run.
func (s *shared) release(t *tenancy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.users--; t.users > 0 {
		return nil
	}
	if s.now == t {
		s.now = nil
	}
	return t.close()
}

package natsbus

import (
	"sync"
	"time"
)

// cache keeps what the server answered for a while, by key. The zero value is empty.
type cache[T any] struct {
	mu   sync.Mutex
	kept map[string]cached[T]
}

type cached[T any] struct {
	value T
	at    time.Time
	// forgotten counts calls of forget: an answer to an earlier question is not kept.
	forgotten int
}

// get returns what is kept if it is not older than age, else what load returns. If load
// fails, the value that was kept is returned with the error.
func (c *cache[T]) get(key string, age time.Duration, load func() (T, error)) (T, error) {
	c.mu.Lock()
	old := c.kept[key]
	c.mu.Unlock()
	if time.Since(old.at) < age {
		return old.value, nil
	}
	value, err := load()
	if err != nil {
		return old.value, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = make(map[string]cached[T])
	}
	if c.kept[key].forgotten == old.forgotten {
		c.kept[key] = cached[T]{value, time.Now(), old.forgotten}
	}
	return value, nil
}

// forget drops what is kept under a key.
func (c *cache[T]) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = make(map[string]cached[T])
	}
	c.kept[key] = cached[T]{forgotten: c.kept[key].forgotten + 1}
}

package announce

import (
	"maps"
	"sync"
	"time"
)

// Misses measures for how long something that other processes may have has been missing.
// Make it with [NewMisses]. It is safe for concurrent use.
type Misses[K comparable] struct {
	forget time.Duration

	mu  sync.Mutex
	all map[K]miss
}

// miss is since when something has been missing, and when that was last checked.
type miss struct{ since, last time.Time }

// NewMisses returns an empty Misses. A miss that was last checked longer than forget ago
// no longer counts, since the missing thing may have been there meanwhile.
func NewMisses[K comparable](forget time.Duration) *Misses[K] {
	return &Misses[K]{forget: forget, all: map[K]miss{}}
}

// Miss records that key was not found, and returns how long ago the first miss in a row
// was; 0 for the first one.
func (m *Misses[K]) Miss(key K) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(m.all, func(_ K, one miss) bool { return now.Sub(one.last) > m.forget })
	one, known := m.all[key]
	if !known {
		one.since = now
	}
	one.last = now
	m.all[key] = one
	return now.Sub(one.since)
}

// Found records that the keys were found. Their next misses count from 0.
func (m *Misses[K]) Found(keys ...K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.all, key)
	}
}

// Any reports whether anything is missing.
func (m *Misses[K]) Any() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all) > 0
}

// Clear forgets all misses, for when it is unknown what is there.
func (m *Misses[K]) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.all)
}

package schema

import (
	"container/list"
	"crypto/sha256"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

type cacheKey = [sha256.Size]byte

func keyOf(schema []byte) cacheKey { return sha256.Sum256(schema) }

// cache keeps the most recently used compiled schemas, by the hash of their text.
type cache struct {
	mu      sync.Mutex
	size    int
	order   *list.List // of entry, most recently used first
	entries map[cacheKey]*list.Element
}

type entry struct {
	key    cacheKey
	schema *jsonschema.Schema
}

func newCache(size int) *cache {
	return &cache{size: size, order: list.New(), entries: make(map[cacheKey]*list.Element)}
}

func (c *cache) get(key cacheKey) (*jsonschema.Schema, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(entry).schema, true
}

func (c *cache) put(key cacheKey, schema *jsonschema.Schema) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[key]; ok {
		return
	}
	c.entries[key] = c.order.PushFront(entry{key: key, schema: schema})
	if c.order.Len() > c.size {
		oldest := c.order.Back()
		c.order.Remove(oldest)
		delete(c.entries, oldest.Value.(entry).key)
	}
}

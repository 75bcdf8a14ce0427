package runstart

import (
	"sync"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
)

// The limits of the cache of parsed definitions, in number and in bytes of their stored text.
const (
	keptDefinitions     = 256
	keptDefinitionBytes = 8 << 20
)

// definitions caches what was parsed from stored definitions, by the stored text. So a
// replaced definition is parsed anew. It is safe for concurrent use.
type definitions struct {
	mu   sync.Mutex
	kept map[string]definition
	size int // of the keys, in bytes
}

// definition is a parsed agent and its hash. Many runs share what the agent points to, so nobody
// changes that.
type definition struct {
	agent events.Agent
	hash  string
}

// parse returns the agent in a stored text and its hash. An error is not kept.
func (d *definitions) parse(stored []byte, o agentfile.Options) (definition, error) {
	d.mu.Lock()
	known, ok := d.kept[string(stored)]
	d.mu.Unlock()
	if ok {
		return known, nil
	}
	a, err := agentfile.ParseDefinition(stored, agentfile.JSON, o)
	if err != nil {
		return definition{}, err
	}
	parsed := definition{a, agentfile.Hash(a)}
	d.keep(string(stored), parsed)
	return parsed, nil
}

func (d *definitions) keep(stored string, parsed definition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.kept[stored]; known || len(stored) > keptDefinitionBytes {
		return
	}
	if d.kept == nil || len(d.kept) >= keptDefinitions || d.size+len(stored) > keptDefinitionBytes {
		d.kept, d.size = map[string]definition{}, 0
	}
	d.kept[stored] = parsed
	d.size += len(stored)
}

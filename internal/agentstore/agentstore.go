// Package agentstore keeps the definitions of agents, by namespace and name. The bucket keeps the
// last few of each.
package agentstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func checkNamespace(namespace string) error {
	if !events.ValidToken(namespace) {
		return fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	return nil
}

func key(namespace, name string) (string, error) {
	if err := checkNamespace(namespace); err != nil {
		return "", err
	}
	if !events.ValidToken(name) {
		return "", fmt.Errorf("agent name %q is not of the form [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	return namespace + "." + name, nil
}

// Put stores an agent's definition.
func Put(ctx context.Context, store kv.Store, namespace, name string, definition []byte) error {
	key, err := key(namespace, name)
	if err != nil {
		return err
	}
	if most := store.MaxBody(); len(definition) > most {
		return &ports.TooLargeError{What: "agent " + name, Size: len(definition), Limit: most}
	}
	if _, err := store.Put(ctx, buckets.Agents, kv.Item{Key: key, Value: definition}); err != nil {
		return fmt.Errorf("agent %s: %w", name, err)
	}
	return nil
}

// Get returns a definition and when it was stored, or [journal.ErrNotFound].
func Get(ctx context.Context, store kv.Store, namespace, name string) (definition []byte, stored time.Time, err error) {
	key, err := key(namespace, name)
	if err != nil {
		return nil, stored, err
	}
	it, err := store.Get(ctx, buckets.Agents, key)
	if err != nil {
		return nil, stored, fmt.Errorf("agent %s: %w", name, err)
	}
	return it.Value, it.Stored, nil
}

// Names returns the names of a namespace's agents, sorted.
func Names(ctx context.Context, store kv.Store, namespace string) ([]string, error) {
	if err := checkNamespace(namespace); err != nil {
		return nil, err
	}
	keys, err := store.Keys(ctx, buckets.Agents, namespace+".*")
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	names := []string{}
	for _, key := range keys {
		name := strings.TrimPrefix(key, namespace+".")
		// A definition that was deleted with other tools has left a mark in the bucket.
		_, _, err := Get(ctx, store, namespace, name)
		if err == nil {
			names = append(names, name)
		} else if !errors.Is(err, journal.ErrNotFound) {
			return nil, err
		}
	}
	return names, nil
}

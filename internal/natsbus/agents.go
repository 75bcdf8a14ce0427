package natsbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func agentSubject(namespace, name string) (string, error) {
	if !events.ValidToken(namespace) {
		return "", fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	if !events.ValidToken(name) {
		return "", fmt.Errorf("agent name %q is not of the form [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	return kvSubjectPrefix + agentBucket + "." + namespace + "." + name, nil
}

// PutAgent stores an agent definition; the bucket keeps the last few.
func (b *Bus) PutAgent(ctx context.Context, namespace, name string, definition []byte) error {
	subject, err := agentSubject(namespace, name)
	if err != nil {
		return err
	}
	if len(definition) > journal.MaxBody {
		return fmt.Errorf("agent %s: %d bytes, at most %d are allowed: %w", name, len(definition), journal.MaxBody, journal.ErrTooLarge)
	}
	err = b.put(ctx, subject, definition, func() error { return b.createBucket(ctx, agentsConfig(b.Replicas)) })
	if err != nil {
		return fmt.Errorf("agent %s: %w", name, err)
	}
	return nil
}

// Agent returns a definition, or ErrNotFound.
func (b *Bus) Agent(ctx context.Context, namespace, name string) ([]byte, error) {
	subject, err := agentSubject(namespace, name)
	if err != nil {
		return nil, err
	}
	msg, err := b.LastMessage(ctx, kvStreamPrefix+agentBucket, subject)
	for try := 1; errors.Is(err, journal.ErrNotFound); try++ {
		// What was stored a moment ago a replica may not have yet.
		lag := b.lacksNothing(ctx, kvStreamPrefix+agentBucket, subject, nil)
		if lag == nil {
			break
		}
		if err = lag; errors.Is(lag, api.ErrLag) && try < api.SilentPages && retry.Wait(ctx, api.ReadRetry) {
			msg, err = b.LastMessage(ctx, kvStreamPrefix+agentBucket, subject)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", name, err)
	}
	if api.Header(msg, kvOperation) != "" {
		return nil, fmt.Errorf("agent %s: %w", name, journal.ErrNotFound)
	}
	return msg.Data, nil
}

// AgentNames returns the names of a namespace's agents, sorted.
func (b *Bus) AgentNames(ctx context.Context, namespace string) ([]string, error) {
	if !events.ValidToken(namespace) {
		return nil, fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	prefix := kvSubjectPrefix + agentBucket + "." + namespace + "."
	names := []string{}
	err := b.Subjects(ctx, kvStreamPrefix+agentBucket, prefix+"*", func(subject string) {
		names = append(names, strings.TrimPrefix(subject, prefix))
	})
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	slices.Sort(names)
	return b.living(ctx, namespace, slices.Compact(names))
}

// living drops the names whose definition somebody deleted with other tools: the
// mark of it is still in the bucket.
func (b *Bus) living(ctx context.Context, namespace string, names []string) ([]string, error) {
	deleted := make(map[string]bool)
	var errs error
	for _, name := range names {
		if _, err := b.Agent(ctx, namespace, name); errors.Is(err, journal.ErrNotFound) {
			deleted[name] = true
		} else if err != nil {
			errs = err
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return deleted[name] }), errs
}

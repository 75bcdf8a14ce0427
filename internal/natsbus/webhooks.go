package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	webhookBucket   = "webhooks"
	webhookSubjects = kvSubjectPrefix + webhookBucket + "."
	// markTTL is how long the server keeps the mark of a deleted key.
	markTTL = time.Hour
)

var _ ports.Webhooks = (*Bus)(nil)

// webhooksConfig declares the bucket of webhooks, their progress and what they could not deliver.
func webhooksConfig(replicas int) jetstream.KeyValueConfig {
	cfg := bucketConfig(webhookBucket, "Moorebus: webhooks, with their secrets", replicas)
	cfg.LimitMarkerTTL = markTTL
	return cfg
}

// webhookSubject is the place of a key, which is two to four tokens.
func webhookSubject(key string) (string, error) {
	tokens := strings.Split(key, ".")
	for _, token := range tokens {
		if !events.ValidToken(token) {
			return "", fmt.Errorf("webhooks: %q is not a key: %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", key, token)
		}
	}
	if len(tokens) < 2 || len(tokens) > 4 {
		return "", fmt.Errorf("webhooks: %q is not a key of two to four tokens", key)
	}
	return webhookSubjects + key, nil
}

// WebhookValue returns what is kept under a key.
func (b *Bus) WebhookValue(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	subject, err := webhookSubject(key)
	if err != nil {
		return nil, 0, err
	}
	rec, err := b.HeadOn(ctx, kvStreamPrefix+webhookBucket, subject)
	if err == nil && len(rec.Body) == 0 {
		err = journal.ErrNotFound // it was deleted
	}
	if err != nil {
		return nil, 0, fmt.Errorf("webhooks: %s: %w", key, err)
	}
	return rec.Body, rec.Seq, nil
}

// WebhookValues calls take for the keys below a prefix.
func (b *Bus) WebhookValues(ctx context.Context, prefix string, take func(key string, value []byte, revision uint64)) error {
	there, err := b.isThere(ctx, webhookBucket)
	if err == nil && !there {
		err = fmt.Errorf("%w: there is no bucket %s: run `%s`", journal.ErrNotReady, webhookBucket, api.InitCommand)
	}
	if err == nil {
		err = b.eachKey(ctx, webhookBucket, prefix+".>", func(key string, rec journal.Record) { take(key, rec.Body, rec.Seq) })
	}
	if err != nil {
		return fmt.Errorf("webhooks: %s: %w", prefix, err)
	}
	return nil
}

// PutWebhookValue replaces what is kept under a key.
func (b *Bus) PutWebhookValue(ctx context.Context, key string, value []byte, revision uint64, lifetime time.Duration) (uint64, error) {
	if len(value) == 0 {
		return 0, errors.New("webhooks: a value is not empty")
	}
	msg := &nats.Msg{Data: value, Header: nats.Header{}}
	if lifetime > 0 {
		msg.Header.Set(headerTTL, lifetime.String())
	}
	return b.storeWebhook(ctx, key, revision, msg)
}

// DeleteWebhookValue removes a key.
func (b *Bus) DeleteWebhookValue(ctx context.Context, key string, revision uint64) error {
	msg := &nats.Msg{Header: nats.Header{}}
	msg.Header.Set(kvOperation, "DEL")
	msg.Header.Set(headerTTL, markTTL.String())
	_, err := b.storeWebhook(ctx, key, revision, msg)
	return err
}

func (b *Bus) storeWebhook(ctx context.Context, key string, revision uint64, msg *nats.Msg) (uint64, error) {
	subject, err := webhookSubject(key)
	if err != nil {
		return 0, err
	}
	msg.Subject = subject
	if revision == 0 { // the mark of a deleted key is nothing, too
		revision, err = b.markOn(ctx, webhookBucket, subject)
		if err != nil {
			return 0, fmt.Errorf("webhooks: %s: %w", key, err)
		}
	}
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(revision, 10))
	revision, err = b.putMsg(ctx, msg, func() error { return b.createBucket(ctx, webhooksConfig(b.Replicas)) })
	if err != nil {
		return 0, fmt.Errorf("webhooks: %s: %w", key, err)
	}
	return revision, nil
}

// markOn returns the revision of the mark that a deletion left on a subject of a bucket, or 0.
func (b *Bus) markOn(ctx context.Context, bucket, subject string) (uint64, error) {
	rec, err := b.HeadOn(ctx, kvStreamPrefix+bucket, subject)
	if errors.Is(err, journal.ErrNotFound) || errors.Is(err, journal.ErrNotReady) || err == nil && len(rec.Body) > 0 {
		return 0, nil
	}
	return rec.Seq, err
}

// KeepWebhooks allows to read and write webhooks, with their secrets.
func (g *Grants) KeepWebhooks() {
	g.read(kvStreamPrefix + webhookBucket)
	g.api("STREAM.MSG.GET." + kvStreamPrefix + webhookBucket)
	g.publish[webhookSubjects+">"] = true
}

package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The bucket of quotas has one key. So all quotas are read at once, and each change is held
// against all of them.
const (
	quotaBucket  = "quotas"
	quotaSubject = kvSubjectPrefix + quotaBucket + ".all"
)

func quotasConfig(replicas int) jetstream.KeyValueConfig {
	return bucketConfig(quotaBucket, "Moorebus: quotas of namespaces and agents", replicas)
}

// Quotas returns the document of all quotas.
func (b *Bus) Quotas(ctx context.Context) (document []byte, revision uint64, err error) {
	rec, err := b.HeadOn(ctx, kvStreamPrefix+quotaBucket, quotaSubject)
	if errors.Is(err, journal.ErrNotReady) {
		err = fmt.Errorf("no bucket %s: %w", quotaBucket, journal.ErrNotFound) // PutQuotas makes it
	}
	if err != nil {
		return nil, 0, fmt.Errorf("quotas: %w", err)
	}
	return rec.Body, rec.Seq, nil
}

// PutQuotas replaces the document, if it has the revision.
func (b *Bus) PutQuotas(ctx context.Context, document []byte, revision uint64) error {
	msg := nats.NewMsg(quotaSubject)
	msg.Data = document
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(revision, 10))
	if _, err := b.putMsg(ctx, msg, func() error { return b.createBucket(ctx, quotasConfig(b.Replicas)) }); err != nil {
		return fmt.Errorf("quotas: %w", err)
	}
	return nil
}

// StoreQuotas allows to read and write quotas.
func (g *Grants) StoreQuotas() {
	g.read(kvStreamPrefix + quotaBucket)
	g.api("STREAM.MSG.GET." + kvStreamPrefix + quotaBucket)
	g.publish[quotaSubject] = true
}

package ports

import (
	"context"
	"time"
)

// Webhooks keep what gateways know of webhooks: small values under keys. A key is two to four
// tokens with dots between them.
type Webhooks interface {
	// Born returns when the log was made, which tells it from every other log.
	Born(ctx context.Context) (time.Time, error)
	// WebhookValue returns what was put last under a key with its revision, or
	// [journal.ErrNotFound].
	WebhookValue(ctx context.Context, key string) (value []byte, revision uint64, err error)
	// WebhookValues calls take for every key below a prefix, which is one to three tokens, in no
	// order. A bus that was set up by a build without webhooks is [journal.ErrNotReady].
	WebhookValues(ctx context.Context, prefix string, take func(key string, value []byte, revision uint64)) error
	// PutWebhookValue replaces what has the revision and returns the new revision. A revision
	// of 0 says that there is nothing. If there is another one meanwhile, the error is
	// [journal.ErrConflict]. The value is forgotten after its lifetime; 0: never.
	PutWebhookValue(ctx context.Context, key string, value []byte, revision uint64, lifetime time.Duration) (uint64, error)
	// DeleteWebhookValue removes what has the revision, or returns [journal.ErrConflict].
	DeleteWebhookValue(ctx context.Context, key string, revision uint64) error
}

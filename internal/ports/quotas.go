package ports

import "context"

// Quotas keep the document of all quotas.
type Quotas interface {
	// Quotas returns what was put last with its revision, or [journal.ErrNotFound].
	Quotas(ctx context.Context) (document []byte, revision uint64, err error)
	// PutQuotas replaces what has the revision, 0 for nothing. If there is another revision
	// meanwhile, the error is [journal.ErrConflict].
	PutQuotas(ctx context.Context, document []byte, revision uint64) error
}

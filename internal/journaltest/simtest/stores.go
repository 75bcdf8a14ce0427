package simtest

import (
	"context"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const resultsPrefix = "results_"

// stores is everything beside the log. The journal's lock guards it.
type stores struct {
	blobs map[string][]byte
	// snapshots are JSON by run.
	snapshots map[string][]byte
	leases    map[ports.RoleKey]held
	buckets   bucketSet
}

func newStores() stores {
	return stores{
		blobs:     make(map[string][]byte),
		snapshots: make(map[string][]byte),
		leases:    make(map[ports.RoleKey]held),
		buckets:   newBuckets(),
	}
}

// locked runs f under the lock, unless the process is dead.
func (p *Process) locked(f func(s *stores)) error {
	if err := p.alive(); err != nil {
		return err
	}
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	f(&p.j.stores)
	return nil
}

// PutBlob stores data under its digest in the pool's bucket.
func (p *Process) PutBlob(_ context.Context, pool string, data []byte) (events.Ref, error) {
	if !events.ValidToken(pool) {
		return events.Ref{}, fmt.Errorf("store a result: pool %q is not a token", pool)
	}
	digest := events.Hash(data)
	ref := events.Ref{Bucket: resultsPrefix + pool, Key: digest, Size: len(data), SHA256: digest}
	return ref, p.locked(func(s *stores) { s.blobs[ref.Bucket+" "+ref.Key] = slices.Clone(data) })
}

// Blob returns what a reference points to, checked against its digest.
func (p *Process) Blob(_ context.Context, ref events.Ref) ([]byte, error) {
	var data []byte
	found := false
	if err := p.locked(func(s *stores) { data, found = s.blobs[ref.Bucket+" "+ref.Key] }); err != nil {
		return nil, err
	}
	if !found || len(data) != ref.Size {
		return nil, fmt.Errorf("result %s: %w", ref.Key, journal.ErrNotFound)
	}
	if events.Hash(data) != ref.SHA256 {
		return nil, fmt.Errorf("result %s: the reference says another digest", ref.Key)
	}
	return slices.Clone(data), nil
}

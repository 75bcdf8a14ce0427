package simtest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const resultsPrefix = "results_"

// stores is everything beside the log. The journal's lock guards it.
type stores struct {
	tools     map[string]announcement[events.ToolSpec]
	providers map[string]announcement[string]
	offers    journal.Offers
	claims    map[string][]journal.Claim
	said      uint64 // how often providers were announced
	blobs     map[string][]byte
	// snapshots are JSON by run.
	snapshots map[string][]byte
	leases    map[ports.RoleKey]held
	storage   storage
	buckets   bucketSet
}

// announcement is what an instance said, and when.
type announcement[T any] struct {
	at   time.Time
	what []T
	by   *Process
}

func (a announcement[T]) lives() bool { return time.Since(a.at) < journal.AnnouncementTTL }

func newStores() stores {
	return stores{
		tools:     make(map[string]announcement[events.ToolSpec]),
		providers: make(map[string]announcement[string]),
		claims:    make(map[string][]journal.Claim),
		blobs:     make(map[string][]byte),

		snapshots: make(map[string][]byte),
		leases:    make(map[ports.RoleKey]held),
		storage:   newStorage(),
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

// Announce says that an instance runs these tools.
func (p *Process) Announce(_ context.Context, pool, instance string, tools []events.ToolSpec) error {
	if err := journalcheck.Tools(pool, tools); err != nil {
		return err
	}
	return p.locked(func(s *stores) {
		s.tools[pool+" "+instance] = announcement[events.ToolSpec]{time.Now(), slices.Clone(tools), p}
	})
}

// AnnounceProviders says that an instance reaches these model providers, and what it
// means by names.
func (p *Process) AnnounceProviders(_ context.Context, instance string, names []string, claims ...journal.Claim) error {
	return p.locked(func(s *stores) {
		s.providers[instance] = announcement[string]{time.Now(), slices.Clone(names), p}
		s.said++
		s.claims[instance] = slices.Clone(claims)
		for i := range s.claims[instance] {
			c := &s.claims[instance][i]
			c.Instance, c.Seq = instance, s.said
		}
	})
}

// Withdraw takes back what this process announced for an instance of a pool.
func (p *Process) Withdraw(_ context.Context, pool, instance string) error {
	return p.locked(func(s *stores) {
		if a := s.tools[pool+" "+instance]; a.by == p {
			a.at = time.Time{}
			s.tools[pool+" "+instance] = a
		}
	})
}

// WithdrawProviders does so for the model providers of an instance.
func (p *Process) WithdrawProviders(_ context.Context, instance string) error {
	return p.locked(func(s *stores) {
		if s.providers[instance].by == p {
			delete(s.providers, instance)
			delete(s.claims, instance)
		}
	})
}

// Claims returns what every instance that lives means by its names.
func (p *Process) Claims(context.Context) ([]journal.Claim, error) {
	var all []journal.Claim
	err := p.locked(func(s *stores) {
		for _, instance := range slices.Sorted(maps.Keys(s.claims)) {
			if s.providers[instance].lives() {
				all = append(all, s.claims[instance]...)
			}
		}
	})
	return all, err
}

// Tools returns every tool that lives, sorted by name and pool.
func (p *Process) Tools(context.Context) ([]events.ToolSpec, error) {
	return p.tools(func(string) bool { return true })
}

// PoolTools returns the tools of one pool that live, sorted by name.
func (p *Process) PoolTools(_ context.Context, pool string) ([]events.ToolSpec, error) {
	return p.tools(func(of string) bool { return of == pool })
}

// tools returns the tools that live of the pools that are wanted.
func (p *Process) tools(wanted func(pool string) bool) ([]events.ToolSpec, error) {
	var all []events.ToolSpec
	err := p.locked(func(s *stores) {
		for _, key := range slices.Sorted(maps.Keys(s.tools)) {
			pool, _, _ := strings.Cut(key, " ")
			if !wanted(pool) || !s.tools[key].lives() {
				continue
			}
			for _, t := range s.tools[key].what {
				if !slices.ContainsFunc(all, func(o events.ToolSpec) bool { return o.Name == t.Name && reflect.DeepEqual(o, t) }) {
					all = append(all, t)
				}
			}
		}
	})
	slices.SortStableFunc(all, func(x, y events.ToolSpec) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Description, y.Description))
	})
	return all, err
}

// Offers returns what was put last.
func (p *Process) Offers(context.Context) (found journal.Offers, err error) {
	err = p.locked(func(s *stores) {
		found = s.offers
		found.First, found.Providers = maps.Clone(found.First), slices.Clone(found.Providers)
	})
	return found, err
}

// PutOffers replaces what Offers returned.
func (p *Process) PutOffers(_ context.Context, o journal.Offers) error {
	conflict := false
	err := p.locked(func(s *stores) {
		if conflict = o.Revision != s.offers.Revision; !conflict {
			s.offers = journal.Offers{First: maps.Clone(o.First), Providers: slices.Clone(o.Providers), Revision: o.Revision + 1}
		}
	})
	if conflict {
		return journal.ErrConflict
	}
	return err
}

// Providers returns the names of every provider that lives, sorted.
func (p *Process) Providers(context.Context) ([]string, error) {
	var all []string
	err := p.locked(func(s *stores) {
		for _, a := range s.providers {
			if a.lives() {
				all = append(all, a.what...)
			}
		}
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// Pools returns the pool default and every other one that was announced.
func (p *Process) Pools(context.Context) ([]journal.Pool, error) {
	living := map[string]bool{events.DefaultPool: false}
	err := p.locked(func(s *stores) {
		for key, a := range s.tools {
			name, _, _ := strings.Cut(key, " ")
			living[name] = living[name] || a.lives()
		}
	})
	var pools []journal.Pool
	for _, name := range slices.Sorted(maps.Keys(living)) {
		pools = append(pools, journal.Pool{Name: name, Living: living[name]})
	}
	return pools, err
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

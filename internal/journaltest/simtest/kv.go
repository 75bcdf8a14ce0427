package simtest

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var _ kv.Store = (*Process)(nil)

// bucketSet has the keys of each bucket. The journal's lock guards them.
type bucketSet struct {
	keys map[string]map[string]kept
	// revision counts all writes.
	revision uint64
	born     time.Time
	// stored is when the last value was put: each has a time of its own.
	stored time.Time
	// declared has the buckets of every installation. tries counts what was asked of others, so that what
	// is repeated meets another fate.
	declared map[string]bool
	tries    map[string]int
}

// ErrAway is what a bucket answers by [Faults.Bucket].
var ErrAway = errors.New("simulated fault: the bucket does not answer")

// away decides whether a bucket answers. The lock is held.
func (j *Journal) away(of kv.Bucket, what string) bool {
	b, key := &j.stores.buckets, of.Name+" "+what
	if b.declared[of.Name] || strings.HasPrefix(of.Name, buckets.ToolsPrefix) {
		return false
	}
	b.tries[key]++
	return j.opts.happens(j.opts.Faults.Bucket, "bucket", key, b.tries[key])
}

// write does what is asked of a bucket, unless it is away. Then it may do it all the same.
func (j *Journal) write(of kv.Bucket, what string, do func() error) error {
	if !j.away(of, what) {
		return do()
	}
	if j.opts.chance("bucket written", of.Name, what, j.stores.buckets.tries[of.Name+" "+what]) >= 0.5 {
		_ = do()
	}
	return ErrAway
}

// kept is what a key has until it ends, if that is not zero.
type kept struct {
	kv.Item
	ends time.Time
}

func newBuckets() bucketSet {
	b := bucketSet{keys: map[string]map[string]kept{}, born: time.Now().UTC(), declared: map[string]bool{}, tries: map[string]int{}}
	for _, of := range rows.Buckets([]string{events.DefaultPool}) {
		b.keys[of.Name], b.declared[of.Name] = map[string]kept{}, true
	}
	return b
}

// live returns what a bucket has, without what has ended.
func (b *bucketSet) live(of kv.Bucket) (map[string]kept, error) {
	keys, there := b.keys[of.Name]
	if !there {
		return nil, buckets.Missing(of.Name)
	}
	now := time.Now()
	maps.DeleteFunc(keys, func(_ string, k kept) bool { return !k.ends.IsZero() && !now.Before(k.ends) })
	return keys, nil
}

// inBucket does something with a bucket under the lock, unless the process is dead.
func (p *Process) inBucket(ctx context.Context, of kv.Bucket, do func(b *bucketSet, keys map[string]kept) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var failed error
	err := p.locked(func(s *stores) {
		var keys map[string]kept
		if keys, failed = s.buckets.live(of); failed == nil {
			failed = do(&s.buckets, keys)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// Get returns what is kept under a key.
func (p *Process) Get(ctx context.Context, of kv.Bucket, key string) (it kv.Item, err error) {
	if err := journalcheck.Key(key); err != nil {
		return it, err
	}
	err = p.inBucket(ctx, of, func(_ *bucketSet, keys map[string]kept) error {
		if p.j.away(of, "get "+key) {
			return ErrAway
		}
		k := keys[key]
		if len(k.Value) == 0 {
			it.Revision = k.Revision
			return journal.ErrNotFound
		}
		it = k.copy()
		return nil
	})
	return it, err
}

func (k kept) copy() kv.Item {
	it := k.Item
	it.Value, it.Header = slices.Clone(it.Value), maps.Clone(it.Header)
	return it
}

// Put keeps a value.
func (p *Process) Put(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	return p.put(ctx, of, it, func(kept) bool { return true })
}

// Update keeps a value if the key has the revision.
func (p *Process) Update(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	return p.put(ctx, of, it, func(has kept) bool {
		return has.Revision == it.Revision || it.Revision == 0 && len(has.Value) == 0
	})
}

func (p *Process) put(ctx context.Context, of kv.Bucket, it kv.Item, may func(has kept) bool) (revision uint64, err error) {
	if err := journalcheck.Key(it.Key); err != nil {
		return 0, err
	}
	if len(it.Value) > journal.MaxBody {
		return 0, journal.ErrTooLarge
	}
	if err := p.locked(func(s *stores) {
		if s.buckets.keys[of.Name] == nil {
			s.buckets.keys[of.Name] = map[string]kept{}
		}
	}); err != nil {
		return 0, err
	}
	err = p.inBucket(ctx, of, func(b *bucketSet, keys map[string]kept) error {
		return p.j.write(of, "put "+it.Key, func() error {
			if !may(keys[it.Key]) {
				return journal.ErrConflict
			}
			revision = b.put(of, keys, it)
			return nil
		})
	})
	return revision, err
}

// put keeps a value, later than any other one, and returns its revision.
func (b *bucketSet) put(of kv.Bucket, keys map[string]kept, it kv.Item) uint64 {
	b.revision++
	if now := time.Now().UTC(); now.After(b.stored) {
		b.stored = now
	} else {
		b.stored = b.stored.Add(1)
	}
	k := kept{Item: it}
	k.Item = k.copy()
	k.Revision, k.Stored, k.Lifetime = b.revision, b.stored, 0
	if lifetime := max(of.Lifetime, it.Lifetime); lifetime > 0 {
		k.ends = k.Stored.Add(lifetime)
	}
	keys[it.Key] = k
	return b.revision
}

// Delete removes what has the revision.
func (p *Process) Delete(ctx context.Context, of kv.Bucket, key string, revision uint64) error {
	if err := journalcheck.Key(key); err != nil {
		return err
	}
	return p.inBucket(ctx, of, func(b *bucketSet, keys map[string]kept) error {
		return p.j.write(of, "delete "+key, func() error {
			if keys[key].Revision != revision {
				return journal.ErrConflict
			}
			b.revision++
			keys[key] = kept{Item: kv.Item{Key: key, Revision: b.revision}} // the mark
			return nil
		})
	})
}

// Each yields what is kept under the keys that match, in the order in which it was put.
func (p *Process) Each(ctx context.Context, of kv.Bucket, pattern string) iter.Seq2[kv.Item, error] {
	return func(yield func(kv.Item, error) bool) {
		var all []kv.Item
		err := p.inBucket(ctx, of, func(_ *bucketSet, keys map[string]kept) error {
			if p.j.away(of, "each "+pattern) {
				return ErrAway
			}
			for key, k := range keys {
				if len(k.Value) > 0 && matches(pattern, key) {
					all = append(all, k.copy())
				}
			}
			return nil
		})
		if err != nil {
			yield(kv.Item{}, err)
			return
		}
		slices.SortFunc(all, func(x, y kv.Item) int { return int(x.Revision) - int(y.Revision) })
		for _, it := range all {
			if !yield(it, nil) {
				return
			}
		}
	}
}

// Keys returns the keys that match.
func (p *Process) Keys(ctx context.Context, of kv.Bucket, pattern string) ([]string, error) {
	all := []string{}
	err := p.inBucket(ctx, of, func(_ *bucketSet, keys map[string]kept) error {
		for key := range keys {
			if matches(pattern, key) {
				all = append(all, key)
			}
		}
		return nil
	})
	slices.Sort(all)
	return all, err
}

// Names returns the names of the buckets that begin with a prefix.
func (p *Process) Names(ctx context.Context, prefix string) (names []string, err error) {
	err = p.locked(func(s *stores) {
		for name := range s.buckets.keys {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
	})
	slices.Sort(names)
	return names, errors.Join(err, ctx.Err())
}

// ToolPools returns none: nobody assigns tools here.
func (p *Process) ToolPools(context.Context) (map[string]string, error) { return nil, p.alive() }

// matches reports whether a key matches a pattern, whose tokens may be * and the last one >.
func matches(pattern, key string) bool {
	want, has := strings.Split(pattern, "."), strings.Split(key, ".")
	for i, token := range want {
		if token == ">" {
			return len(has) > i
		}
		if i >= len(has) || token != "*" && token != has[i] {
			return false
		}
	}
	return len(want) == len(has)
}

// Born returns when the journal was made.
func (p *Process) Born(context.Context) (born time.Time, err error) {
	err = p.locked(func(s *stores) { born = s.buckets.born })
	return born, err
}

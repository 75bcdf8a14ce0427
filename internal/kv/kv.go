// Package kv is the port to small values in buckets, in which features store their data. The table
// of the buckets is in package buckets.
package kv

import (
	"context"
	"iter"
	"time"
)

// Store keeps small values in buckets, by key. A key is one token or several with dots between them; a
// pattern is one whose tokens may be *, and the last one >. All methods are safe for concurrent use.
//
// Errors are those of package journal: ErrNotReady, with one text, of a bucket that nobody has made
// (buckets.ErrMissing), ErrDenied, ErrTooLarge, ErrFull, or the bus's. After any other error than these
// a write may have happened.
type Store interface {
	// Get returns what is kept under a key, or ErrNotFound. With that, the item has the revision of the
	// mark of a deletion, or of an empty value, if there is one.
	Get(ctx context.Context, of Bucket, key string) (Item, error)
	// Put keeps a value, whatever the key has, and returns its revision. It makes a bucket that is
	// missing. A key with an empty value is listed by Keys alone.
	Put(ctx context.Context, of Bucket, it Item) (revision uint64, err error)
	// Update is Put if the key has the item's revision, 0: if it has nothing. Otherwise the error is
	// ErrConflict.
	Update(ctx context.Context, of Bucket, it Item) (revision uint64, err error)
	// Delete removes what has the revision, or returns ErrConflict.
	Delete(ctx context.Context, of Bucket, key string, revision uint64) error
	// Each yields what is kept under the keys that match, each at least once. Of what is changed
	// meanwhile it may yield the old, the new, or both. An error ends the sequence.
	Each(ctx context.Context, of Bucket, pattern string) iter.Seq2[Item, error]
	// Keys returns the keys that match, sorted. Some may have been deleted.
	Keys(ctx context.Context, of Bucket, pattern string) ([]string, error)
	// Names returns the names of the buckets that begin with a prefix, sorted.
	Names(ctx context.Context, prefix string) ([]string, error)
	// ToolPools returns the pools of the tools that the operator has assigned to one, by tool.
	ToolPools(ctx context.Context) (map[string]string, error)
	// MaxBody is the size of the largest value, in bytes: that of the largest event.
	MaxBody() int
	// Born returns when the installation was made, which tells it from every other one.
	Born(ctx context.Context) (time.Time, error)
}

// Item is what a key has.
type Item struct {
	Key   string
	Value []byte
	// Revision changes whenever the key does. It is never 0.
	Revision uint64
	// Stored is when it was put. Get, Each: set.
	Stored time.Time
	// Lifetime is after how long it is forgotten, in a bucket with [Bucket.Marks]; 0: never.
	// Put, Update: read.
	Lifetime time.Duration
	// Header stands beside the value. Only buckets with [Bucket.AnyReplica] give it back.
	Header map[string]string
}

// Bucket says what a bucket is made like.
type Bucket struct {
	// Name is unique, and made of letters, digits, - and _. About says what is in it.
	Name, About string
	// Keys is the pattern of its keys.
	Keys string
	// History is how many values of a key a backup has; 0: 1.
	History int
	// Lifetime is after how long all its values are forgotten; 0: never.
	Lifetime time.Duration
	// Marks says that values may have their own lifetimes, and that nothing stays of deleted keys.
	Marks bool
	// AnyReplica says that users of the bucket may not ask the leader of several replicas, so a
	// value may be read that was replaced a moment ago.
	AnyReplica bool
}

// MarkLifetime is how long something stays of a deleted key in a bucket with [Bucket.Marks].
const MarkLifetime = time.Hour

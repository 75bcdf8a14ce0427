package sharedlog

import (
	"cmp"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/pkg/journal"
)

// recent keeps the newest records of a shard, as long as they are not larger than
// bound altogether. A follower that has fallen behind a little reads them, and not
// the log: however many followers do, each record is in memory once. What is purged
// from the log meanwhile is still here.
type recent struct {
	bound int // in bytes

	mu sync.RWMutex
	// records is everything behind from, in order, and size what that takes.
	from    uint64
	records []journal.Record
	size    int
}

// recordSize is the size of a record without its body and its subject, in bytes.
const recordSize = 128

// begin forgets everything: what is added next comes right after a sequence number.
func (r *recent) begin(after uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from, r.records, r.size = after, nil, 0
}

// add appends a record, and drops the oldest ones beyond the bound.
func (r *recent) add(rec journal.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
	r.size += sizeOf(rec)
	for r.size > r.bound {
		oldest := r.records[0]
		r.from, r.size = oldest.Seq, r.size-sizeOf(oldest)
		r.records[0] = journal.Record{} // its body is free before the slice moves
		r.records = r.records[1:]
	}
}

func sizeOf(rec journal.Record) int { return recordSize + len(rec.Subject) + len(rec.Body) }

// lastSeq is the sequence number of the last record.
func (r *recent) lastSeq() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if n := len(r.records); n > 0 {
		return r.records[n-1].Seq
	}
	return r.from
}

// after returns records behind a sequence number that match, as many as may be
// taken at once, and up to where that is all. It reports false if what comes right
// behind that number is not kept.
func (r *recent) after(seq uint64, filter journal.Filter, bytes int) (some []journal.Record, seen uint64, kept bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if seq < r.from {
		return nil, seq, false
	}
	first, _ := slices.BinarySearchFunc(r.records, seq+1, func(rec journal.Record, seq uint64) int { return cmp.Compare(rec.Seq, seq) })
	seen = seq
	b := batch{bytes: bytes}
	for _, rec := range r.records[first:] {
		if seen = rec.Seq; filter.Match(rec.Subject) && b.add(rec) {
			break
		}
	}
	return b.records, seen, true
}

// batch is what a follower takes from the log, or from what is kept of it, at once.
type batch struct {
	bytes   int // the bound
	records []journal.Record
	size    int
}

// batchRecords is how many records are taken at once at most.
const batchRecords = 256

// add takes a record, and reports whether that is enough.
func (b *batch) add(rec journal.Record) (full bool) {
	b.records = append(b.records, rec)
	b.size += len(rec.Body)
	return len(b.records) >= batchRecords || b.size >= b.bytes
}

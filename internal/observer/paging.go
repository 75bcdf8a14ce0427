package observer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// A PageDone carries values up to valueBytes in all, and only tags beyond that: the
	// values are in the events that added them. Entries beyond doneBytes wait for the next
	// paging.
	valueBytes = 256 << 10
	doneBytes  = 640 << 10
)

// pager decides what leaves working memory, and stores it.
type pager struct {
	kv         kv.Store
	estimators tokens.Set
	logger     *slog.Logger
}

// sized is an entry with its size in tokens.
type sized struct {
	reducer.MemoryEntry
	tokens int
}

// measure returns the entries of working memory with their sizes, and the sum.
func (p pager) measure(mem *reducer.Memory) (all []sized, total int) {
	estimate, err := p.estimators.Named(mem.Config.TokenEstimator)
	if err != nil {
		estimate = tokens.ByBytes4
		p.logger.Warn("the token estimator is unknown, bytes/4 is used", "run", mem.RunID, "reason", err)
	}
	for _, entry := range mem.WorkingMemory {
		s := sized{entry, estimate(strings.Join(entry.Tags, " ")) + estimate(entry.Value)}
		all, total = append(all, s), total+s.tokens
	}
	return all, total
}

// decide returns the event out of Observing. While calls of the same reply are queued,
// nothing is compressed between them.
func (p pager) decide(mem *reducer.Memory) events.Payload {
	c := mem.Config
	reflects := c.ReflectEveryNSteps > 0 && mem.Step > 0 && mem.Step%c.ReflectEveryNSteps == 0
	if len(mem.Control.Queued) > 0 {
		return &events.Continue{}
	}
	pages, urgent := p.due(mem)
	switch {
	case pages && (urgent || !reflects):
		return &events.NeedsPaging{}
	case reflects:
		return &events.NeedsReflection{}
	}
	return &events.Continue{}
}

// due reports whether working memory is above a limit (a limit of 0 is off), and whether
// paging goes before a reflection. It does above the hard limit, and if a reflection is
// due at every step, since paging would never come otherwise.
func (p pager) due(mem *reducer.Memory) (pages, urgent bool) {
	c := mem.Config
	if c.PagingLimit <= 0 && c.HardLimit <= 0 || len(mem.WorkingMemory) == 0 {
		return false, false
	}
	_, size := p.measure(mem)
	above := func(limit int) bool { return limit > 0 && size > limit }
	hard := above(c.HardLimit)
	return hard || above(c.PagingLimit), hard || (c.ReflectEveryNSteps == 1 && c.HardLimit <= 0)
}

// choose returns the entries that leave working memory: those of the lowest priority until
// the rest takes at most 80 % of the paging limit, then the oldest until the rest is
// within the hard limit. A limit of 0 is off.
func choose(mem *reducer.Memory, entries []sized, size int) (paged, dropped []sized) {
	c := mem.Config
	if c.PagingLimit > 0 {
		slices.SortStableFunc(entries, func(a, b sized) int { return lowest(mem.Step, a, b) })
		paged, entries, size = takeFirst(entries, size, c.PagingLimit*8/10)
	}
	if c.HardLimit > 0 {
		slices.SortStableFunc(entries, func(a, b sized) int { return cmp.Compare(a.N, b.N) })
		dropped, _, _ = takeFirst(entries, size, c.HardLimit)
	}
	return paged, dropped
}

// lowest orders entries by priority, the lowest first. Entries of the reply that is being
// committed stay longest, since no model has seen them yet. Else entries loaded from
// storage leave before those that were added, older before newer, and of equal age larger
// before smaller.
func lowest(step int, a, b sized) int {
	return cmp.Or(
		before(a.Step < step, b.Step < step), before(a.Loaded, b.Loaded),
		cmp.Compare(a.N, b.N), cmp.Compare(b.tokens, a.tokens), slices.Compare(a.Tags, b.Tags),
	)
}

// before orders true before false.
func before(a, b bool) int {
	switch {
	case a && !b:
		return -1
	case b && !a:
		return 1
	}
	return 0
}

// takeFirst takes as many of the first entries as have to go until the rest is no larger
// than the goal.
func takeFirst(entries []sized, size, goal int) (gone, stay []sized, left int) {
	n := 0
	for ; n < len(entries) && size > goal; n++ {
		size -= entries[n].tokens
	}
	return entries[:n], entries[n:], size
}

// page plans Paging: it stores the entries and then removes them from working memory.
func (p pager) page(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	entries, size := p.measure(mem)
	paged, dropped := choose(mem, entries, size)
	done, stored := pageDone(paged, dropped)
	of := entrystore.Owner{Namespace: run.Namespace, Agent: mem.Control.StorageAgent}
	last := e.Failed.Handler >= effects.MaxHandlerFailures
	return func(ctx context.Context) worker.Result {
		for _, entry := range stored {
			if err := p.store(ctx, of, entry); err != nil {
				return p.failed(ctx, err, last)
			}
		}
		return worker.Done(done)
	}
}

// pageDone returns the event of a paging that fits into the log, and its entries.
func pageDone(paged, dropped []sized) (*events.PageDone, []reducer.MemoryEntry) {
	done := &events.PageDone{}
	var all []reducer.MemoryEntry
	size := 0
	for i, s := range slices.Concat(paged, dropped) {
		entry := events.Entry{Tags: s.Tags, Value: s.Value}
		if size+entrystore.EntryBytes(entry) > valueBytes {
			entry.Value = ""
		}
		if size += entrystore.EntryBytes(entry); size > doneBytes {
			break
		}
		all = append(all, s.MemoryEntry)
		if i < len(paged) {
			done.Paged = append(done.Paged, entry)
		} else {
			done.Dropped = append(done.Dropped, entry)
		}
	}
	return done, all
}

// store stores an entry, through an outage if need be. An entry that was loaded from
// storage is there already, maybe with a newer value; it is stored only if it is missing,
// as in an imported log. An entry that is there unchanged, after a crash, is not stored
// again, since another run may replace it meanwhile.
func (p pager) store(ctx context.Context, of entrystore.Owner, entry reducer.MemoryEntry) error {
	if p.kv == nil {
		return fmt.Errorf("this observer has no storage: %w", journal.ErrNotReady)
	}
	return worker.Outlast(ctx, func(ctx context.Context) error { return p.storeOnce(ctx, of, entry) }, nil)
}

func (p pager) storeOnce(ctx context.Context, of entrystore.Owner, entry reducer.MemoryEntry) error {
	storage := entrystore.New(p.kv)
	there, err := storage.Get(ctx, of, entry.Tags)
	switch {
	case err == nil && (entry.Loaded || there.Value == entry.Value):
		return nil
	case err != nil && !errors.Is(err, journal.ErrNotFound):
		return err
	}
	return storage.Save(ctx, of, entrystore.Observer, events.Entry{Tags: entry.Tags, Value: entry.Value})
}

// failed counts an attempt. If a retry cannot help, or this was the last, the run ends and
// says why: no entry leaves working memory without being stored.
func (p pager) failed(ctx context.Context, err error, last bool) worker.Result {
	if ctx.Err() != nil || (worker.Passing(err) && !last) {
		return worker.Fail(err)
	}
	return worker.Done(&events.FatalError{Outcome: events.Outcome{
		Code: codes.Storage, Message: "what has to leave working memory cannot be stored: " + strings.ToValidUTF8(err.Error(), "\uFFFD"),
	}})
}

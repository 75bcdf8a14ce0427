package observer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// CodeStorage is the code of a run's end because what was to be paged out of its
// working memory could not be stored.
const CodeStorage = "storage_failed"

const (
	// A PageDone carries values up to valueBytes, and tags beyond that: the values
	// stand in the events that added them. More than doneBytes wait for the next
	// paging.
	valueBytes = 256 << 10
	doneBytes  = 640 << 10
)

// pager decides what goes out of working memory, and stores it.
type pager struct {
	storage    journal.Storage
	estimators tokens.Set
	logger     *slog.Logger
}

// sized is an entry with its size in tokens.
type sized struct {
	reducer.MemoryEntry
	tokens int
}

// measure returns the entries of working memory with their sizes, and their sum.
func (p pager) measure(mem *reducer.Memory) (all []sized, total int) {
	estimate, err := p.estimators.Named(mem.Config.TokenEstimator)
	if err != nil {
		estimate = tokens.ByBytes4
		p.logger.Warn("the rule of thumb is used", "run", mem.RunID, "reason", err)
	}
	for _, entry := range mem.WorkingMemory {
		s := sized{entry, estimate(strings.Join(entry.Tags, " ")) + estimate(entry.Value)}
		all, total = append(all, s), total+s.tokens
	}
	return all, total
}

// decide says where the run goes from Observing. While calls of the same reply are
// still queued nothing is compressed between them.
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

// due reports whether working memory is above a limit, each of which is off at 0,
// and whether paging goes before a reflection: above the hard limit, and where a
// reflection is due at every step, so that nothing else would ever come.
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

// choose returns what goes out of working memory: entries of the lowest priority,
// until what stays takes at most 80 % of the paging limit, and then the oldest, until
// it takes no more than the hard limit. A limit of 0 is off.
func choose(mem *reducer.Memory, entries []sized, size int) (paged, dropped []sized) {
	c := mem.Config
	if c.PagingLimit > 0 {
		slices.SortStableFunc(entries, func(a, b sized) int { return lowest(mem.Step, a, b) })
		paged, entries, size = take(entries, size, c.PagingLimit*8/10)
	}
	if c.HardLimit > 0 {
		slices.SortStableFunc(entries, func(a, b sized) int { return cmp.Compare(a.N, b.N) })
		dropped, _, _ = take(entries, size, c.HardLimit)
	}
	return paged, dropped
}

// lowest orders entries by priority, the lowest first. What was put in by the reply
// that is being committed stays longest, since no model has been shown it yet. Else
// what was loaded from storage goes before what was added, what is older before what
// is newer, and of equal age what is larger.
func lowest(step int, a, b sized) int {
	return cmp.Or(
		before(a.Step < step, b.Step < step), before(a.Loaded, b.Loaded),
		cmp.Compare(a.N, b.N), cmp.Compare(b.tokens, a.tokens), slices.Compare(a.Tags, b.Tags),
	)
}

// before orders what is true before what is not.
func before(a, b bool) int {
	switch {
	case a && !b:
		return -1
	case b && !a:
		return 1
	}
	return 0
}

// take parts the first entries, as many as have to go, from those that stay.
func take(entries []sized, size, goal int) (gone, stay []sized, left int) {
	n := 0
	for ; n < len(entries) && size > goal; n++ {
		size -= entries[n].tokens
	}
	return entries[:n], entries[n:], size
}

// page is Paging: what goes is stored, and then left out of working memory.
func (p pager) page(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	entries, size := p.measure(mem)
	paged, dropped := choose(mem, entries, size)
	done, stored := pageDone(paged, dropped)
	of := journal.StorageOf{Namespace: run.Namespace, Agent: mem.Control.StorageAgent}
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

// pageDone is the event of a paging that fits into the log, and the entries that it
// is about.
func pageDone(paged, dropped []sized) (*events.PageDone, []reducer.MemoryEntry) {
	done := &events.PageDone{}
	var all []reducer.MemoryEntry
	size := 0
	for i, s := range slices.Concat(paged, dropped) {
		entry := events.Entry{Tags: s.Tags, Value: s.Value}
		if size+journal.EntryBytes(entry) > valueBytes {
			entry.Value = ""
		}
		if size += journal.EntryBytes(entry); size > doneBytes {
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

// store keeps an entry in storage, through an outage if need be. What was loaded
// from there is there already, maybe with a newer value, and is only stored where it
// is missing, in a log that was imported. What is there as it is, after a crash, is
// left alone, so that it does not replace what another run stored meanwhile.
func (p pager) store(ctx context.Context, of journal.StorageOf, entry reducer.MemoryEntry) error {
	if p.storage == nil {
		return fmt.Errorf("this observer has no storage: %w", journal.ErrNotReady)
	}
	return worker.Outlast(ctx, func(ctx context.Context) error { return p.storeOnce(ctx, of, entry) }, nil)
}

func (p pager) storeOnce(ctx context.Context, of journal.StorageOf, entry reducer.MemoryEntry) error {
	there, err := p.storage.StoredEntry(ctx, of, entry.Tags)
	switch {
	case err == nil && (entry.Loaded || there.Value == entry.Value):
		return nil
	case err != nil && !errors.Is(err, journal.ErrNotFound):
		return err
	}
	return p.storage.SaveEntry(ctx, of, journal.WrittenByObserver, events.Entry{Tags: entry.Tags, Value: entry.Value})
}

// failed counts an attempt. Where another one cannot help, or this was the last, the
// run ends and says why: nothing leaves working memory that is not stored.
func (p pager) failed(ctx context.Context, err error, last bool) worker.Result {
	if ctx.Err() != nil || (worker.Passing(err) && !last) {
		return worker.Fail(err)
	}
	return worker.Done(&events.FatalError{Outcome: events.Outcome{
		Code: CodeStorage, Message: "what has to leave working memory cannot be stored: " + strings.ToValidUTF8(err.Error(), "\uFFFD"),
	}})
}

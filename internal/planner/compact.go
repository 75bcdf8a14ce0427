package planner

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// compactable returns what can be done if the request that is due is too long for the
// model; empty: nothing, or other builds that may be at work on the run could not read it.
func (p *Planner) compactable(mem *reducer.Memory) reducer.Compaction {
	if !p.cfg.Store.Machine().Table().Writes(mem, events.TypeNeedsReflection) {
		return ""
	}
	return mem.Compactable()
}

// compact makes a request shorter that is too long for the model: the window first, which
// the failure narrows when it is folded, then the history. It is false if the failure is
// another one, or nothing is left to do.
func (c modelCall) compact(failure events.LLMAttemptFailed) (worker.Result, bool) {
	if failure.Kind != codes.KindContextTooLong {
		return worker.Result{}, false
	}
	switch c.compacts {
	case reducer.CompactedWindow:
		if c.before.TooLong >= maxFailures {
			return worker.Result{}, false
		}
		return worker.Retry(failure, time.Millisecond), true
	case reducer.CompactedSummary:
		failure.Key = c.key
		return worker.Done(&failure, &events.NeedsReflection{}), true
	}
	return worker.Result{}, false
}

// maxFailures is how often a request may have failed that is made once more with a narrower
// window: more often than [Policy] repeats one. A build that folds otherwise ends the run.
const maxFailures = 20

// maxShortened is how often a history is shortened further that is too long for the model
// which is to summarize it.
const maxShortened = 3

// summarizeAgain asks for a summary again: for one of less if the request for it was too
// long, and for the same one if the run cannot continue without it and the failure passes.
func (p *Planner) summarizeAgain(err error, billed *events.Usage, c modelCall) (worker.Result, bool) {
	var e *llm.Error
	if !errors.As(err, &e) {
		return worker.Result{}, false
	}
	delay, again := time.Millisecond, c.before.TooLong < maxShortened
	if e.Kind != llm.KindContextTooLong {
		delay, again = p.retry(e, c)
		again = again && c.compacted
	}
	if !again {
		return worker.Result{}, false
	}
	return worker.Retry(events.LLMAttemptFailed{Kind: string(e.Kind), Message: clean(e.Message), Usage: billed}, delay), true
}

// summarized returns the history as the model is to summarize it: all of it, or about a
// half, an eighth and so on if more was too long for the model.
func summarized(mem *reducer.Memory, failed reducer.Attempt) []reducer.HistoryEntry {
	level := failed.TooLong
	if mem.Control.Compacted == reducer.CompactedSummary {
		level++ // the request that was too long had it all
	}
	if level == 0 {
		return mem.History
	}
	sizes, total := sizesOf(mem.History)
	room := total >> (2*level - 1)
	return shortened(mem.History, sizes, room)
}

// leastKept is what is kept of a result or of arguments at least, in bytes.
const leastKept = 64

// shortened returns the history in about so many bytes: the longest results and arguments
// are cut first, and only then the oldest calls omitted.
func shortened(history []reducer.HistoryEntry, sizes []int, room int) []reducer.HistoryEntry {
	longest := 0
	for _, size := range sizes {
		longest = max(longest, size)
	}
	all := history
	for total := room + 1; total > room && longest > leastKept; sizes, total = sizesOf(all) {
		longest = max(longest/2, leastKept)
		all = make([]reducer.HistoryEntry, len(history))
		for i, entry := range history {
			entry.Observation = contextedit.Clip(longest, entry.Observation)
			entry.Tool.Arguments = contextedit.Clip(longest, entry.Tool.Arguments)
			all[i] = entry
		}
	}
	_, total := sizesOf(all)
	for len(all) > 1 && total > room {
		total -= sizes[0]
		all, sizes = all[1:], sizes[1:]
	}
	return all
}

// sizesOf returns how long each entry is as JSON, in bytes, and their sum.
func sizesOf(history []reducer.HistoryEntry) (sizes []int, total int) {
	sizes = make([]int, len(history))
	for i := range history {
		text, _ := json.Marshal(&history[i]) // strings and numbers always have JSON
		sizes[i] = len(text)
		total += len(text)
	}
	return sizes, total
}

// Package toolcall is what the actors of all pools have in common: the guard that stops
// calls without their approval, loans of calls, the form of results in the log, and the
// end of a batch.
package toolcall

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Outcome returns the event of a call's outcome.
func Outcome(o events.ToolOutcome, batch bool) events.Payload {
	switch {
	case batch:
		return &events.ToolCallResult{ToolOutcome: o}
	case o.Success:
		return &events.ToolSuccess{Outcome: &o}
	}
	return &events.ToolFailure{Outcome: &o}
}

// Usage returns the usage of the run that answered a call, for the call's outcome.
func Usage(t reducer.TotalUsage) *events.Usage {
	u := &events.Usage{Input: t.Input, Output: t.Output, Cached: t.Cached, Total: t.Total}
	if t.Cost > 0 {
		cost := t.Cost
		u.CostUSD = &cost
	}
	return u
}

// Join is the [worker.HandlerFunc] that ends a batch when all its results are in the log.
func Join(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
	p := Joined(mem)
	return func(context.Context) worker.Result { return worker.Done(p) }
}

// Follow is the [worker.Follow] of a process that runs calls: it ends batches, and leaves
// other effects to next.
func Follow(next worker.Follow) worker.Follow {
	return func(run events.Run, mem *reducer.Memory, e effects.Effect) (p events.Payload, source string) {
		if e.Kind == effects.KindJoin {
			return Joined(mem), ""
		}
		return next(run, mem, e)
	}
}

// Joined returns the event that ends a batch whose results are all in the memory.
func Joined(mem *reducer.Memory) events.Payload {
	if slices.ContainsFunc(mem.ParallelResults, func(r reducer.ToolResult) bool { return r.Success }) {
		return &events.ToolSuccess{}
	}
	return &events.ToolFailure{}
}

// NoCurrentCall is work that ends a run which has no call to run.
func NoCurrentCall(context.Context) worker.Result {
	return worker.Done(&events.FatalError{Outcome: events.Outcome{Code: codes.NoCurrentCall, Message: "there is no tool call to run"}})
}

// Names are the names of tools.
func Names(tools []events.ToolSpec) []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return names
}

// Results says what becomes of a tool's result before it reaches the log.
type Results struct {
	// MaxBytes is the largest result that is kept entirely in the event. Default 256 KiB.
	MaxBytes int
	// Secrets are texts that are replaced wherever they turn up, such as the
	// tools' own credentials. Texts of fewer than 6 bytes are refused: they
	// would turn up everywhere.
	Secrets []string
	// Patterns are regular expressions (RE2) whose matches are replaced.
	Patterns []string

	patterns []*regexp.Regexp
	maxBody  func() int
}

// shownHead and shownTail are how many bytes of a larger result the model sees.
const (
	shownHead = 16 << 10
	shownTail = 4 << 10
)

// redacted replaces a secret.
const redacted = "[REDACTED]"

// besideResult is the size of an event without its result, in bytes.
const besideResult = 64 << 10

// Prepare checks the settings and returns them with their defaults. Only the returned
// value may be used. maxBody is the largest body of an event that the log takes, in bytes.
func (r Results) Prepare(maxBody func() int) (Results, error) {
	r.maxBody = maxBody
	if r.MaxBytes <= 0 {
		r.MaxBytes = 256 << 10
	}
	if r.MaxBytes < shownHead+shownTail {
		return r, fmt.Errorf("results: MaxBytes must be at least %d, is %d", shownHead+shownTail, r.MaxBytes)
	}
	for _, s := range r.Secrets {
		if len(s) < 6 {
			return r, fmt.Errorf("results: a secret of %d bytes is too short: it would match everywhere; use at least 6 bytes", len(s))
		}
	}
	// The longest first, so that a secret within another one does not leave the rest of
	// it.
	r.Secrets = slices.Clone(r.Secrets)
	slices.SortFunc(r.Secrets, func(a, b string) int { return len(b) - len(a) })
	for _, p := range r.Patterns {
		re, err := regexp.Compile(p)
		if err != nil {
			return r, fmt.Errorf("results: pattern %q: %w", p, err)
		}
		r.patterns = append(r.patterns, re)
	}
	return r, nil
}

// Redact replaces the secrets in a text.
func (r Results) Redact(text string) string {
	for _, s := range r.Secrets {
		text = strings.ReplaceAll(text, s, redacted)
	}
	for _, re := range r.patterns {
		text = re.ReplaceAllLiteralString(text, redacted)
	}
	return text
}

// Fit returns a text as it is logged. A text that is too large goes to the object store of
// the pool, and its head and tail stay, with a marker between them. Without blobs it is
// only cut. The error says that the entire text could not be stored; the returned text is
// usable all the same.
func (r Results) Fit(ctx context.Context, blobs journal.Blobs, pool, text string) (string, *events.Ref, error) {
	// Escapes can make a text six times as long, and the event has to fit into the log.
	if len(text) <= r.MaxBytes && quotedSize(text) <= r.maxBody()-besideResult {
		return text, nil, nil
	}
	if blobs == nil {
		return shorten(text, ""), nil, nil
	}
	ref, err := blobs.PutBlob(ctx, pool, []byte(text))
	if err != nil {
		return shorten(text, ""), nil, err
	}
	return shorten(text, ref.Key), &ref, nil
}

// shorten returns head and tail of a text, with a marker between them that says how much
// is missing and where the complete text is.
func shorten(text, key string) string {
	head, tail := shownHead, len(text)-shownTail
	if head >= tail { // a short text whose escapes are long
		head, tail = len(text)/8, len(text)-len(text)/8
	}
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	where := "it was not kept"
	if key != "" {
		where = "the whole result is kept as " + key + "; " + events.ReservedPrefix + "result reads it"
	}
	return text[:head] + fmt.Sprintf("\n[moorebus: %d of %d bytes are left out here; %s]\n", tail-head, len(text), where) + text[tail:]
}

// quotedSize is the length of a text as a JSON string.
func quotedSize(text string) int {
	size := len(text) + 2
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			size++
		case c < 0x20:
			size += 5
		case c == 0xE2 && i+2 < len(text) && text[i+1] == 0x80 && text[i+2]|1 == 0xA9:
			size += 3 // U+2028 and U+2029, which are escaped too
		}
	}
	return size
}

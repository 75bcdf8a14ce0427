package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

const (
	// maxCalls is how many calls of a reply are taken.
	maxCalls = 256
	// maxInternal is how many of them may be calls of Moorebus' own tools. Each of those is a
	// separate event, and all are appended as one batch.
	maxInternal = 100
	// maxListed is how many of the calls that are not taken are kept, each with its answer.
	maxListed = 1000
)

// askedCall is a call of a reply. The code, if not empty, says why it cannot run whatever its
// tool and its arguments are, and reason is what the model reads.
type askedCall struct {
	events.Call
	code, reason string
}

// split names a reply's calls and separates those of Moorebus' own tools that are taken from the
// others. The calls that are too many are among the others, each with the reason.
func (ch *replyChecker) split(r llm.ToolCalls) (internal []events.Call, external []askedCall) {
	kept := r.Calls[:min(len(r.Calls), maxCalls+ch.listed)]
	unlisted := len(r.Calls) - len(kept)
	for i, call := range ch.name(kept) {
		asked, last := askedCall{Call: call}, i == len(kept)-1
		own := slices.ContainsFunc(ch.internal, func(t llm.Tool) bool { return t.Name == call.Name })
		switch {
		case i >= maxCalls:
			asked.tooMany(len(r.Calls), "calls", maxCalls)
			if last && unlisted > 0 {
				asked.reason += fmt.Sprintf("; the %d calls after it were not run either", unlisted)
			}
		case own && len(internal) == maxInternal:
			asked.tooMany(ch.countInternal(r.Calls), "calls of "+events.ReservedPrefix+"* tools", maxInternal)
		case own:
			internal = append(internal, call)
			continue
		case last && r.Cut() && !contextedit.Is(call.Name):
			asked.code, asked.reason = codeCutOff, "the reply was cut off before this call was complete: make it again, and say less"
		}
		external = append(external, asked)
	}
	return internal, external
}

// tooMany refuses a call that is beyond what is taken of one reply.
func (c *askedCall) tooMany(count int, what string, most int) {
	c.code = codeTooManyCalls
	c.reason = fmt.Sprintf("not run: the reply has %d %s, and the first %d are taken; make this call again in another reply", count, what, most)
}

// countInternal returns how many of the calls are of Moorebus' own tools.
func (ch *replyChecker) countInternal(calls []llm.Call) (count int) {
	for _, call := range calls {
		if slices.ContainsFunc(ch.internal, func(t llm.Tool) bool { return t.Name == call.Name }) {
			count++
		}
	}
	return count
}

// name gives the calls the ids that they have in the log.
func (ch *replyChecker) name(calls []llm.Call) []events.Call {
	known := ch.known
	named := make([]events.Call, len(calls))
	for i, c := range calls {
		provider := strings.ToValidUTF8(c.ID, "\uFFFD")
		named[i] = events.Call{
			ID: callname.New(known, provider), Name: strings.ToValidUTF8(c.Name, "\uFFFD"),
			Arguments: strings.ToValidUTF8(c.Arguments, "\uFFFD"),
		}
		if named[i].ID != provider && provider != "" {
			named[i].ProviderID = provider
		}
		known = append(known, named[i].ID)
	}
	return named
}

// Package spanid names the traces and spans of runs. Every id follows from the run's id and what
// the span stands for. So a role can send the id of a span along with a request, and whoever
// exports the spans later gives it the same id.
package spanid

import (
	"crypto/sha256"
	"strconv"

	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// TraceOf returns the trace of a run: that of the context in which it was started, or one of
// its own.
func TraceOf(run, traceParent string) tracecontext.TraceID {
	if trace, _, ok := tracecontext.Parse(traceParent); ok {
		return trace
	}
	sum := sha256.Sum256([]byte("moorebus trace" + run))
	return tracecontext.TraceID(sum[:16])
}

// Span returns the id of what a run did: kind says what it is, and which tells it from others
// of the kind.
func Span(run, kind, which string) tracecontext.SpanID {
	sum := sha256.Sum256([]byte("moorebus span\x00" + run + "\x00" + kind + "\x00" + which))
	return tracecontext.SpanID(sum[:8])
}

// Numbered is [Span] for what began with the run's n-th event.
func Numbered(run, kind string, n uint64) tracecontext.SpanID {
	return Span(run, kind, strconv.FormatUint(n, 10))
}

// Tool is the id of the span of a call.
func Tool(run, callID string) tracecontext.SpanID { return Span(run, "execute_tool", callID) }

// Chat is the id of the span of a request to a model. key is the effect's, and before counts
// its failures until then.
func Chat(run, key string, before reducer.Attempt) tracecontext.SpanID {
	// A failure counts in the first sum, or is a lost worker; a lost one may be forgotten when
	// another failure counts.
	counted := before.Total() - before.Lost
	return Span(run, "chat", key+"#"+strconv.Itoa(counted)+"."+strconv.Itoa(before.Lost))
}

// OfTool is the traceparent that a call of a run carries.
func OfTool(mem *reducer.Memory, callID string) string {
	return tracecontext.Format(TraceOf(mem.RunID, mem.Control.TraceParent), Tool(mem.RunID, callID))
}

// OfChat is the traceparent that a request to a model carries, see [Chat].
func OfChat(mem *reducer.Memory, key string, before reducer.Attempt) string {
	return tracecontext.Format(TraceOf(mem.RunID, mem.Control.TraceParent), Chat(mem.RunID, key, before))
}

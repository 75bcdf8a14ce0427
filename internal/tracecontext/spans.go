package tracecontext

import (
	"crypto/sha256"
	"strconv"
)

// Every id of a trace or a span follows from the run's id and what the span stands for. So a role
// can send the id of a span along with a request, and whoever exports the spans later gives it the
// same id.

// TraceOf returns the trace of a run: that of the context in which it was started, or one of
// its own.
func TraceOf(run, traceParent string) TraceID {
	if trace, _, ok := Parse(traceParent); ok {
		return trace
	}
	sum := sha256.Sum256([]byte("moorebus trace" + run))
	return TraceID(sum[:16])
}

// Span returns the id of what a run did: kind says what it is, and which tells it from others
// of the kind.
func Span(run, kind, which string) SpanID {
	sum := sha256.Sum256([]byte("moorebus span\x00" + run + "\x00" + kind + "\x00" + which))
	return SpanID(sum[:8])
}

// Numbered is [Span] for what began with the run's n-th event.
func Numbered(run, kind string, n uint64) SpanID {
	return Span(run, kind, strconv.FormatUint(n, 10))
}

// Tool is the id of the span of a call.
func Tool(run, callID string) SpanID { return Span(run, "execute_tool", callID) }

// Chat is the id of the span of a request to a model. key is the effect's. failed counts its
// failures until then, of which lost were lost workers.
func Chat(run, key string, failed, lost int) SpanID {
	// Lost workers count apart, since they may be forgotten when another failure counts.
	return Span(run, "chat", key+"#"+strconv.Itoa(failed-lost)+"."+strconv.Itoa(lost))
}

// In returns the traceparent of a span of a run.
func In(run, traceParent string, span SpanID) string {
	return Format(TraceOf(run, traceParent), span)
}

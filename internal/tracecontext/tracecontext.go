// Package tracecontext reads and writes W3C trace contexts, and passes them on to the requests
// of a call.
package tracecontext

import (
	"context"
	"encoding/hex"
	"regexp"
)

// TraceID and SpanID are ids as OpenTelemetry has them.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// form is that of version 00, and of the beginning of later versions.
var form = regexp.MustCompile("^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")

const (
	noTrace = "00000000000000000000000000000000"
	noSpan  = "0000000000000000"
)

// Valid reports whether a text is a traceparent.
func Valid(text string) bool {
	return form.MatchString(text) && text[:2] != "ff" && text[3:35] != noTrace && text[36:52] != noSpan
}

// Parse returns the ids of a traceparent, false if it is none.
func Parse(text string) (trace TraceID, span SpanID, ok bool) {
	if !Valid(text) {
		return trace, span, false
	}
	_, _ = hex.Decode(trace[:], []byte(text[3:35])) // the form was checked
	_, _ = hex.Decode(span[:], []byte(text[36:52]))
	return trace, span, true
}

// Format returns the traceparent of a sampled span.
func Format(trace TraceID, span SpanID) string {
	return "00-" + hex.EncodeToString(trace[:]) + "-" + hex.EncodeToString(span[:]) + "-01"
}

// Header is the name of the HTTP header, and of the key elsewhere.
const Header = "traceparent"

type key struct{}

// With returns a context whose requests carry the traceparent; an empty one changes nothing.
func With(ctx context.Context, traceParent string) context.Context {
	if traceParent == "" {
		return ctx
	}
	return context.WithValue(ctx, key{}, traceParent)
}

// From returns the traceparent that requests of the context carry, or nothing.
func From(ctx context.Context) string {
	text, _ := ctx.Value(key{}).(string)
	return text
}

// SetHeader sets the header of a request, unless the context has no traceparent.
func SetHeader(ctx context.Context, set func(name, value string)) {
	if text := From(ctx); text != "" {
		set(Header, text)
	}
}

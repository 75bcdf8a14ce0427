package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/moorebus/moorebus/internal/tracecontext"
)

// flags are the W3C flags of every span: sampled.
const flags = 1

// open is a span that has not ended.
type open struct {
	// key tells whether the run is still at it.
	key   string
	name  string
	op    string
	id    tracecontext.SpanID
	up    tracecontext.SpanID // zero: none
	begin time.Time
	attrs []*commonpb.KeyValue
	links []*tracepb.Span_Link
	evals []*tracepb.Span_Event
	kind  tracepb.Span_SpanKind
}

func (o *open) text(key attribute.Key, value string) {
	if value != "" {
		o.attrs = append(o.attrs, keyText(key, value))
	}
}

func (o *open) texts(key attribute.Key, values ...string) {
	list := &commonpb.ArrayValue{}
	for _, v := range values {
		list.Values = append(list.Values, &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}})
	}
	o.attrs = append(o.attrs, &commonpb.KeyValue{Key: string(key), Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: list}}})
}

func (o *open) number(key attribute.Key, value int64) {
	o.attrs = append(o.attrs, &commonpb.KeyValue{Key: string(key), Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: value}}})
}

func (o *open) real(key attribute.Key, value float64) {
	o.attrs = append(o.attrs, keyReal(key, value))
}

func keyText(key attribute.Key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: string(key), Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}

func keyReal(key attribute.Key, value float64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: string(key), Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: value}}}
}

func (o *open) link(trace tracecontext.TraceID, span tracecontext.SpanID, why string) {
	o.links = append(o.links, &tracepb.Span_Link{TraceId: trace[:], SpanId: span[:], Flags: flags, Attributes: []*commonpb.KeyValue{keyText(attrLink, why)}})
}

// end returns the span. failed is its error.type, empty for none, and message says more.
func (o *open) end(trace tracecontext.TraceID, at time.Time, failed, message string) *tracepb.Span {
	if o.begin.After(at) {
		o.begin = at // the clocks of two processes
	}
	s := &tracepb.Span{
		TraceId: trace[:], SpanId: o.id[:], Flags: flags, Name: o.name, Kind: o.kind,
		StartTimeUnixNano: uint64(o.begin.UnixNano()), EndTimeUnixNano: uint64(at.UnixNano()),
		Attributes: o.attrs, Links: o.links, Events: o.evals,
	}
	if o.kind == tracepb.Span_SPAN_KIND_UNSPECIFIED {
		s.Kind = tracepb.Span_SPAN_KIND_INTERNAL
	}
	if o.up != (tracecontext.SpanID{}) {
		s.ParentSpanId = o.up[:]
	}
	if failed != "" {
		s.Attributes = append(s.Attributes, keyText(attrError, failed))
		s.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: message}
	}
	return s
}

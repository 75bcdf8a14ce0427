// Package otlptest is a receiver of traces over OTLP, with HTTP and gRPC on real sockets. It keys
// spans by trace id and span id, as receivers do. For tests only.
package otlptest

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Receiver receives spans.
type Receiver struct {
	// HTTP and GRPC are its addresses, as OTEL_EXPORTER_OTLP_ENDPOINT wants them.
	HTTP, GRPC string
	// Close ends it.
	Close func()

	mu      sync.Mutex
	spans   map[string]*tracepb.Span
	headers []http.Header
	wrong   []string
	// requests counts those that were answered, received the spans of all of them.
	requests, received int
	refuse             func(request int) int
	after              func()
	unwanted           string
	collectorpb.UnimplementedTraceServiceServer
}

// Start starts a receiver, which ends with the test.
func Start(tb testing.TB) *Receiver {
	tb.Helper()
	r, err := Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Close)
	return r
}

// Open starts a receiver, which ends with Close.
func Open() (*Receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Receiver{spans: map[string]*tracepb.Span{}}
	web, server := httptest.NewServer(http.HandlerFunc(r.serve)), grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(listener) }() // it returns when the server stops
	r.HTTP, r.GRPC = web.URL, "http://"+listener.Addr().String()
	r.Close = func() { server.Stop(); web.CloseClientConnections(); web.Close() }
	return r, nil
}

// Refuse has requests answered with the HTTP status that fn returns for their number, from 1,
// unless that is 0. It also holds for gRPC, whose clients get the code Unavailable.
func (r *Receiver) Refuse(fn func(request int) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = fn
}

// Unwanted has requests that have a span of the name answered with 413, over gRPC as a message
// that is too large.
func (r *Receiver) Unwanted(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unwanted = name
}

// After has fn called when a request's spans are taken and before it is answered; nil: nothing.
func (r *Receiver) After(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.after = fn
}

func (r *Receiver) serve(w http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	var in collectorpb.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &in)
	}
	if err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(req.URL.Path, err), http.StatusBadRequest)
		return
	}
	if code := r.take(&in, req.Header.Clone()); code != 0 {
		w.Header().Set("Retry-After", "0")
		http.Error(w, "not now", code)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	answer, _ := proto.Marshal(&collectorpb.ExportTraceServiceResponse{})
	_, _ = w.Write(answer)
}

// Export is the method of gRPC.
func (r *Receiver) Export(ctx context.Context, in *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	header := http.Header{}
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		for _, v := range values {
			header.Add(name, v)
		}
	}
	switch r.take(in, header) {
	case 0:
	case http.StatusRequestEntityTooLarge:
		return nil, status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)")
	default:
		return nil, status.Error(codes.Unavailable, "not now")
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// take takes the spans of a request, or returns the status that refuses it.
func (r *Receiver) take(in *collectorpb.ExportTraceServiceRequest, header http.Header) int {
	code, after := r.keep(in, header)
	if after != nil {
		after()
	}
	return code
}

func (r *Receiver) keep(in *collectorpb.ExportTraceServiceRequest, header http.Header) (code int, after func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	r.headers = append(r.headers, header)
	if r.refuse != nil {
		if code := r.refuse(r.requests); code != 0 {
			return code, nil
		}
	}
	for _, rs := range in.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			if slices.ContainsFunc(ss.Spans, func(s *tracepb.Span) bool { return r.unwanted != "" && s.Name == r.unwanted }) {
				return http.StatusRequestEntityTooLarge, nil
			}
		}
	}
	for _, rs := range in.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				key := hex.EncodeToString(s.TraceId) + "/" + hex.EncodeToString(s.SpanId)
				if had := r.spans[key]; had != nil && !proto.Equal(had, s) {
					r.wrong = append(r.wrong, fmt.Sprintf("%s came as %v and as %v", key, had, s))
				}
				r.spans[key] = s
				r.received++
			}
		}
	}
	return 0, r.after
}

// Spans returns the spans by trace id and span id in hex, with a slash between them.
func (r *Receiver) Spans() map[string]*tracepb.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.spans)
}

// Received returns how many spans came, repeated ones included, and Requests how many requests.
func (r *Receiver) Received() int { r.mu.Lock(); defer r.mu.Unlock(); return r.received }

// Requests returns how many requests came, those that were refused included.
func (r *Receiver) Requests() int { r.mu.Lock(); defer r.mu.Unlock(); return r.requests }

// Wrong returns which spans came with different content under one id.
func (r *Receiver) Wrong() []string { r.mu.Lock(); defer r.mu.Unlock(); return r.wrong }

// Headers returns the headers, or the metadata, of every request.
func (r *Receiver) Headers() []http.Header { r.mu.Lock(); defer r.mu.Unlock(); return r.headers }

// Attr returns an attribute of a span as text, empty if it has none.
func Attr(s *tracepb.Span, key string) string {
	for _, kv := range s.Attributes {
		if kv.Key != key {
			continue
		}
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			return v.StringValue
		case *commonpb.AnyValue_IntValue:
			return fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_DoubleValue:
			return fmt.Sprint(v.DoubleValue)
		default:
			return fmt.Sprint(kv.Value)
		}
	}
	return ""
}

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The variables of OpenTelemetry that say where to send, without OTEL_EXPORTER_OTLP_ or
// OTEL_EXPORTER_OTLP_TRACES_ in front.
const (
	varAll      = "OTEL_EXPORTER_OTLP_"
	varTraces   = "OTEL_EXPORTER_OTLP_TRACES_"
	varEndpoint = "ENDPOINT"
	varProtocol = "PROTOCOL"
)

// ErrNoEndpoint says what to set.
var ErrNoEndpoint = errors.New("no receiver is named: set OTEL_EXPORTER_OTLP_ENDPOINT to the address of an OTLP receiver, such as http://localhost:4318 " +
	"(for gRPC http://localhost:4317 and OTEL_EXPORTER_OTLP_PROTOCOL=grpc), and OTEL_EXPORTER_OTLP_HEADERS to what it wants for authorization")

// firstPause and longestPause are between two tries of one request; then it is logged.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
	longestTry   = 30 * time.Second
)

// NewClient returns a client of the receiver that the variables of OpenTelemetry name: endpoint,
// protocol, headers, compression, timeout and certificates. It sends nothing yet. The errors say
// what to set.
func NewClient(getenv func(string) string) (otlptrace.Client, error) {
	first := func(name string) string {
		if value := getenv(varTraces + name); value != "" {
			return value
		}
		return getenv(varAll + name)
	}
	endpoint := first(varEndpoint)
	if endpoint == "" {
		return nil, ErrNoEndpoint
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s%s: %q is not an address such as http://localhost:4318", varAll, varEndpoint, endpoint)
	}
	switch protocol := first(varProtocol); protocol {
	case "", "http/protobuf", "http/json":
		again := otlptracehttp.RetryConfig{Enabled: true, InitialInterval: firstPause, MaxInterval: longestPause, MaxElapsedTime: longestTry}
		return otlptracehttp.NewClient(otlptracehttp.WithRetry(again)), nil
	case "grpc":
		again := otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: firstPause, MaxInterval: longestPause, MaxElapsedTime: longestTry}
		return otlptracegrpc.NewClient(otlptracegrpc.WithRetry(again)), nil
	default:
		return nil, errors.New(varAll + varProtocol + ": " + protocol + " is not known: use http/protobuf, http/json or grpc")
	}
}

// refused reports whether a receiver took a request and does not want some of its spans. They
// must not be sent again.
func refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OTLP partial success")
}

// wrongHTTP is what the client says of a status with which a receiver refuses what a request has.
var wrongHTTP = regexp.MustCompile(`^failed to send to \S+: (400|413|422) `)

// wrong reports whether a receiver refuses what a request has, or its size.
func wrong(err error) bool {
	if err == nil {
		return false
	}
	s := status.Convert(err)
	return s.Code() == codes.InvalidArgument || s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than max") ||
		wrongHTTP.MatchString(err.Error())
}

// Resource returns what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, by default the
// service moorebus.
func Resource(ctx context.Context) (*resourcepb.Resource, error) {
	r, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("moorebus")), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	pb := &resourcepb.Resource{}
	for _, kv := range r.Attributes() {
		if kv.Value.Type() == attribute.STRING {
			pb.Attributes = append(pb.Attributes, &commonpb.KeyValue{Key: string(kv.Key), Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: kv.Value.AsString()}}})
		}
	}
	return pb, nil
}

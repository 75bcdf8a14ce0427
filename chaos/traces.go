package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/moorebus/moorebus/internal/telemetry/otlptest"
)

// endpoint tells an exporter where to.
const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT="

// traces receive spans: those that the exporter sends while it is killed, and those of an export
// of the entire log that nobody disturbs.
type traces struct{ live, whole *otlptest.Receiver }

func newTraces() (*traces, error) {
	live, err := otlptest.Open()
	if err != nil {
		return nil, err
	}
	whole, err := otlptest.Open()
	if err != nil {
		live.Close()
		return nil, err
	}
	return &traces{live, whole}, nil
}

func (t *traces) close() {
	t.live.Close()
	t.whole.Close()
}

// awaitExporter waits until the exporter has noted where it begins.
func awaitExporter(ctx context.Context, b *bus) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		bucket, err := b.js.KeyValue(ctx, "positions_telemetry")
		if err == nil {
			_, err = bucket.Get(ctx, "traces")
		}
		if err == nil {
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the exporter notes no position: %w", err)
		}
	}
}

// sendTime is how long the exporter may need once nobody kills it: it waits for the lease of the
// one that was killed last.
const sendTime = 40 * time.Second

// check holds the spans to the log: what the exporter sent is what the undisturbed export sent,
// and that has what the log says.
func (t *traces) check(ctx context.Context, f *fleet, a *audit, r *report) error {
	out, code, err := f.outputWith(ctx, []string{endpoint + t.whole.HTTP}, "moorebus", "telemetry", "--from", "24h", "--once")
	if err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("moorebus telemetry --once: exit %d: %s", code, out))
	}
	whole := t.whole.Spans()
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	for len(t.live.Spans()) < len(whole) && pause(ctx, 50*time.Millisecond) {
	}
	live := t.live.Spans()
	for id, s := range whole {
		if live[id] == nil {
			r.found(fmt.Sprintf("the exporter did not send span %s of run %s", s.Name, otlptest.Attr(s, "moorebus.run")))
		} else if !proto.Equal(s, live[id]) {
			r.found(fmt.Sprintf("the exporter sent %v, and later it is %v", live[id], s))
		}
	}
	for id, s := range live {
		if whole[id] == nil {
			r.found(fmt.Sprintf("the exporter sent a span that does not follow from the log: %v", s))
		}
	}
	for _, text := range append(t.live.Wrong(), t.whole.Wrong()...) {
		r.found("span " + text)
	}
	a.checkSpans(whole)
	r.spans, r.sent = len(live), t.live.Received()
	return nil
}

// checkSpans holds the spans to the log: a turn for each run that ended, and one call of a tool
// for each that a worker answered.
func (a *audit) checkSpans(spans map[string]*tracepb.Span) {
	turns, calls := map[string]int{}, map[string]int{}
	for _, s := range spans {
		run := otlptest.Attr(s, "gen_ai.conversation.id")
		switch otlptest.Attr(s, "gen_ai.operation.name") {
		case "invoke_agent":
			turns[run]++
		case "execute_tool":
			calls[run+"/"+otlptest.Attr(s, "gen_ai.tool.call.id")]++
		}
	}
	for id, h := range a.runs {
		if h.end != nil && turns[id] == 0 {
			a.found("run " + id + " ended and has no span")
		}
		for call, f := range a.fates(h).calls {
			if n := calls[id+"/"+call]; f.success && !f.inherited && n != 1 {
				a.found(fmt.Sprintf("run %s: call %s of %s has %d spans\n%s", id, call, f.tool, n, h))
			}
		}
	}
}

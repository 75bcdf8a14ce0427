package telemetry_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/internal/telemetry"
	"github.com/moorebus/moorebus/internal/telemetry/otlptest"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/httptool"
)

const patience = time.Minute

// rig is a bus with agents, and a receiver.
type rig struct {
	t    *testing.T
	conn *nats.Conn
	bus  *natsbus.Bus
	*otlptest.Receiver
}

func newRig(t *testing.T, shards int) *rig {
	t.Helper()
	conn, err := nats.Connect(natstest.Start(t, natstest.Options{}).URL)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Shards: shards, Pools: []string{events.AgentsPool}}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return &rig{t: t, conn: conn, bus: bus, Receiver: otlptest.Start(t)}
}

// config exports to the receiver over a protocol.
func (r *rig) config(to *otlptest.Receiver, protocol string) telemetry.Config {
	r.t.Helper()
	endpoint := to.HTTP
	if protocol == "grpc" {
		endpoint = to.GRPC
	}
	r.t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint) // the exporters read it themselves
	env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
	client, err := telemetry.NewClient(func(name string) string { return env[name] })
	require.NoError(r.t, err)
	require.NoError(r.t, client.Start(r.t.Context()))
	r.t.Cleanup(func() { require.NoError(r.t, client.Stop(context.Background())) })
	resource, err := telemetry.Resource(r.t.Context())
	require.NoError(r.t, err)
	return telemetry.Config{
		Log: r.bus, Leases: r.bus, KV: r.bus, Machine: reducer.NewMachine(reducer.MachineOptions{}), Sender: client, Resource: resource,
		Delay: 10 * time.Millisecond,
	}
}

// backfill exports all of the log.
func (r *rig) backfill(to *otlptest.Receiver, protocol string, content *telemetry.Content) {
	r.t.Helper()
	cfg := r.config(to, protocol)
	cfg.From, cfg.Once, cfg.Content = time.Unix(1, 0), true, content
	require.NoError(r.t, telemetry.New(cfg).Run(r.t.Context()))
}

func (r *rig) run(b *agent.Builder, options ...agent.StartOption) string {
	r.t.Helper()
	a, err := b.Conn(r.conn).Build()
	require.NoError(r.t, err)
	run, err := a.Start(r.t.Context(), options...)
	require.NoError(r.t, err)
	_, err = run.Wait(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, run.Release())
	return run.ID()
}

// tree writes spans as lines of names, children below their parents, with what tells a test apart.
func tree(spans map[string]*tracepb.Span, trace string) string {
	below := map[string][]*tracepb.Span{}
	for key, s := range spans {
		if strings.HasPrefix(key, trace) {
			up := hex.EncodeToString(s.ParentSpanId)
			if up != "" && spans[trace+"/"+up] == nil {
				up = "elsewhere"
			}
			below[up] = append(below[up], s)
		}
	}
	var b strings.Builder
	var write func(up string, depth int)
	write = func(up string, depth int) {
		all := below[up]
		sort.Slice(all, func(i, j int) bool {
			if all[i].EndTimeUnixNano != all[j].EndTimeUnixNano {
				return all[i].EndTimeUnixNano < all[j].EndTimeUnixNano
			}
			return all[i].Name < all[j].Name
		})
		for _, s := range all {
			b.WriteString(strings.Repeat("  ", depth) + s.Name)
			if failed := otlptest.Attr(s, "error.type"); failed != "" {
				b.WriteString(" (" + failed + ")")
			}
			b.WriteString("\n")
			write(hex.EncodeToString(s.SpanId), depth+1)
		}
	}
	write("", 0)
	if len(below["elsewhere"]) > 0 {
		b.WriteString("elsewhere:\n")
		write("elsewhere", 1)
	}
	return b.String()
}

func named(spans map[string]*tracepb.Span, name string) (found []*tracepb.Span) {
	for _, key := range slices.Sorted(maps.Keys(spans)) {
		if spans[key].Name == name {
			found = append(found, spans[key])
		}
	}
	slices.SortFunc(found, func(a, b *tracepb.Span) int { return int(a.EndTimeUnixNano - b.EndTimeUnixNano) })
	return found
}

// contextOf is the traceparent that a span's request has to carry.
func contextOf(s *tracepb.Span) string {
	return tracecontext.Format(tracecontext.TraceID(s.TraceId), tracecontext.SpanID(s.SpanId))
}

// A run with a failed attempt, an HTTP tool, an approval and a sub-agent: the tree of its spans,
// their attributes, and the same ids in what models and tools were sent.
func TestSpansOfARun(t *testing.T) {
	r := newRig(t, 2)
	var mu sync.Mutex
	var asked, called []string
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		called = append(called, req.Header.Get("traceparent"))
	}))
	defer web.Close()
	lookup, err := httptool.New(tool.Definition{Name: "lookup", Description: "Looks up.", Schema: json.RawMessage(`{"type":"object"}`), Effect: tool.Pure, Risk: tool.High}, httptool.Options{URL: web.URL})
	require.NoError(t, err)
	script := scripted.NewMock(
		scripted.Ask("lookup", `{"secret":"s3cret"}`),
		scripted.Ask("helper", `{"task":"help"}`),
		llm.Text{Meta: llm.Meta{Confidence: 1, Model: "model-1", Usage: llm.Usage{Input: 10, Output: 5, Total: 15}}, Content: "All done."},
	)
	failed := false
	model := llm.CallerFunc(func(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		mu.Lock()
		asked = append(asked, tracecontext.From(ctx))
		again := failed
		failed = true
		mu.Unlock()
		if !again {
			return nil, &llm.Error{Kind: llm.KindOverloaded, Message: "come back"}
		}
		return script.Call(ctx, req, stream)
	})
	helper, err := agent.New("helper").LLM(scripted.NewMock(scripted.Say("helped"))).Conn(r.conn).Build()
	require.NoError(t, err)
	a, err := agent.New("boss").LLM(model).Model("model-1").Tool(lookup).Subagent(helper).
		Approval(events.Approval{Policy: events.ApproveTools, Tools: []string{"lookup"}}).Conn(r.conn).Build()
	require.NoError(t, err)
	run, err := a.Start(t.Context(), agent.Task("Do it."))
	require.NoError(t, err)
	for call := range run.Approvals(t.Context()) {
		require.NoError(t, call.Approve(t.Context()))
		break
	}
	_, err = run.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, run.Release())

	r.backfill(r.Receiver, "", nil)
	spans := r.Spans()
	root := named(spans, "invoke_agent boss")
	require.Len(t, root, 1)
	trace := hex.EncodeToString(root[0].TraceId)
	require.Equal(t, `invoke_agent boss
  plan
    chat model-1 (overloaded)
    chat model-1
  wait approval
  execute_tool lookup
  plan
    chat model-1
  execute_tool helper
    invoke_agent helper
      plan
        chat scripted
  plan
    chat model-1
`, tree(spans, trace))
	require.Len(t, spans, strings.Count(tree(spans, trace), "\n"), "one trace")

	require.Equal(t, run.ID(), otlptest.Attr(root[0], "gen_ai.conversation.id"))
	require.Equal(t, "10", otlptest.Attr(root[0], "gen_ai.usage.input_tokens"))
	require.Equal(t, "invoke_agent", otlptest.Attr(root[0], "gen_ai.operation.name"))
	require.Equal(t, "boss", otlptest.Attr(root[0], "gen_ai.agent.name"))
	require.Equal(t, "approved", otlptest.Attr(named(spans, "wait approval")[0], "moorebus.decision"))
	chats := named(spans, "chat model-1")
	require.Equal(t, "5", otlptest.Attr(chats[3], "gen_ai.usage.output_tokens"))
	require.Equal(t, tracepb.Status_STATUS_CODE_ERROR, chats[0].Status.Code)
	mu.Lock()
	var joined []string
	for _, c := range chats {
		joined = append(joined, contextOf(c))
	}
	require.Equal(t, joined, asked, "the requests to the model carry the ids of their spans")
	require.Equal(t, []string{contextOf(named(spans, "execute_tool lookup")[0])}, called)
	mu.Unlock()
	for _, s := range spans {
		require.LessOrEqual(t, s.StartTimeUnixNano, s.EndTimeUnixNano)
		text, err := json.Marshal(s)
		require.NoError(t, err)
		require.NotContains(t, string(text), "s3cret")
		require.NotContains(t, string(text), "Do it.")
		require.NotContains(t, string(text), "come back")
	}

	// Another process, over gRPC, makes the same spans.
	other := otlptest.Start(t)
	r.backfill(other, "grpc", nil)
	again := other.Spans()
	require.Len(t, again, len(spans))
	for key, s := range spans {
		require.True(t, proto.Equal(s, again[key]), key)
	}

	full := otlptest.Start(t)
	r.backfill(full, "", &telemetry.Content{Redact: []*regexp.Regexp{regexp.MustCompile("s3cret")}})
	spans = full.Spans()
	require.JSONEq(t, `{"secret":"[redacted]"}`, otlptest.Attr(named(spans, "execute_tool lookup")[0], "gen_ai.tool.call.arguments"))
	chats = named(spans, "chat model-1")
	require.JSONEq(t, `[{"role":"assistant","parts":[{"type":"text","content":"All done."}],"finish_reason":"stop"}]`, otlptest.Attr(chats[3], "gen_ai.output.messages"))
	require.Contains(t, otlptest.Attr(chats[1], "gen_ai.input.messages"), "Do it.")
	require.Equal(t, "come back", chats[0].Status.Message)
	for _, s := range spans {
		text, err := json.Marshal(s)
		require.NoError(t, err)
		require.NotContains(t, string(text), "s3cret")
	}
}

// A conversation is one invoke_agent for each message of the user, with the waits between them.
// A fork has a trace of its own and a link, and a hand-off ends one agent and begins the next.
func TestTurnsForksAndHandoffs(t *testing.T) {
	r := newRig(t, 1)
	chat, err := agent.New("talker").Chat().LLM(scripted.NewMock(scripted.Say("one"), scripted.Say("two"), scripted.Say("forked"))).Conn(r.conn).Build()
	require.NoError(t, err)
	run, err := chat.Start(t.Context(), agent.Task("hi"))
	require.NoError(t, err)
	_, err = run.Answer(t.Context())
	require.NoError(t, err)
	_, err = run.Send(t.Context(), "and?")
	require.NoError(t, err)
	_, err = run.Answer(t.Context())
	require.NoError(t, err)
	fork, err := run.Fork(t.Context(), 1)
	require.NoError(t, err)
	_, err = fork.Answer(t.Context())
	require.NoError(t, err)
	require.NoError(t, fork.Finish(t.Context()))
	require.NoError(t, fork.Release())
	require.NoError(t, run.Finish(t.Context()))
	require.NoError(t, run.Release())

	expert, err := agent.New("expert").LLM(scripted.NewMock(scripted.Say("expert's"))).Conn(r.conn).Build()
	require.NoError(t, err)
	r.run(agent.New("desk").LLM(scripted.NewMock(scripted.Ask("transfer_to_expert", `{}`))).Handoff(expert), agent.Task("ask"))

	r.backfill(r.Receiver, "", nil)
	spans := r.Spans()
	talk := named(spans, "invoke_agent talker")
	require.Len(t, talk, 3)
	forked := slices.IndexFunc(talk, func(s *tracepb.Span) bool { return len(s.Links) > 0 })
	require.GreaterOrEqual(t, forked, 0)
	own := talk[forked]
	talk = slices.Delete(talk, forked, forked+1)
	require.Equal(t, `invoke_agent talker
  plan
    chat scripted
wait user
invoke_agent talker
  plan
    chat scripted
wait user
`, tree(spans, hex.EncodeToString(talk[0].TraceId)))
	require.NotEqual(t, talk[0].TraceId, own.TraceId)
	require.Equal(t, talk[0].TraceId, own.Links[0].TraceId)
	require.Equal(t, talk[0].SpanId, own.Links[0].SpanId)
	require.Equal(t, "1", otlptest.Attr(own, "moorebus.forked_at"))

	desk, next := named(spans, "invoke_agent desk"), named(spans, "invoke_agent expert")
	require.Len(t, desk, 1)
	require.Len(t, next, 1, tree(spans, hex.EncodeToString(desk[0].TraceId)))
	require.Equal(t, desk[0].TraceId, next[0].TraceId)
	require.Equal(t, desk[0].SpanId, next[0].Links[0].SpanId)
	require.Equal(t, desk[0].EndTimeUnixNano, next[0].StartTimeUnixNano)
	require.Equal(t, `invoke_agent desk
  plan
    chat scripted
  execute_tool transfer_to_expert
invoke_agent expert
  plan
    chat scripted
`, tree(spans, hex.EncodeToString(desk[0].TraceId)))
}

// The position moves only behind what was acknowledged: a receiver that is full, and one that is
// not authorized, are waited for. Another exporter goes on from there.
func TestPosition(t *testing.T) {
	r := newRig(t, 1)
	cfg := r.config(r.Receiver, "")
	cfg.Once = true
	require.NoError(t, telemetry.New(cfg).Run(t.Context())) // keeps the log's end
	r.run(agent.New("a").LLM(scripted.NewMock(scripted.Say("one"))), agent.Task("x"))
	r.Refuse(func(request int) int {
		return map[int]int{1: http.StatusTooManyRequests, 2: http.StatusServiceUnavailable, 3: http.StatusUnauthorized}[request]
	})
	require.NoError(t, telemetry.New(cfg).Run(t.Context()))
	require.Equal(t, 4, r.Requests())
	require.Len(t, r.Spans(), 3)
	require.NoError(t, telemetry.New(cfg).Run(t.Context()))
	require.Equal(t, 4, r.Requests(), "nothing is new")

	cfg.Once = false
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- telemetry.New(cfg).Run(ctx) }()
	r.run(agent.New("b").LLM(scripted.NewMock(scripted.Say("two"))), agent.Task("x"))
	require.Eventually(t, func() bool { return len(r.Spans()) == 6 }, patience, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, 6, r.Received())

	at := time.Now()
	r.run(agent.New("c").LLM(scripted.NewMock(scripted.Say("three"))), agent.Task("x"))
	later := otlptest.Start(t)
	since := r.config(later, "")
	since.From, since.Once = at, true
	require.NoError(t, telemetry.New(since).Run(t.Context()))
	require.Len(t, later.Spans(), 3, "what ended before is left out")
	require.Len(t, named(later.Spans(), "invoke_agent c"), 1)
}

// A span that the receiver calls wrong or too large keeps no other one back.
func TestUnwantedSpan(t *testing.T) {
	r := newRig(t, 1)
	for _, name := range []string{"a", "b"} {
		r.run(agent.New(name).LLM(scripted.NewMock(scripted.Say("one"))), agent.Task("x"))
	}
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		to := otlptest.Start(t)
		to.Unwanted("invoke_agent a")
		r.backfill(to, protocol, nil)
		require.Len(t, to.Spans(), 5, protocol)
		require.Len(t, named(to.Spans(), "invoke_agent b"), 1)
	}
}

// Receivers know some providers by the names of the conventions only.
func TestProviderNames(t *testing.T) {
	for provider, name := range map[string]attribute.KeyValue{
		"openai": semconv.GenAIProviderNameOpenAI, "anthropic": semconv.GenAIProviderNameAnthropic, "deepseek": semconv.GenAIProviderNameDeepseek,
		"groq": semconv.GenAIProviderNameGroq, "gemini": semconv.GenAIProviderNameGCPGemini, "mistral": semconv.GenAIProviderNameMistralAI,
		"xai": semconv.GenAIProviderNameXAI,
	} {
		require.Equal(t, name.Value.AsString(), meter.ProviderName(provider))
	}
}

func TestNoReceiver(t *testing.T) {
	_, err := telemetry.NewClient(func(string) string { return "" })
	require.ErrorContains(t, err, "set OTEL_EXPORTER_OTLP_ENDPOINT")
	_, err = telemetry.NewClient(func(string) string { return "localhost:4318" })
	require.ErrorContains(t, err, `"localhost:4318" is not an address`) // the library would take it, and send elsewhere
	_, err = telemetry.NewClient(func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"}[name]
	})
	require.ErrorContains(t, err, "carrier pigeon is not known")
}

package events_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

const (
	runID    = "01932c07-89a1-7cde-8f01-23456789abcd"
	eventID  = "01932c07-89a2-7cde-9f01-23456789abcd"
	causeID  = "01932c07-89a0-7cde-af01-23456789abcd"
	prevHash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
)

var madeAt = time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)

func event(p events.Payload) *events.Event {
	return &events.Event{
		ID: eventID, Source: "moorebus/planner/p1", Run: runID, Time: madeAt, N: 2,
		From: events.Planning, To: events.Acting, Step: 1, Cause: causeID, Prev: prevHash, Data: p,
	}
}

func toolCall() *events.LLMToolCall {
	return &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
		Content:    "Let me look.",
		Calls:      []events.Call{{ID: "call_1", Name: "search", Arguments: `{"q": "a<b & c>d", "n": 1.0}`}},
		Confidence: 1, Model: "gpt-4o", Usage: events.Usage{Input: 10, Output: 5, Cached: 2, Total: 15},
	}}
}

// golden is the body of event(toolCall()), byte for byte, as CONTRACT 2 has it.
const golden = `{"specversion":"1.0","id":"` + eventID + `","type":"LlmToolCall","source":"moorebus/planner/p1",` +
	`"subject":"` + runID + `","time":"2026-03-04T05:06:07.000000008Z","datacontenttype":"application/json",` +
	`"dataschema":"moorebus/LlmToolCall/1","n":2,"from":"planning","to":"acting","step":1,"cause":"` + causeID + `",` +
	`"prev":"` + prevHash + `","data":{"content":"Let me look.","calls":[{"id":"call_1","name":"search",` +
	`"arguments":"{\"q\": \"a<b & c>d\", \"n\": 1.0}"}],"confidence":1,"model":"gpt-4o",` +
	`"usage":{"input":10,"output":5,"cached":2,"total":15}}}`

func TestGoldenBody(t *testing.T) {
	body, err := events.DefaultCodec().Encode(event(toolCall()))
	require.NoError(t, err)
	require.Equal(t, golden, string(body))

	e, err := events.DefaultCodec().Decode(body)
	require.NoError(t, err)
	require.Equal(t, toolCall(), e.Data)
	require.Equal(t, events.TypeLLMToolCall, e.Type())
	require.Equal(t, eventID, e.ID)
	require.Equal(t, "moorebus/planner/p1", e.Source)
	require.Equal(t, runID, e.Run)
	require.Equal(t, madeAt, e.Time)
	require.Equal(t, uint64(2), e.N)
	require.Equal(t, events.Planning, e.From)
	require.Equal(t, events.Acting, e.To)
	require.Equal(t, 1, e.Step)
	require.Equal(t, causeID, e.Cause)
	require.Equal(t, prevHash, e.Prev)
	again, err := events.DefaultCodec().Encode(e)
	require.NoError(t, err)
	require.Equal(t, golden, string(again))
}

func TestTheFirstEventNamesNoPredecessor(t *testing.T) {
	e := event(&events.Start{Mode: events.ModeTask})
	e.N, e.Cause, e.Prev = 1, "", ""
	body, err := events.DefaultCodec().Encode(e)
	require.NoError(t, err)
	for _, key := range []string{`"cause"`, `"prev"`, `"traceparent"`} {
		require.NotContains(t, string(body), key)
	}
	e.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	body, err = events.DefaultCodec().Encode(e)
	require.NoError(t, err)
	back, err := events.DefaultCodec().Decode(body)
	require.NoError(t, err)
	require.Equal(t, e.TraceParent, back.TraceParent)
}

// specTypes are the event types of SPEC section 2, CONTRACT section 2's Forked, the
// hand-off, and nothing else.
var specTypes = strings.Fields(`
	Start Forked LlmToolCall LlmParallelToolCalls LlmFinalAnswer LlmMessageComplete UserMessage LlmThought MaxSteps
	LowConfidence AnswerTooShort ToolBlacklisted ReplyInvalid HumanApprovalRequired HumanApproved HumanModified
	HumanApprovedParallel HumanRejected ApprovalExpired Closed ToolSuccess ToolFailure Continue NeedsReflection
	NeedsPaging ReflectDone PageDone FatalError BudgetExceeded Cancelled LlmAttemptFailed ToolCallDispatched
	ToolCallStarted ToolCallResult HumanDecision ContextWindowExpanded ToolCallsAddedToContext WorkingMemoryAdded
	WorkingMemoryRemoved StorageSaved StorageLoaded Paused Resumed BudgetRaised HandedOff`)

func TestTypesAreThoseOfTheSpecification(t *testing.T) {
	var names []string
	for _, typ := range events.Types() {
		names = append(names, string(typ))
	}
	require.ElementsMatch(t, specTypes, names)
}

func body(typ, data string) []byte {
	return []byte(strings.NewReplacer("LlmToolCall", typ).Replace(golden[:strings.Index(golden, `"data"`)]) + `"data":` + data + `}`)
}

func TestEveryTypeRoundTrips(t *testing.T) {
	codec := events.DefaultCodec()
	for _, typ := range specTypes {
		for _, data := range []string{
			`{}`,
			`{"new_key":{"deep":[1.0,1e400,{"x":null}]},"another":"<&>"}`,
			`{ "spaced" : [ 1 , 2 ] }`,
		} {
			in := body(typ, data)
			e, err := codec.Decode(in)
			require.NoError(t, err, "%s %s", typ, data)
			require.Equal(t, typ, string(e.Type()))
			out, err := codec.Encode(e)
			require.NoError(t, err)
			require.Equal(t, string(in), string(out))
		}
	}
}

func TestPayloadSize(t *testing.T) {
	codec := events.DefaultCodec()
	for typ, data := range full {
		e, err := codec.Decode(body(typ, data))
		require.NoError(t, err, typ)
		require.Equal(t, len(data), events.PayloadSize(e.Data), typ)
	}
	require.Zero(t, events.PayloadSize(&events.LLMToolCall{ToolCallReply: events.ToolCallReply{Confidence: math.NaN()}}))
}

// full has every documented field of CONTRACT section 2 set.
var full = map[string]string{
	"Start": `{"agent":{"name":"a","mode":"task","llm":{"provider":"scripted","script":[{"text":"hi"}]},` +
		`"config":{"max_steps":15,"max_retries":3,"confidence_threshold":0.4,"reflect_every_n_steps":5,"min_answer_length":5,` +
		`"parallel_tools":true,"context_window_size":0,"expand_context_window_size":10,"paging_limit":4096,"hard_limit":8192,` +
		`"thinking_log_entries":10,"max_iterations":1000,"max_depth":0},"budget":{"max_cost_usd":2,"max_wall_time":"30m0s"},` +
		`"approval":{"policy":"above","risk":"medium","expires":"24h0m0s"}},"agent_hash":"h","task":"t","mode":"task",` +
		`"task_type":"default","tools":[{"name":"search","description":"d","schema":{"type":"object"},"effect":"pure","pool":"web","risk":"low"}],` +
		`"table_hash":"th","parent":{"run":"` + runID + `","call_id":"c"}}`,
	"Forked":               `{"run":"` + runID + `","at":3,"hash":"h","patch":{"task":"x"}}`,
	"UserMessage":          `{"message_id":"m","content":"c"}`,
	"LlmParallelToolCalls": `{"content":"","calls":[{"id":"a","name":"x","arguments":"{}"},{"id":"a~1","name":"y","arguments":"","provider_id":"a"}],"refused":[{"id":"b","name":"z","arguments":"{","observation":"ERROR: no","code":"not_found"}],"queued":[{"id":"q","name":"x","arguments":""}],"confidence":0.5,"model":"m","usage":{"input":1,"output":2,"cached":0,"total":3,"cost_usd":0.25}}`,
	"LlmFinalAnswer":       `{"message_id":"m","content":"c","model":"m","usage":{"input":1,"output":2,"cached":0,"total":3}}`,
	"LlmMessageComplete":   `{"message_id":"m","content":"c","model":"m","usage":{"input":1,"output":2,"cached":0,"total":3}}`,
	"ToolBlacklisted":      `{"content":"c","calls":[{"id":"a","name":"x","arguments":"{}"}],"results":[{"id":"a","observation":"ERROR: no","code":"blacklisted"}],"usage":{"input":1,"output":2,"cached":0,"total":3}}`,
	"ReplyInvalid":         `{"content":"c","calls":[{"id":"a","name":"x","arguments":"{}"}],"results":[{"id":"a","observation":"ERROR: no","code":"invalid_arguments"}],"usage":{"input":1,"output":2,"cached":0,"total":3}}`,
	"LowConfidence":        `{"confidence":0.1,"usage":{"input":1,"output":2,"cached":0,"total":3}}`,
	"AnswerTooShort":       `{"content":"c","usage":{"input":1,"output":2,"cached":0,"total":3}}`,
	"LlmAttemptFailed":     `{"kind":"rate_limited","message":"m","retry_after_ms":5,"usage":{"input":1,"output":0,"cached":0,"total":1}}`,
	"ToolCallDispatched":   `{"call_id":"a"}`,
	"ToolCallStarted":      `{"call_id":"a"}`,
	"ToolCallResult":       `{"call_id":"a","success":true,"observation":"SUCCESS: 1","code":"ok","latency_ms":3,"ref":{"bucket":"b","key":"k","size":9,"sha256":"s"}}`,
	"ToolSuccess":          `{"call_id":"a","success":true,"observation":"SUCCESS: 1","code":"ok","latency_ms":3}`,
	"ToolFailure":          `{"call_id":"a","success":false,"observation":"ERROR: 1","code":"exit","latency_ms":3}`,
	"HumanApprovalRequired": `{"content":"c","calls":[{"id":"a","name":"x","arguments":"{}"}],"confidence":1,"model":"m","usage":{"input":1,"output":2,"cached":0,"total":3},` +
		`"requests":[{"call_id":"a","tool":"x","arguments":"{}","risk":"high","reason":"r"}],"deadline":"2026-01-01T00:00:00Z"}`,
	"HumanDecision":  `{"call_id":"a","decision":"modified","arguments":"{}","reason":"r","by":"b"}`,
	"HumanApproved":  `{"call_id":"a","decision":"approved","by":"b"}`,
	"HumanModified":  `{"call_id":"a","decision":"modified","arguments":"{}","by":"b"}`,
	"HumanRejected":  `{"call_id":"a","decision":"rejected","reason":"r","by":"b"}`,
	"MaxSteps":       `{"code":"max_steps","message":"max steps 15 exceeded"}`,
	"BudgetExceeded": `{"code":"budget","message":"m"}`,
	"FatalError":     `{"code":"poison","message":"m","type":"LlmToolCall","n":4,"reason":"r"}`,
	"Cancelled":      `{"reason":"r","by":"b"}`,
	"Closed":         `{"reason":"r","by":"b"}`,
	"Paused":         `{"reason":"r","by":"b"}`,
	"BudgetRaised":   `{"budget":{"max_total_tokens":5},"by":"b"}`,
}

// TestDocumentedFields decodes every documented field and encodes the payload
// afresh: nothing may be lost, renamed or moved.
func TestDocumentedFields(t *testing.T) {
	codec := events.DefaultCodec()
	for typ, data := range full {
		e, err := codec.Decode(body(typ, data))
		require.NoError(t, err, typ)
		fresh := *event(e.Data) // without the bytes that the decoder kept
		out, err := codec.Encode(&fresh)
		require.NoError(t, err, typ)
		require.Equal(t, string(body(typ, data)), string(out), typ)
	}
}

func TestUnknownAttributesAndFieldsSurvive(t *testing.T) {
	in := strings.Replace(golden, `"data":{`, `"tenant":"a<b","xnum":1.0,"xobj":{"k":[1, 2]},"data":{"later":{"x":1e400,"y":[{"z":null}]},`, 1)
	e, err := events.DefaultCodec().Decode([]byte(in))
	require.NoError(t, err)
	out, err := events.DefaultCodec().Encode(e)
	require.NoError(t, err)
	require.Equal(t, in, string(out))

	// They also survive when they stand elsewhere, and a change of the envelope.
	moved := strings.Replace(golden, `{"specversion"`, `{"tenant":"a","specversion"`, 1)
	e, err = events.DefaultCodec().Decode([]byte(moved))
	require.NoError(t, err)
	e.N = 7
	out, err = events.DefaultCodec().Encode(e)
	require.NoError(t, err)
	require.Contains(t, string(out), `"tenant":"a"`)
	require.Contains(t, string(out), `"n":7`)
}

func TestAReplacedPayloadIsEncodedAfresh(t *testing.T) {
	e, err := events.DefaultCodec().Decode([]byte(golden))
	require.NoError(t, err)
	other := toolCall()
	other.Content = "other"
	e.Data = other
	out, err := events.DefaultCodec().Encode(e)
	require.NoError(t, err)
	require.Contains(t, string(out), `"content":"other"`)
	require.NotContains(t, string(out), "Let me look.")
}

func TestTextIsVerbatim(t *testing.T) {
	arguments := "{\"a\": 1.0, \"b\": 1e400, \"c\": 12345678901234567890, \"html\": \"<&>\", \"ls\": \"\u2028\u2029\", \"e\": \"🚌\", \"esc\": \"\\u0041\\n\"} trailing"
	p := toolCall()
	p.Calls[0].Arguments, p.Content = arguments, "tab\t nul\x00 \"quoted\" \\ 🚌 \u2028"
	b, err := events.DefaultCodec().Encode(event(p))
	require.NoError(t, err)
	require.Contains(t, string(b), `<&>`, "escapes that only HTML needs make the log longer")
	require.Contains(t, string(b), "🚌")
	e, err := events.DefaultCodec().Decode(b)
	require.NoError(t, err)
	require.Equal(t, p, e.Data)
}

func TestTimesAreUTC(t *testing.T) {
	e := event(toolCall())
	e.Time = time.Date(2026, 3, 4, 6, 36, 7, 8, time.FixedZone("", 90*60))
	b, err := events.DefaultCodec().Encode(e)
	require.NoError(t, err)
	require.Equal(t, golden, string(b))

	back, err := events.DefaultCodec().Decode([]byte(strings.Replace(golden, "2026-03-04T05:06:07.000000008Z", "2026-03-04T06:36:07.000000008+01:30", 1)))
	require.NoError(t, err)
	require.Equal(t, madeAt, back.Time)
	require.Equal(t, time.UTC, back.Time.Location())
}

func TestUnknownTypeIsNamed(t *testing.T) {
	_, err := events.DefaultCodec().Decode(body("OrderShipped", `{}`))
	var unknown *events.UnknownTypeError
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, events.Type("OrderShipped"), unknown.Type)
	require.ErrorContains(t, err, "OrderShipped")
	_, err = events.DefaultCodec().Encode(event(&events.Custom{Name: "OrderShipped"}))
	require.ErrorAs(t, err, &unknown)
	_, err = events.DefaultCodec().Encode(&events.Event{})
	require.Error(t, err)
}

func TestCustomTypes(t *testing.T) {
	codec, err := events.NewCodec(events.TypeSpec{Type: "OrderShipped"})
	require.NoError(t, err)
	in := body("OrderShipped", `{"order":1.0,"to":["x",{"y":"<&>"}]}`)
	e, err := codec.Decode(in)
	require.NoError(t, err)
	custom, ok := e.Data.(*events.Custom)
	require.True(t, ok)
	require.Equal(t, events.Type("OrderShipped"), custom.Name)
	require.JSONEq(t, `{"order":1.0,"to":["x",{"y":"<&>"}]}`, string(custom.Data))
	out, err := codec.Encode(e)
	require.NoError(t, err)
	require.Equal(t, string(in), string(out))

	fresh, err := codec.Encode(event(&events.Custom{Name: "OrderShipped", Data: custom.Data}))
	require.NoError(t, err)
	require.Equal(t, string(in), string(fresh))
	empty, err := codec.Encode(event(&events.Custom{Name: "OrderShipped"}))
	require.NoError(t, err)
	require.Equal(t, string(body("OrderShipped", `{}`)), string(empty))
	_, err = codec.Encode(event(&events.Custom{Name: "OrderShipped", Data: json.RawMessage(`{"x":`)}))
	require.ErrorContains(t, err, "OrderShipped")
}

func TestNewCodecRefuses(t *testing.T) {
	lift := []events.Upcaster{func(d json.RawMessage) (json.RawMessage, error) { return d, nil }}
	for name, specs := range map[string][]events.TypeSpec{
		"no name":            {{Type: ""}},
		"a slash":            {{Type: "a/b"}},
		"a space":            {{Type: "a b"}},
		"a built-in":         {{Type: events.TypeStart}},
		"a custom one twice": {{Type: "X"}, {Type: "X"}},
		"a built-in twice":   {{Type: events.TypeStart, Upcasters: lift}, {Type: events.TypeStart, Upcasters: lift}},
	} {
		_, err := events.NewCodec(specs...)
		require.Error(t, err, name)
	}
}

// messageV1 and messageV2 are how UserMessage might have looked before: first
// {id, text}, then {id, content}, now {message_id, content}.
func upcasters() []events.Upcaster {
	rename := func(from, to string) events.Upcaster {
		return func(old json.RawMessage) (json.RawMessage, error) {
			var m map[string]json.RawMessage
			if err := json.Unmarshal(old, &m); err != nil {
				return nil, err
			}
			m[to] = m[from]
			delete(m, from)
			return json.MarshalIndent(m, "", " ")
		}
	}
	return []events.Upcaster{rename("text", "content"), rename("id", "message_id")}
}

func TestUpcastersLiftOldPayloads(t *testing.T) {
	codec, err := events.NewCodec(events.TypeSpec{Type: events.TypeUserMessage, Upcasters: upcasters()})
	require.NoError(t, err)
	for version, data := range map[string]string{
		"1": `{"id":"m1","text":"hello","extra":1.0}`,
		"2": `{"id":"m1","content":"hello","extra":1.0}`,
		"3": `{"message_id":"m1","content":"hello","extra":1.0}`,
	} {
		in := strings.Replace(string(body("UserMessage", data)), "UserMessage/1", "UserMessage/"+version, 1)
		e, err := codec.Decode([]byte(in))
		require.NoError(t, err, version)
		require.Equal(t, &events.UserMessage{MessageID: "m1", Content: "hello"}, e.Data, version)
		out, err := codec.Encode(e)
		require.NoError(t, err)
		require.Contains(t, string(out), "moorebus/UserMessage/3")
		require.Contains(t, string(out), `"extra":1.0`, "what this version does not know survives lifting")
		again, err := codec.Decode(out)
		require.NoError(t, err)
		require.Equal(t, e.Data, again.Data)
	}
	newer := strings.Replace(string(body("UserMessage", `{}`)), "UserMessage/1", "UserMessage/4", 1)
	_, err = codec.Decode([]byte(newer))
	require.ErrorContains(t, err, "version 4 is newer than 3")
	_, err = events.DefaultCodec().Decode([]byte(newer))
	require.ErrorContains(t, err, "version 4 is newer than 1")
}

func TestAnUpcasterThatFailsIsNamed(t *testing.T) {
	for name, lift := range map[string]events.Upcaster{
		"an error":   func(json.RawMessage) (json.RawMessage, error) { return nil, json.Unmarshal([]byte("?"), new(int)) },
		"no JSON":    func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage("?"), nil },
		"no object":  func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage("null"), nil },
		"no payload": func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage(`{"content":1}`), nil },
	} {
		codec, err := events.NewCodec(events.TypeSpec{Type: events.TypeUserMessage, Upcasters: []events.Upcaster{lift}})
		require.NoError(t, err)
		_, err = codec.Decode(body("UserMessage", `{}`))
		require.ErrorContains(t, err, "UserMessage", name)
	}
}

func TestHash(t *testing.T) {
	sum := sha256.Sum256([]byte(golden))
	require.Equal(t, hex.EncodeToString(sum[:]), events.Hash([]byte(golden)))
	require.Equal(t, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", events.Hash(nil))
}

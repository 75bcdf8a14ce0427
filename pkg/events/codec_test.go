package events_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
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
	body, err := new(events.Codec).Encode(event(toolCall()))
	require.NoError(t, err)
	require.Equal(t, golden, string(body))

	e, err := new(events.Codec).Decode(body)
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
	again, err := new(events.Codec).Encode(e)
	require.NoError(t, err)
	require.Equal(t, golden, string(again))
}

func TestTheFirstEventNamesNoPredecessor(t *testing.T) {
	e := event(&events.Start{Mode: events.ModeTask})
	e.N, e.Cause, e.Prev = 1, "", ""
	body, err := new(events.Codec).Encode(e)
	require.NoError(t, err)
	for _, key := range []string{`"cause"`, `"prev"`, `"traceparent"`} {
		require.NotContains(t, string(body), key)
	}
	e.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	body, err = new(events.Codec).Encode(e)
	require.NoError(t, err)
	back, err := new(events.Codec).Decode(body)
	require.NoError(t, err)
	require.Equal(t, e.TraceParent, back.TraceParent)
}

func body(typ, data string) []byte {
	return []byte(strings.NewReplacer("LlmToolCall", typ).Replace(golden[:strings.Index(golden, `"data"`)]) + `"data":` + data + `}`)
}

func TestEveryTypeRoundTrips(t *testing.T) {
	codec := new(events.Codec)
	for _, typ := range events.Types() {
		for _, data := range []string{
			`{}`,
			`{"new_key":{"deep":[1.0,1e400,{"x":null}]},"another":"<&>"}`,
			`{ "spaced" : [ 1 , 2 ] }`,
		} {
			in := body(string(typ), data)
			e, err := codec.Decode(in)
			require.NoError(t, err, "%s %s", typ, data)
			require.Equal(t, typ, e.Type())
			out, err := codec.Encode(e)
			require.NoError(t, err)
			require.Equal(t, string(in), string(out))
		}
	}
}

func TestPayloadSize(t *testing.T) {
	codec := new(events.Codec)
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
	codec := new(events.Codec)
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
	e, err := new(events.Codec).Decode([]byte(in))
	require.NoError(t, err)
	out, err := new(events.Codec).Encode(e)
	require.NoError(t, err)
	require.Equal(t, in, string(out))

	// They also survive when they stand elsewhere, and a change of the envelope.
	moved := strings.Replace(golden, `{"specversion"`, `{"tenant":"a","specversion"`, 1)
	e, err = new(events.Codec).Decode([]byte(moved))
	require.NoError(t, err)
	e.N = 7
	out, err = new(events.Codec).Encode(e)
	require.NoError(t, err)
	require.Contains(t, string(out), `"tenant":"a"`)
	require.Contains(t, string(out), `"n":7`)
}

func TestAReplacedPayloadIsEncodedAfresh(t *testing.T) {
	e, err := new(events.Codec).Decode([]byte(golden))
	require.NoError(t, err)
	other := toolCall()
	other.Content = "other"
	e.Data = other
	out, err := new(events.Codec).Encode(e)
	require.NoError(t, err)
	require.Contains(t, string(out), `"content":"other"`)
	require.NotContains(t, string(out), "Let me look.")
}

func TestTextIsVerbatim(t *testing.T) {
	arguments := "{\"a\": 1.0, \"b\": 1e400, \"c\": 12345678901234567890, \"html\": \"<&>\", \"ls\": \"\u2028\u2029\", \"e\": \"🚌\", \"esc\": \"\\u0041\\n\"} trailing"
	p := toolCall()
	p.Calls[0].Arguments, p.Content = arguments, "tab\t nul\x00 \"quoted\" \\ 🚌 \u2028"
	b, err := new(events.Codec).Encode(event(p))
	require.NoError(t, err)
	require.Contains(t, string(b), `<&>`, "escapes that only HTML needs make the log longer")
	require.Contains(t, string(b), "🚌")
	e, err := new(events.Codec).Decode(b)
	require.NoError(t, err)
	require.Equal(t, p, e.Data)
}

func TestTimesAreUTC(t *testing.T) {
	e := event(toolCall())
	e.Time = time.Date(2026, 3, 4, 6, 36, 7, 8, time.FixedZone("", 90*60))
	b, err := new(events.Codec).Encode(e)
	require.NoError(t, err)
	require.Equal(t, golden, string(b))

	back, err := new(events.Codec).Decode([]byte(strings.Replace(golden, "2026-03-04T05:06:07.000000008Z", "2026-03-04T06:36:07.000000008+01:30", 1)))
	require.NoError(t, err)
	require.Equal(t, madeAt, back.Time)
	require.Equal(t, time.UTC, back.Time.Location())
}

func TestUnknownTypeIsNamed(t *testing.T) {
	_, err := new(events.Codec).Decode(body("OrderShipped", `{}`))
	require.ErrorContains(t, err, `unknown event type "OrderShipped"`)
	_, err = new(events.Codec).Encode(event(&events.Custom{Name: "OrderShipped"}))
	require.ErrorContains(t, err, `unknown event type "OrderShipped"`)
	_, err = new(events.Codec).Encode(&events.Event{})
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

	unversioned := strings.Replace(string(in), "moorebus/OrderShipped/1", "", 1)
	e, err = codec.Decode([]byte(unversioned))
	require.NoError(t, err, "an empty dataschema is the first version's, only here")
	out, err = codec.Encode(e)
	require.NoError(t, err)
	require.Equal(t, string(in), string(out))
	lifted, err := events.NewCodec(events.TypeSpec{Type: "OrderShipped", Upcasters: upcasters()})
	require.NoError(t, err)
	_, err = lifted.Decode([]byte(unversioned))
	require.ErrorContains(t, err, "dataschema")
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
	_, err = new(events.Codec).Decode([]byte(newer))
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

// values are the golden body's attributes as they stand there.
var values = map[string]string{
	"specversion": `"1.0"`, "id": `"` + eventID + `"`, "type": `"LlmToolCall"`, "source": `"moorebus/planner/p1"`,
	"subject": `"` + runID + `"`, "time": `"2026-03-04T05:06:07.000000008Z"`, "datacontenttype": `"application/json"`,
	"dataschema": `"moorebus/LlmToolCall/1"`, "n": `2`, "from": `"planning"`, "to": `"acting"`, "step": `1`,
	"cause": `"` + causeID + `"`, "prev": `"` + prevHash + `"`, "data": "",
}

// with replaces an attribute's value in the golden body; an empty value takes
// the attribute out.
func with(t *testing.T, attr, value string) string {
	t.Helper()
	if attr == "data" {
		head, _, _ := strings.Cut(golden, `,"data":`)
		if value == "" {
			return head + "}"
		}
		return head + `,"data":` + value + "}"
	}
	old := `"` + attr + `":` + values[attr]
	require.Equal(t, 1, strings.Count(golden, old), attr)
	if value == "" {
		if attr == "specversion" {
			return strings.Replace(golden, old+",", "", 1)
		}
		return strings.Replace(golden, ","+old, "", 1)
	}
	return strings.Replace(golden, old, `"`+attr+`":`+value, 1)
}

func refused(t *testing.T, body, names string) {
	t.Helper()
	e, err := new(events.Codec).Decode([]byte(body))
	require.Error(t, err, body)
	require.Nil(t, e)
	require.Contains(t, err.Error(), names, "the error names what is wrong")
}

func TestMissingAndDoubleAttributes(t *testing.T) {
	for attr := range values {
		t.Run(attr, func(t *testing.T) {
			if attr != "cause" && attr != "prev" {
				refused(t, with(t, attr, ""), attr+": is missing")
			}
			value := values[attr]
			if value == "" {
				value = "{}"
			}
			refused(t, golden[:len(golden)-1]+`,"`+attr+`":`+value+`}`, attr+": stands there twice")
			for _, wrong := range []string{`null`, `true`, `[]`, `[1]`} {
				refused(t, with(t, attr, wrong), attr+": ")
			}
			switch attr {
			case "n", "step":
				refused(t, with(t, attr, `"1"`), attr+": ")
			case "data":
				refused(t, with(t, attr, `"{}"`), attr+": ")
				refused(t, with(t, attr, `1`), attr+": ")
			default:
				refused(t, with(t, attr, `{"a":1}`), attr+": ")
				refused(t, with(t, attr, `1`), attr+": ")
			}
		})
	}
	refused(t, golden[:len(golden)-1]+`,"later":1,"later":1}`, "later: stands there twice")
}

func TestMalformedValues(t *testing.T) {
	upper := strings.ToUpper(eventID)
	v4 := strings.Replace(eventID, "-7cde-", "-4cde-", 1)
	for attr, bad := range map[string][]string{
		"specversion":     {`"0.3"`, `""`, `1.0`},
		"id":              {`""`, `"x"`, `"` + upper + `"`, `"` + v4 + `"`, `"` + eventID + ` "`, `"` + strings.Replace(eventID, "-9", "-c", 1) + `"`, `"` + strings.ReplaceAll(eventID, "-", "0") + `"`},
		"subject":         {`""`, `"run"`, `"` + strings.ToUpper(runID) + `"`, `"{` + runID + `}"`},
		"cause":           {`""`, `"x"`, `"` + upper + `"`},
		"prev":            {`""`, `"abc"`, `"` + strings.ToUpper(prevHash) + `"`, `"` + prevHash + `0"`, `"` + prevHash[:63] + `g"`, `"` + prevHash[:31] + `zz` + prevHash[:31] + `"`},
		"source":          {`""`},
		"time":            {`""`, `"yesterday"`, `"2026-03-04"`, `"2026-13-04T05:06:07Z"`, `"2026-03-04T05:06:07"`, `"0000-01-01T00:00:00+10:00"`, `"9999-12-31T23:59:59-10:00"`},
		"datacontenttype": {`"text/plain"`, `""`},
		"dataschema":      {`""`, `"moorebus/LlmToolCall"`, `"moorebus/LlmToolCall/"`, `"moorebus/LlmToolCall/0"`, `"moorebus/LlmToolCall/01"`, `"moorebus/LlmToolCall/-1"`, `"moorebus/LlmToolCall/x"`, `"moorebus/Start/1"`, `"other/LlmToolCall/1"`},
		"n":               {`0`, `00`, `01`, `+1`, `-1`, `1.5`, `1.0`, `1e2`, `18446744073709551616`},
		"step":            {`-1`, `-0`, `00`, `01`, `1.0`, `1e3`, `4294967296`},
		"from":            {`""`, `"Planning"`, `"a.b"`, `"*"`},
		"to":              {`""`, `"Acting"`, `"a b"`, `">"`},
		"type":            {`""`, `"llmtoolcall"`, `"Nope"`},
		"data":            {`[]`, `{"calls":{}}`, `{"usage":{"input":"1"}}`, `{"confidence":"high"}`, `{"confidence":1e400}`},
	} {
		for _, value := range bad {
			t.Run(fmt.Sprintf("%s=%s", attr, value), func(t *testing.T) { refused(t, with(t, attr, value), attr) })
		}
	}
}

func TestWhatIsNoObject(t *testing.T) {
	for _, bad := range []string{
		"", " ", "x", "null", "1", `"text"`, "[]", "[" + golden + "]", golden[:len(golden)-1], golden + "}", golden + golden,
		golden + " x", "\ufeff" + golden, `{"n":}`, `{n:1}`, `{'n':1}`, `{"n":1,}`, `{"n":01}`, `{"n":NaN}`,
	} {
		_, err := new(events.Codec).Decode([]byte(bad))
		require.Error(t, err, bad)
	}
	refused(t, strings.Replace(golden, "Let me look.", "Let \xff look.", 1), "not valid UTF-8")
	refused(t, strings.Replace(golden, "Let me look.", "Let \xed\xa0\x80 look.", 1), "not valid UTF-8")
	refused(t, golden+" {}", "not valid JSON")
	for _, bad := range []string{
		strings.Replace(golden, `,"n"`, ` "n"`, 1), strings.Replace(golden, `,"n"`, `,,"n"`, 1), strings.Replace(golden, `"n":`, `"n"`, 1),
		strings.Replace(golden, `"n":`, `"n"::`, 1), strings.Replace(golden, `"n":`, `n:`, 1), strings.Replace(golden, `"n":2`, `"n":2 3`, 1),
		strings.Replace(golden, `"n":2`, `"n":`, 1), golden[:len(golden)-1] + ",}", golden[:len(golden)-1] + `,"x`, "{" + golden,
		strings.Replace(golden, `{"spec`, `{,"spec`, 1), golden[:len(golden)-1] + ",\"a\x01\":1}", golden[:len(golden)-1] + `,"x":tru}`,
		golden[:len(golden)-1] + `,"x":[1}]}`, golden[:len(golden)-1] + `,"a\q":1}`, golden[:len(golden)-2] + "]}",
	} {
		refused(t, bad, "")
		require.False(t, json.Valid([]byte(bad)))
	}
	refused(t, "[]", "not a JSON object")

	// White space around and inside is JSON's own matter.
	_, err := new(events.Codec).Decode([]byte(" \n" + strings.ReplaceAll(golden, `,"n":`, " ,\n\t\"n\" : ") + "\r\n"))
	require.NoError(t, err)
	_, err = new(events.Codec).Decode([]byte(strings.Replace(golden, `"step"`, `"\u0073tep"`, 1)))
	require.NoError(t, err, "an escaped key is the same key")
}

func TestDeepNestingIsRefusedNotFollowed(t *testing.T) {
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	_, err := new(events.Codec).Decode([]byte(with(t, "data", `{"x":`+deep+`}`)))
	require.Error(t, err)
}

func TestCheckID(t *testing.T) {
	require.NoError(t, events.CheckID(runID))
	for _, bad := range []string{"", "0", strings.ToUpper(runID), runID + "0", runID[:35], "urn:uuid:" + runID, strings.Replace(runID, "-7", "-1", 1), strings.Replace(runID, "-8f", "-7f", 1), strings.Replace(runID, "0193", "g193", 1)} {
		require.EqualError(t, events.CheckID(bad), "not a lower-case UUIDv7", bad)
	}
}

// FuzzDecode: decoding never panics, and what decodes is encoded to something
// that decodes to the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(golden))
	for typ, data := range full {
		f.Add(body(typ, data))
	}
	f.Add(body("Continue", `{"x":1e400}`))
	f.Add([]byte(golden[:len(golden)-1] + `,"later":[1,{"\u0061":"\ud800"}]}`))
	f.Add([]byte(`{"n":1}`))
	codec := new(events.Codec)
	f.Fuzz(func(t *testing.T, in []byte) {
		kept := bytes.Clone(in)
		e, err := codec.Decode(in)
		if !bytes.Equal(kept, in) {
			t.Fatal("decoding changed its argument")
		}
		if err != nil {
			return
		}
		if !json.Valid(in) {
			t.Fatal("what is no JSON was decoded")
		}
		out, err := codec.Encode(e)
		if err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
		back, err := codec.Decode(out)
		if err != nil {
			t.Fatalf("what was encoded does not decode: %v\n%s", err, out)
		}
		if !reflect.DeepEqual(e.Data, back.Data) {
			t.Fatalf("data changed: %#v, %#v", e.Data, back.Data)
		}
		again, err := codec.Encode(back)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("encoding is not stable: %v\n%s\n%s", err, out, again)
		}
	})
}

// A Start whose models have a form that older builds cannot read has a version that they
// leave alone; every other Start stays of version 1.
func TestVersionOfTheModelsForm(t *testing.T) {
	for models, version := range map[string]string{
		`"gpt-4o"`: "1", `"a/b"`: "1", `["openai/gpt-4o","local/llama"]`: "2", `{"provider":"local","model":"llama"}`: "2",
	} {
		var a events.Agent
		require.NoError(t, json.Unmarshal([]byte(`{"models":{"default":`+models+`}}`), &a))
		for _, p := range []events.Payload{&events.Start{Agent: a}, &events.Forked{Run: runID, Agent: &a}} {
			e := event(p)
			body, err := new(events.Codec).Encode(e)
			require.NoError(t, err)
			schema := `"dataschema":"moorebus/` + string(e.Type()) + "/"
			require.Contains(t, string(body), schema+version+`"`)
			again, err := new(events.Codec).Decode(body)
			require.NoError(t, err)
			require.Equal(t, p, again.Data)
			same, err := new(events.Codec).Encode(again)
			require.NoError(t, err)
			require.Equal(t, string(body), string(same))
			_, err = new(events.Codec).Decode(bytes.Replace(body, []byte(schema+version), []byte(schema+"3"), 1))
			require.ErrorContains(t, err, "version 3 is newer than 2")
		}
	}
	body, err := new(events.Codec).Encode(event(&events.Forked{Run: runID}))
	require.NoError(t, err)
	require.Contains(t, string(body), "moorebus/Forked/1")
}

package events

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// written are payloads as this package writes them, every member of each type that
// has a reader of its own among them.
var written = map[Type][]string{
	TypeLLMToolCall: {
		`{"content":"Let me look.","calls":[{"id":"call_1","name":"search","arguments":"{\"q\": \"a<b\", \"n\": 1.0}"}],"confidence":1,"model":"gpt-4o","usage":{"input":10,"output":5,"cached":2,"total":15}}`,
		`{"content":"\u2028\b\f\n\r\t\\🚌","message_id":"m","calls":[],"refused":[{"id":"b","name":"z","arguments":"{","observation":"ERROR: no","code":"not_found","place":2}],` +
			`"queued":[{"id":"q","name":"x","arguments":"","provider_id":"p"}],"confidence":0.25,"model":"m","usage":{"input":1,"output":2,"cached":0,"total":3,"cost_usd":1e-9},` +
			`"reasoning":[{"text":"hm"},1.50],"chunks":[[1,2],[3,4]]}`,
		`{"content":"","calls":null,"refused":[],"queued":[],"confidence":-0.5,"model":"","usage":{"input":-1,"output":0,"cached":0,"total":0},"chunks":[]}`,
	},
	TypeLLMParallelToolCalls: {
		`{"content":"","calls":[{"id":"a","name":"x","arguments":"{}"},{"id":"a~1","name":"y","arguments":"","provider_id":"a"}],"confidence":0.5,"model":"m","usage":{"input":1,"output":2,"cached":0,"total":3,"cost_usd":0.25}}`,
	},
	TypeToolSuccess: {
		`{}`, `{"call_id":"a","success":true,"observation":"SUCCESS: 1","code":"ok","latency_ms":3}`,
		`{"call_id":"a","success":true,"observation":"SUCCESS: 1","code":"ok","latency_ms":3,"ref":{"bucket":"b","key":"k","size":9,"sha256":"s"},` +
			`"attachments":[{"bucket":"b","key":"k","size":9,"sha256":"s"},{"bucket":"","key":"","size":0,"sha256":""}],"run":"r","usage":{"input":1,"output":0,"cached":0,"total":1}}`,
		`{"call_id":"","success":true,"observation":"x","code":"","latency_ms":0}`,
	},
	TypeToolFailure:        {`{}`, `{"call_id":"a","success":false,"observation":"ERROR: 1","code":"exit","latency_ms":3,"attachments":[]}`},
	TypeToolCallResult:     {`{"call_id":"a","success":false,"observation":"größer","code":"exit","latency_ms":123456789012345678}`},
	TypeToolCallDispatched: {`{"call_id":"a"}`},
	TypeToolCallStarted:    {`{"call_id":"a"}`},
	TypeLLMFinalAnswer:     {`{"message_id":"m","content":"c","model":"m","usage":{"input":1,"output":2,"cached":0,"total":3}}`},
	TypeLLMMessageComplete: {`{"message_id":"m","content":"c","model":"m","usage":{"input":1,"output":2,"cached":0,"total":3},"chunks":[[5,1]]}`},
	TypeLLMThought: {
		`{"content":"c","model":"m","usage":{"input":1,"output":2,"cached":0,"total":3}}`,
		`{"content":"c","model":"m","usage":{"input":1,"output":2,"cached":0,"total":3},"next_state":"executing","note":"n"}`,
	},
	TypeUserMessage: {`{"message_id":"m","content":"c"}`},
	TypeContinue:    {`{}`},
	TypeStart: {
		`{"agent":{"name":"a","description":"d","system_prompt":"s","task":"t","mode":"task","llm":{"provider":"scripted","text":true,"temperature":0.5,"top_p":1,"seed":7,` +
			`"max_tokens":9,"stop":["x","y"],"thinking_tokens":1024,"script":[{"text":"hi"}]},"config":{"max_steps":15,"max_retries":3,"confidence_threshold":0.4,` +
			`"reflect_every_n_steps":5,"min_answer_length":5,"parallel_tools":true,"context_window_size":0,"expand_context_window_size":10,"paging_limit":4096,"hard_limit":8192,` +
			`"token_estimator":"t","thinking_log_entries":10,"max_iterations":1000,"max_invalid_replies":5,"record_chunks":true,"max_depth":0},` +
			`"budget":{"max_input_tokens":1,"max_output_tokens":2,"max_total_tokens":3,"max_cost_usd":2.5,"max_wall_time":"30m0s"},` +
			`"approval":{"policy":"above","risk":"medium","tools":["a"],"expr":"e","expires":"24h0m0s","outcome_unknown":"ask"},"output_schema":{"type":"object"},"tools":["a"],"blacklist":[]},` +
			`"agent_hash":"h","task":"t","mode":"task","task_type":"default","tools":[{"name":"search","description":"d","schema":{"type":"object"},"effect":"pure","pool":"web","risk":"low","asks":true}],` +
			`"table_hash":"th","parent":{"run":"r","call_id":"c","depth":1}}`,
		`{"agent":{"name":"a","mode":"chat","llm":{"provider":"p"},"config":{"max_steps":15,"max_retries":3,"confidence_threshold":0.4,` +
			`"reflect_every_n_steps":5,"min_answer_length":5,"parallel_tools":true,"context_window_size":0,"expand_context_window_size":10,"paging_limit":4096,"hard_limit":8192,` +
			`"thinking_log_entries":10,"max_iterations":1000,"max_depth":0},"budget":{"max_total_tokens":3}},"agent_hash":"h","task":"t","mode":"chat","task_type":"","tools":null,"table_hash":"th"}`,
	},
	TypeNeedsReflection: {`{}`},
	TypeNeedsPaging:     {`{}`},
}

// spoiled are forms of those that are wrong, or right and not as they are written.
func spoiled(data string) []string {
	return []string{
		data + " ", " " + data, data + "}", data[:len(data)-1], data[:len(data)-1] + `,"later":1}`, data[:len(data)-1] + `,"call_id":"b"}`,
		data[:len(data)-1] + `,"CONTENT":"b"}`, data[:len(data)/2], data[:len(data)/2] + "\x00" + data[len(data)/2:], data[:len(data)/3] + "null}",
		data[:len(data)-1] + `,"chunks":[[1]]}`, data[:len(data)-1] + `,"chunks":[[1,2,3]]}`, data[:len(data)-1] + `,"reasoning":null}`,
		data[:len(data)-1] + `,"ref":null}`, data[:len(data)-1] + `,"reasoning":[}]}`, data[:len(data)-1] + `,"reasoning":1 }`,
	}
}

const (
	testHead = `{"specversion":"1.0","id":"01932c07-89a2-7cde-9f01-23456789abcd","type":"%[1]s","source":"moorebus/planner/p1",` +
		`"subject":"01932c07-89a1-7cde-8f01-23456789abcd","time":"2026-03-04T05:06:07.000000008Z","datacontenttype":"application/json",` +
		`"dataschema":"moorebus/%[1]s/1","n":2,"from":"planning","to":"acting","step":1,`
	testTail = `"cause":"01932c07-89a0-7cde-af01-23456789abcd",` +
		`"prev":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08","data":%[2]s}`
)

func testBody(t Type, data string) []byte { return fmt.Appendf(nil, testHead+testTail, t, data) }

// TestWrittenBodiesAreCanonical: what this package writes takes the short way.
func TestWrittenBodiesAreCanonical(t *testing.T) {
	codec := DefaultCodec()
	for typ, all := range written {
		for _, data := range all {
			e := codec.canonical(testBody(typ, data))
			require.NotNil(t, e, "%s %s", typ, data)
			s := scanner{text: []byte(data)}
			require.NotNil(t, readPayload(&s, typ))
			require.True(t, s.end(), "%s %s", typ, data)
			sameAsSlow(t, testBody(typ, data))
			sameAsPackageJSON(t, typ, []byte(data))
			for _, other := range spoiled(data) {
				sameAsSlow(t, testBody(typ, other))
				sameAsPackageJSON(t, typ, []byte(other))
			}
		}
	}
	for typ := range builtin {
		for _, data := range []string{`{}`, `{"other":1}`, `[]`, `{ }`, `{"a":1}}`, `{"call_id":1}`} {
			sameAsSlow(t, testBody(typ, data))
		}
	}
}

// sameAsSlow holds the short way to the long one: it takes nothing that the other
// refuses, and makes the same of it.
func sameAsSlow(t testing.TB, body []byte) {
	short := DefaultCodec().canonical(body)
	if short == nil {
		return
	}
	long, err := DefaultCodec().decode(body)
	if err != nil {
		t.Fatalf("was read and is wrong: %v\n%s", err, body)
	}
	if !reflect.DeepEqual(short, long) {
		t.Fatalf("%#v\n%#v\nof %s", short, long, body)
	}
}

// sameAsPackageJSON holds the readers and writers of payloads to package json.
func sameAsPackageJSON(t testing.TB, typ Type, data []byte) {
	want := builtin[typ]()
	err := unmarshalPayload(data, want)
	s := scanner{text: data}
	if got := readPayload(&s, typ); utf8.Valid(data) && got != nil && s.end() {
		if err != nil {
			t.Fatalf("%s was read and is wrong: %v\n%s", typ, err, data)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %#v\n%#v\nof %s", typ, got, want, data)
		}
	}
	if err != nil {
		return
	}
	text, err := marshalPayload(want)
	if err != nil {
		t.Fatalf("%s does not encode: %v\n%s", typ, err, data)
	}
	short, err := appendPayload([]byte("x"), want)
	if err != nil || string(short) != "x"+string(text) {
		t.Fatalf("%s: %v\n%s\n%s", typ, err, short, text)
	}
}

// Every member that a payload's struct has is written and read, also one that is
// added later and that nobody thought of here.
func TestEveryMember(t *testing.T) {
	for typ, fresh := range builtin {
		p := fresh()
		n := 0
		fillIn(t, reflect.ValueOf(p).Elem(), &n)
		want, err := marshalPayload(p)
		if err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		got, err := appendPayload(nil, p)
		require.NoError(t, err, typ)
		require.Equal(t, string(want), string(got), typ)
		sameAsPackageJSON(t, typ, want)
		s := scanner{text: want}
		// The maps of a Start are left to package json.
		if read := readPayload(&s, typ); read != nil && typ != TypeStart {
			require.True(t, s.end(), "%s does not read %s", typ, want)
		}
	}
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

// fillIn gives everything in a value some value that is not its zero.
func fillIn(t *testing.T, v reflect.Value, n *int) {
	*n++
	switch {
	case v.Type() == rawMessage:
		v.SetBytes(fmt.Appendf(nil, `{"raw":%d}`, *n))
		return
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(int64(*n), 0).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillIn(t, v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillIn(t, v.Field(i), n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillIn(t, v.Index(0), n)
		fillIn(t, v.Index(1), n)
	case reflect.Array:
		for i := range v.Len() {
			fillIn(t, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillIn(t, key, n)
		fillIn(t, value, n)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	default:
		t.Fatalf("a payload has a %s: say here what it is filled with", v.Type())
	}
}

// FuzzCanonical: no body is read by the short way otherwise than by the long one.
func FuzzCanonical(f *testing.F) {
	for typ, all := range written {
		for _, data := range all {
			f.Add(testBody(typ, data))
		}
	}
	f.Add(fmt.Appendf(nil, testHead+`"data":%[2]s}`, TypeStart, `{"agent":{"name":"a"},"task":"t","mode":"task"}`))
	f.Fuzz(func(t *testing.T, body []byte) { sameAsSlow(t, body) })
}

// FuzzPayload: no data is read or written otherwise than by package json.
func FuzzPayload(f *testing.F) {
	types := Types()
	slices.Sort(types)
	for typ, all := range written {
		for _, data := range all {
			f.Add(slices.Index(types, typ), []byte(data))
			for _, other := range spoiled(data) {
				f.Add(slices.Index(types, typ), []byte(other))
			}
		}
	}
	f.Fuzz(func(t *testing.T, typ int, data []byte) {
		if typ >= 0 && typ < len(types) {
			sameAsPackageJSON(t, types[typ], data)
		}
	})
}

// FuzzScalar: strings, numbers and times are written as package json and package
// time write them, and read as those read them or not at all.
func FuzzScalar(f *testing.F) {
	for _, s := range []string{
		"", "plain text of more than eight bytes", "\"quoted\" \\ \x00\x1f\x7f\b\f\n\r\t", "größer 🚌", "\u2028 \u2029 \ufffd", "\xff\xed\xa0\x80", "1234567\x80", "1234567\n",
		`""`, `"\u0041\"\\\/\b\f\n\r\t"`, `"\ud83d\ude8c"`, `"\ud83d"`, `"\ud83dx"`, `"\ud83d\n"`, `"\ud83d\ud83d\ude8c"`, `"\ude8c\ud83d"`, `"\u00e"`, `"\ud83d\u00"`, `"\q"`, `"\`, `"`, "\"\x1f\"", `"\u"`,
		"0", "-0", "1", "00", "-1", "1.5", "1e3", "1E+2", "1e400", "123456789012345678", "1234567890123456789", "9223372036854775808", "2147483648", "-", "1e-7", "1e21", "0.1", "1.", ".5", "+1",
		"2026-03-04T05:06:07.000000008Z", "2024-02-29T23:59:59.999999999Z", "2023-02-29T00:00:00.000000000Z", "1900-02-29T00:00:00.000000000Z", "2026-04-31T00:00:00.000000000Z",
		"2026-01-01T24:00:00.000000000Z", "2026-01-01T00:00:60.000000000Z", "0000-01-01T00:00:00.000000000Z", "9999-12-31T23:59:59.999999999Z", "2026-00-01T00:00:00.000000000Z",
	} {
		f.Add([]byte(s), int64(len(s))<<30)
	}
	f.Fuzz(func(t *testing.T, text []byte, number int64) {
		sameString(t, string(text))
		sameQuoted(t, text)
		sameNumber(t, text)
		sameTime(t, text, time.Unix(number>>20, number).UTC())
		sameFloat(t, math.Float64frombits(uint64(number)))
	})
}

func sameString(t *testing.T, text string) {
	want, err := marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := appendString(nil, text); string(got) != string(want) {
		t.Fatalf("%q: %s, want %s", text, got, want)
	}
	s := scanner{text: want}
	var back string
	if err := json.Unmarshal(want, &back); err != nil || s.string() != back || !s.end() {
		t.Fatalf("%q was read otherwise: %v", text, err)
	}
}

func sameQuoted(t *testing.T, quoted []byte) {
	s := scanner{text: quoted}
	got := s.string()
	var want string
	if err := json.Unmarshal(quoted, &want); utf8.Valid(quoted) && s.end() && (err != nil || got != want) {
		t.Fatalf("%s: %q, want %q, %v", quoted, got, want, err)
	}
}

func sameNumber(t *testing.T, text []byte) {
	var float float64
	err := json.Unmarshal(text, &float)
	s := scanner{text: text}
	if got := s.float(); s.end() && (err != nil || math.Float64bits(got) != math.Float64bits(float)) {
		t.Fatalf("%s: %v, want %v, %v", text, got, float, err)
	}
	if err == nil {
		sameFloat(t, float)
	}
	var integer int64
	err = json.Unmarshal(text, &integer)
	s = scanner{text: text}
	if got := s.integer(); s.end() && (err != nil || got != integer) {
		t.Fatalf("%s: %d, want %d, %v", text, got, integer, err)
	}
}

func sameFloat(t *testing.T, f float64) {
	want, err := json.Marshal(f)
	got, gotErr := appendFloat(nil, f)
	if fmt.Sprint(err) != fmt.Sprint(gotErr) || string(got) != string(want) {
		t.Fatalf("%s, %v, want %s, %v", got, gotErr, want, err)
	}
}

func sameTime(t *testing.T, text []byte, at time.Time) {
	if got, ok := parseTime(text); ok {
		if want, err := time.Parse(time.RFC3339Nano, string(text)); err != nil || !reflect.DeepEqual(got, want.UTC()) {
			t.Fatalf("%s: %v, want %v, %v", text, got, want, err)
		}
	}
	written := appendTime(nil, at)
	if want := at.Format(TimeFormat); string(written) != want {
		t.Fatalf("%s, want %s", written, want)
	}
	if got, ok := parseTime(written); ok != (len(written) == len(TimeFormat)) || ok && !got.Equal(at) {
		t.Fatalf("%v, %v, want %v", got, ok, at)
	}
}

func TestWhatHasNoJSONIsRefusedAsBefore(t *testing.T) {
	nan := math.NaN()
	usage := Usage{CostUSD: &nan}
	for _, p := range []Payload{
		&LLMToolCall{ToolCallReply{Confidence: nan}}, &LLMToolCall{ToolCallReply{Usage: usage}}, &LLMToolCall{ToolCallReply{Reasoning: []byte("{")}},
		&LLMFinalAnswer{Reply: Reply{Usage: usage}}, &LLMThought{Reply: Reply{Usage: usage}}, &ToolSuccess{Outcome: &ToolOutcome{Usage: &usage}},
		&LowConfidence{Confidence: nan},
	} {
		_, want := marshalPayload(p)
		require.Error(t, want)
		_, err := DefaultCodec().Encode(&Event{Data: p})
		require.EqualError(t, err, "event "+string(p.Type())+": "+want.Error())
	}
}

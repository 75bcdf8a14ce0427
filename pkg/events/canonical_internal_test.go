package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codec"
)

// unusual is data that is right, or nearly right, and that Moorebus does not write.
var unusual = map[Type][]string{
	TypeLLMToolCall: {
		`{"content":"\u2028\b\f\n\r\t\\🚌","message_id":"m","calls":[],"confidence":0.25,"model":"m","usage":{"input":1,"output":2,"cached":0,"total":3,"cost_usd":1e-9},"reasoning":[{"text":"hm"},1.50]}`,
		`{"content":"","calls":null,"refused":[],"queued":[],"confidence":-0.5,"model":"","usage":{"input":-1,"output":0,"cached":0,"total":0},"chunks":[]}`,
	},
	TypeToolSuccess:    {`{}`, `{"call_id":"","success":true,"observation":"x","code":"","latency_ms":0}`},
	TypeToolFailure:    {`{}`, `{"call_id":"a","success":false,"observation":"ERROR: 1","code":"exit","latency_ms":3,"attachments":[]}`},
	TypeToolCallResult: {`{"call_id":"a","success":false,"observation":"größer","code":"exit","latency_ms":123456789012345678}`},
}

// spoiled are forms of data that are wrong, or right and not as they are written.
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

// data returns data of every type: with every member set, as it is written, and
// beside that what is unusual.
func data(t testing.TB) map[Type][]string {
	all := map[Type][]string{}
	for typ, row := range rowOf {
		p, n := row.fresh(), 0
		fillIn(t, reflect.ValueOf(p).Elem(), &n)
		text, err := appendPayload(nil, p)
		require.NoError(t, err, typ)
		all[typ] = append([]string{string(text)}, unusual[typ]...)
	}
	return all
}

// What this package writes is in the canonical form, with every member of every type,
// also one that is added later and that nobody thought of here.
func TestWhatIsWrittenIsCanonical(t *testing.T) {
	for typ, all := range data(t) {
		require.NoError(t, new(decoder).attributes(testBody(typ, all[0])), typ)
		require.True(t, codec.Canonical([]byte(all[0]), rowOf[typ].fresh()), "%s %s", typ, all[0])
		for _, text := range all {
			for _, text := range append(spoiled(text), text, `{}`, `{"other":1}`, `[]`, `{ }`, `{"a":1}}`, `{"call_id":1}`) {
				sameEnvelope(t, testBody(typ, text))
				samePayload(t, typ, []byte(text))
			}
		}
	}
}

// sameEnvelope holds the reader of attributes to package json.
func sameEnvelope(t testing.TB, body []byte) {
	d := new(decoder)
	if d.attributes(body) != nil {
		return
	}
	if !json.Valid(body) {
		if json.Valid(d.data) {
			t.Fatalf("was read and is wrong: %s", body)
		}
		return // the payload's reader refuses it
	}
	var all map[string]any
	decoding := json.NewDecoder(bytes.NewReader(body))
	decoding.UseNumber()
	require.NoError(t, decoding.Decode(&all))
	e := &d.event
	got := []any{
		attrSpec: specVersion, attrID: e.ID, attrType: string(d.typ), attrSource: e.Source, attrSubject: e.Run, attrTime: all["time"],
		attrContent: contentType, attrSchema: d.schema, attrN: json.Number(fmt.Sprint(e.N)), attrFrom: string(e.From), attrTo: string(e.To),
		attrStep: json.Number(fmt.Sprint(e.Step)), attrData: all["data"], attrCause: e.Cause, attrPrev: e.Prev, attrTrace: e.TraceParent,
	}
	at, err := time.Parse(time.RFC3339Nano, all["time"].(string))
	if err != nil || !at.Equal(e.Time) || e.Time.Location() != time.UTC {
		t.Fatalf("%s, %v, not the time of %s", e.Time, err, body)
	}
	for attr, name := range attributes {
		if want, there := all[name]; attr != attrData && got[attr] != want && (there || got[attr] != "") {
			t.Fatalf("%s: %#v, not %#v of %s", name, got[attr], want, body)
		}
	}
}

// samePayload holds the reader of payloads to package json.
func samePayload(t testing.TB, typ Type, data []byte) {
	got, want := rowOf[typ].fresh(), rowOf[typ].fresh()
	err := unmarshalPayload(data, got)
	var wantErr error
	switch p := want.(type) {
	case *ToolSuccess:
		p.Outcome, wantErr = plainOutcome(data)
	case *ToolFailure:
		p.Outcome, wantErr = plainOutcome(data)
	default:
		wantErr = json.Unmarshal(data, want)
	}
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: %#v, %v\n%#v, %v\nof %s", typ, got, err, want, wantErr, data)
	}
}

func plainOutcome(data []byte) (*ToolOutcome, error) {
	var o ToolOutcome
	if err := json.Unmarshal(data, &o); err != nil || o.CallID == "" && o.Code == "" {
		return nil, err
	}
	return &o, nil
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

// fillIn gives everything in a value some value that is not its zero.
func fillIn(t testing.TB, v reflect.Value, n *int) {
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

// FuzzAttributes: no attribute is read otherwise than by package json.
func FuzzAttributes(f *testing.F) {
	for typ, all := range data(f) {
		f.Add(testBody(typ, all[0]))
	}
	for _, attributes := range []string{`"data":%[2]s}`, `"cause":"",` + testTail, `"traceparent":"",` + testTail, `"traceparent":"00-\u0041",` + testTail, `"n":3,` + testTail} {
		f.Add(fmt.Appendf(nil, testHead+attributes, TypeContinue, `{}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) { sameEnvelope(t, body) })
}

// FuzzPayload: no data is read otherwise than by package json.
func FuzzPayload(f *testing.F) {
	types := Types()
	slices.Sort(types)
	for typ, all := range data(f) {
		for _, text := range all {
			f.Add(slices.Index(types, typ), []byte(text))
		}
		for _, other := range spoiled(all[0]) {
			f.Add(slices.Index(types, typ), []byte(other))
		}
	}
	f.Fuzz(func(t *testing.T, typ int, data []byte) {
		if typ >= 0 && typ < len(types) {
			samePayload(t, types[typ], data)
		}
	})
}

func TestWhatHasNoJSONIsRefused(t *testing.T) {
	nan := math.NaN()
	usage := Usage{CostUSD: &nan}
	for _, p := range []Payload{
		&LLMToolCall{ToolCallReply{Confidence: nan}}, &LLMToolCall{ToolCallReply{Usage: usage}}, &LLMToolCall{ToolCallReply{Facts: Facts{Reasoning: Reasoning{{Data: []byte("{")}}}}},
		&LLMFinalAnswer{Reply: Reply{Usage: usage}}, &LLMThought{Reply: Reply{Usage: usage}}, &ToolSuccess{Outcome: &ToolOutcome{Usage: &usage}},
		&LowConfidence{Confidence: nan},
	} {
		plain := any(p)
		if result, ok := p.(*ToolSuccess); ok {
			plain = result.Outcome // which is all of its data
		}
		_, want := json.Marshal(plain)
		require.Error(t, want)
		_, err := new(Codec).Encode(&Event{Data: p})
		require.EqualError(t, err, "event "+string(p.eventType())+": "+want.Error())
	}
}

// Whatever says in the log what was used can be settled.
func TestEveryUsageIsBilled(t *testing.T) {
	t.Parallel()
	billed := 0
	for typ, r := range rowOf {
		empty := r.fresh
		p := empty()
		require.NoError(t, json.Unmarshal([]byte(`{"usage":{"input":7,"output":1,"total":8}}`), p))
		data, err := json.Marshal(p)
		require.NoError(t, err)
		u := Billed(p)
		if typ == TypeToolCallResult { // what a run that was called used is settled there
			require.Nil(t, u)
			continue
		}
		require.Equal(t, strings.Contains(string(data), `"usage":{"input":7`), u != nil, typ)
		if u != nil {
			billed++
			require.Equal(t, 7, u.Input, typ)
		}
	}
	require.Equal(t, 15, billed)
}

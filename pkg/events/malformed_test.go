package events_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

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
	e, err := events.DefaultCodec().Decode([]byte(body))
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
		_, err := events.DefaultCodec().Decode([]byte(bad))
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
	_, err := events.DefaultCodec().Decode([]byte(" \n" + strings.ReplaceAll(golden, `,"n":`, " ,\n\t\"n\" : ") + "\r\n"))
	require.NoError(t, err)
	_, err = events.DefaultCodec().Decode([]byte(strings.Replace(golden, `"step"`, `"\u0073tep"`, 1)))
	require.NoError(t, err, "an escaped key is the same key")
}

func TestDeepNestingIsRefusedNotFollowed(t *testing.T) {
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	_, err := events.DefaultCodec().Decode([]byte(with(t, "data", `{"x":`+deep+`}`)))
	require.Error(t, err)
}

func TestCheckID(t *testing.T) {
	require.NoError(t, events.CheckID(runID))
	for _, bad := range []string{"", "0", strings.ToUpper(runID), runID + "0", runID[:35], "urn:uuid:" + runID, strings.Replace(runID, "-7", "-1", 1), strings.Replace(runID, "-8f", "-7f", 1), strings.Replace(runID, "0193", "g193", 1)} {
		require.EqualError(t, events.CheckID(bad), "not a lower-case UUIDv7", bad)
	}
}

package scripted_test

import (
	"encoding/json"
	"testing"

	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/stretchr/testify/require"
)

func TestParseRefuses(t *testing.T) {
	tests := []struct{ name, settings, want string }{
		{"not JSON", `{`, "llm: is not valid JSON"},
		{"a list", `[]`, "llm: has to be an object, not a JSON array"},
		{"null", `null`, "llm: has to be an object"},
		{"no script", `{"provider":"scripted"}`, "llm: the scripted provider needs a script"},
		{"unknown key", `{"scripts":[]}`, `llm: unknown key "scripts" (allowed: provider, text, script, `},
		{"another case", `{"Script":[]}`, `llm: unknown key "Script"`},
		{"script is no list", `{"script":{}}`, "llm.script: has to be a list, not a JSON object"},
		{"entry is no object", `{"script":[{"text":"a"},"b"]}`, "script[1]: has to be an object, not a JSON string"},
		{"entry with unknown keys", `{"script":[{"txt":"a","b":1}]}`, `script[0]: unknown key "b", "txt" (allowed: text,`},
		{"empty entry", `{"script":[{}]}`, "script[0]: an entry is exactly one of text, calls and error"},
		{"null entry", `{"script":[null]}`, "script[0]: has to be an object"},
		{"text and calls", `{"script":[{"text":"a","calls":[{"name":"f"}]}]}`, "script[0]: an entry is exactly one"},
		{"content alone", `{"script":[{"content":"a"}]}`, "script[0]: an entry is exactly one"},
		{"content with text", `{"script":[{"content":"a","text":"b"}]}`, "script[0]: content is the text of a reply with calls"},
		{"text is a number", `{"script":[{"text":1}]}`, "script[0].text: has to be a string, not a JSON number"},
		{"no calls", `{"script":[{"calls":[]}]}`, "script[0].calls: is empty"},
		{"call without a name", `{"script":[{"calls":[{"name":"f"},{"id":"x"}]}]}`, "script[0].calls[1]: needs a name"},
		{"call with an unknown key", `{"script":[{"calls":[{"name":"f","args":{}}]}]}`, `script[0].calls[0]: unknown key "args"`},
		{"name is a list", `{"script":[{"calls":[{"name":[]}]}]}`, "script[0].calls[0].name: has to be a string"},
		{"id is a number", `{"script":[{"calls":[{"name":"f","id":1}]}]}`, "script[0].calls[0].id: has to be a string"},
		{"arguments are a list", `{"script":[{"calls":[{"name":"f","arguments":[]}]}]}`,
			"script[0].calls[0].arguments: has to be an object, or a string"},
		{"unknown kind", `{"script":[{"error":{"kind":"bad"}}]}`, `script[0].error.kind: "bad" is not one of [rate_limited`},
		{"error with unknown key", `{"script":[{"error":{"kind":"other","code":1}}]}`, `script[0].error: unknown key "code"`},
		{"negative wait", `{"script":[{"error":{"kind":"other","retry_after_ms":-1}}]}`, "retry_after_ms: has to be between"},
		{"confidence", `{"script":[{"text":"a","confidence":1.5}]}`, "script[0].confidence: has to be between 0 and 1"},
		{"confidence in words", `{"script":[{"text":"a","confidence":"high"}]}`, "script[0].confidence: has to be a number"},
		{"usage key", `{"script":[{"text":"a","usage":{"in":1}}]}`, `script[0].usage: unknown key "in"`},
		{"usage negative", `{"script":[{"text":"a","usage":{"input":-1}}]}`, "script[0].usage: must not be negative"},
		{"usage total", `{"script":[{"text":"a","usage":{"input":1,"total":9}}]}`, "script[0].usage.total: has to be input plus output (1)"},
		{"usage fraction", `{"script":[{"text":"a","usage":{"input":1.5}}]}`, "script[0].usage.input: has to be a whole number"},
		{"unknown ending", `{"script":[{"text":"a","finish":"cut"}]}`, `script[0].finish: "cut" is not one of [stop`},
		{"ending of an error", `{"script":[{"error":{"kind":"other"},"finish":"stop"}]}`, "script[0]: finish and reasoning belong to a reply"},
		{"rest of a whole reply", `{"script":[{"text":"a","rest":{"text":"b"}}]}`, "script[0].rest: is for a reply that is cut off"},
		{"rest of two kinds", `{"script":[{"text":"a","finish":"length","rest":{}}]}`, "script[0].rest: an entry is exactly one of"},
		{"reasoning of no kind", `{"script":[{"text":"a","reasoning":[{"text":"b"}]}]}`, `script[0].reasoning[0].kind: "" is not text, summary or opaque`},
		{"reasoning with an unknown key", `{"script":[{"text":"a","reasoning":[{"kind":"text","words":"b"}]}]}`, `script[0].reasoning[0]: unknown key "words"`},
		{"reference without number", `{"script":[{"text":"{{observation}}"}]}`, "script[0].text: a reference has to be like"},
		{"reference to none", `{"script":[{"text":"{{observation 0}}"}]}`, "script[0].text: {{observation 0}}: observations count from 1"},
		{"reference in words", `{"script":[{"calls":[{"name":"f","arguments":{"a":"{{observation last}}"}}]}]}`,
			"script[0].calls[0].arguments: a reference has to be like"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := scripted.Parse(json.RawMessage(tt.settings))
			require.ErrorContains(t, err, tt.want)
			require.Zero(t, s)
		})
	}
}

func TestParseAccepts(t *testing.T) {
	s, err := scripted.Parse(json.RawMessage(`{"provider":"scripted","text":true,"script":[
		{"text":"","confidence":null},
		{"content":"c","calls":[{"name":"f","arguments":null,"id":"x"}],"confidence":0},
		{"text":"{{not ours}} {{ observation -12 }}","usage":{"total":12}},
		{"error":{"kind":"context_too_long","message":"m","retry_after_ms":5}}]}`))
	require.NoError(t, err)
	require.Equal(t, 4, s)
}

func TestUsageOfTheSumAlone(t *testing.T) {
	res, err := ask(t, llm.Request{Settings: block(`[{"text":"a","usage":{"total":12}}]`)})
	require.Nil(t, err)
	require.Equal(t, llm.Usage{Input: 12, Total: 12}, res.About().Usage)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"script":[{"text":"{{observation -1}}"},{"error":{"kind":"other"}}]}`))
	f.Add([]byte(`{"script":[{"calls":[{"name":"f","arguments":{"a":"\"{{observation 1}}"}}],"usage":{"input":1}}]}`))
	f.Add([]byte(`{"script":[{"calls":[{"name":"f","arguments":"{{observation 1}}\\"}]}]}`))
	f.Fuzz(func(t *testing.T, settings []byte) {
		s, err := scripted.Parse(settings)
		if err != nil {
			return
		}
		c := scripted.New()
		for n := range s {
			req := llm.Request{Settings: settings, Replies: n, Observations: []string{"a \"quoted\"\n\\ one"}}
			res, err := c.Call(t.Context(), req, nil)
			if (res == nil) == (err == nil) {
				t.Fatalf("reply %d: %v, %v", n, res, err)
			}
		}
	})
}

func TestCheckScript(t *testing.T) {
	require.NoError(t, script.Check(json.RawMessage(`[{"text":"hi"}]`)))
	require.Error(t, script.Check(nil))
	require.ErrorContains(t, script.Check(json.RawMessage(`[{"txt":"hi"}]`)), "txt")
}

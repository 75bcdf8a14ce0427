package print

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestWriteYAML(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteYAML(&b, map[string]any{
		"text": "yes", "lines": "a\nb\n", "number": json.Number("12345678901234567890"), "half": 0.5, "none": nil,
		"list": []int{}, "escape": "\x1b", "true": true,
	}))
	require.Equal(t, `escape: "\e"
half: 0.5
lines: |
  a
  b
list: []
none: null
number: 12345678901234567890
text: "yes"
"true": true
`, b.String())
}

// What is written as YAML reads back as what it was.
func TestYAMLRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tricky := rapid.StringOf(rapid.RuneFrom([]rune(" \n\t\rab:#-'\"|>?~{[&*!%@é\u2028\u0085\ufeff")))
		want := rapid.MapOf(rapid.String(), rapid.SliceOf(tricky)).Draw(t, "value")
		var b bytes.Buffer
		if err := WriteYAML(&b, want); err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		if err := yaml.Unmarshal(b.Bytes(), &got); err != nil {
			t.Fatalf("%v in %q", err, b.String())
		}
		a, _ := json.Marshal(want)
		c, _ := json.Marshal(got)
		if !bytes.Equal(a, c) {
			t.Fatalf("%s became %s by %q", a, c, b.String())
		}
	})
}

func TestTables(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	page := list.Page{Runs: []list.Run{{RunID: "r1", State: events.Done, N: 5, Agent: "a", Task: "one\ntwo", Started: at, Updated: at}, {RunID: "r2", State: events.Errored}}}
	var b bytes.Buffer
	require.NoError(t, Runs(&b, Table, page, Screen{}))
	require.Equal(t, "RUN  STATE  N  AGENT  STARTED              UPDATED              TASK\n"+
		"r1   done   5  a      2026-01-02 03:04:05  2026-01-02 03:04:05  one two\n"+
		"r2   error  0  -      -                    -                    \n", b.String())
	b.Reset()
	require.NoError(t, Runs(&b, JSON, list.Page{Runs: []list.Run{}}, Screen{Columns: 80}))
	require.JSONEq(t, `{"runs": []}`, b.String())
	b.Reset()
	require.NoError(t, Tools(&b, Table, []events.ToolSpec{{Name: "t", Pool: "web", Effect: "pure", Risk: "low", Description: "does\tthings"}}))
	require.Contains(t, b.String(), "t     web   pure    low   -        does things")
	b.Reset()
	require.NoError(t, Tools(&b, JSON, nil))
	require.Equal(t, "[]\n", b.String())
	b.Reset()
	require.NoError(t, Agents(&b, YAML, []control.AgentInfo{{Name: "a", Hash: "h"}}))
	require.Equal(t, "- name: a\n  hash: h\n", b.String())
}

// A definition that was got can be put again, and is the same then.
func TestAgentRoundTrip(t *testing.T) {
	a, err := agentfile.ParseDefinition([]byte("name: x\nsystem_prompt: |\n  One.\n  Two.\nllm: {provider: openai, temperature: 0.1}\ntools: [b, a]\nmodels: {default: m}\noutput_schema: {type: object}\n"), agentfile.YAML, agentfile.Options{})
	require.NoError(t, err)
	for _, f := range []Format{YAML, JSON} {
		var b bytes.Buffer
		require.NoError(t, Agent(&b, f, agentfile.Marshal(a)))
		again, err := agentfile.ParseDefinition(b.Bytes(), agentfile.Auto, agentfile.Options{})
		require.NoError(t, err, b.String())
		require.Equal(t, agentfile.Hash(a), agentfile.Hash(again))
		require.Equal(t, agentfile.Marshal(a), agentfile.Marshal(again))
	}
	var b bytes.Buffer
	require.NoError(t, Agent(&b, YAML, agentfile.Marshal(a)))
	require.Contains(t, b.String(), "name: x\nsystem_prompt: |\n  One.\n  Two.\n", "the name comes first")
}

func TestEventLine(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e := &events.Event{
		Time: start.Add(412 * time.Millisecond), N: 2, From: events.Planning, To: events.Acting,
		Data: &events.LLMToolCall{ToolCallReply: call("c1", "count", "{\n}")},
	}
	require.Equal(t, "    2    +0.412s  planning → acting              LlmToolCall            count({ })", EventLine(e, start))
	colored := Entry{Event: e, Started: start}.text(Palette{true})
	require.Contains(t, colored, terminal.Style("1", Pad("LlmToolCall", typeWidth)))
	e.To, e.Data = e.From, &events.Continue{}
	require.Equal(t, "    2    +0.412s  planning                       Continue", EventLine(e, start), "nothing stands at the end of the line")
	require.Contains(t, EventLine(e, time.Time{}), e.Time.Local().Format("15:04:05.000"), "without a start it is the time of day")
}

func TestElapsed(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"+0.000s": 0, "+59.999s": 59999 * time.Millisecond, "+1m05s": 65 * time.Second, "+2h03m": 2*time.Hour + 3*time.Minute + 59*time.Second,
		"-0.500s": -500 * time.Millisecond,
	} {
		require.Equal(t, want, Elapsed(d))
	}
}

// Every event of every run has one line, which no text in it can break out of.
func TestLinesOfAnyRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := reducertest.NewRun(nil)
		for range rapid.IntRange(1, 30).Draw(t, "length") {
			next := reducertest.Next(t, r)
			if next.Payload == nil {
				break
			}
			_, e, err := r.Append(next.Origin, next.Payload)
			if err != nil {
				t.Fatalf("append: %v", err)
			}
			line := EventLine(e, e.Time)
			if strings.ContainsFunc(line, unicode.IsControl) || !utf8.ValidString(line) {
				t.Fatalf("the line %q can do harm", line)
			}
			if short := summary(e.Data); utf8.RuneCountInString(short) > dataWidth {
				t.Fatalf("the summary %q is too long", short)
			}
		}
	})
}

func TestSummary(t *testing.T) {
	refused := events.ToolCallReply{Refused: []events.Refusal{{Call: events.Call{Name: "rm"}, Code: "blacklisted"}}}
	for want, p := range map[string]events.Payload{
		"tester: hello":                        reducertest.StartOf("hello", events.ModeTask),
		"rm refused: blacklisted":              &events.LLMToolCall{ToolCallReply: refused},
		"timeout: ERROR: late":                 &events.ToolFailure{Outcome: &events.ToolOutcome{Code: "timeout", Observation: "ERROR: late"}},
		"c2: fine":                             &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "c2", Success: true, Observation: "fine"}},
		"poison: bad (event 3: no JSON)":       &events.FatalError{Outcome: events.Outcome{Code: "poison", Message: "bad"}, Poison: events.Poison{N: 3, Reason: "no JSON"}},
		"wrong file (by ann)":                  &events.CancelledRun{By: events.By{Reason: "wrong file", By: "ann"}},
		"by ann":                               &events.Paused{By: events.By{By: "ann"}},
		"c1 rejected too risky (by ann)":       &events.HumanRejected{Decision: events.Decision{CallID: "c1", Decision: "rejected", Reason: "too risky", By: "ann"}},
		"rm({})":                               &events.HumanApprovalRequired{Requests: []events.Request{{Tool: "rm", Arguments: "{}"}}},
		"not_found: ERROR: no tool":            &events.ReplyInvalid{RefusedReply: events.RefusedReply{Results: []events.Answer{{Code: "not_found", Observation: "ERROR: no tool"}}}},
		"rate_limited: slow down":              &events.LLMAttemptFailed{Kind: "rate_limited", Message: "slow down"},
		"":                                     &events.HumanApprovedParallel{},
		"from event 4 of run-1":                &events.Forked{Run: "run-1", At: 4},
		"a, b: note":                           &events.WorkingMemoryAdded{Entry: events.Entry{Tags: []string{"a", "b"}, Value: "note"}},
		strings.Repeat("x", dataWidth-1) + "…": &events.UserMessage{Content: strings.Repeat("x", 1<<20)},
	} {
		require.Equal(t, want, summary(p))
	}
}

func TestCut(t *testing.T) {
	require.Equal(t, "äöü", Cut("äöü", 3))
	require.Equal(t, "äö…", Cut("äöüß", 3))
	require.Equal(t, `a b\x00`, Cut(" a\r\n\tb\x00 ", 10))
	require.Equal(t, `a\u202eb`, Plain("a\u202eb"), "the writing direction cannot be turned")
	require.Equal(t, `\xff`, Plain("\xff"))
}

func TestReplyLines(t *testing.T) {
	p := &events.LLMFinalAnswer{}
	require.Empty(t, replyLines(p, true, Palette{}))
	p.Facts.Reasoning = events.Reasoning{{Kind: "text", Text: "Six times\x1b seven."}, {Kind: "opaque", Data: []byte(`"x"`)}, {Kind: "summary", Text: "42"}}
	require.Equal(t, []string{`       reasoned 20 characters: Six times\x1b seven. 42`}, replyLines(p, false, Palette{}))
	require.Equal(t, []string{"       reasoned 20 characters:", `       Six times\x1b seven.`, "       42"}, replyLines(p, true, Palette{}))
	require.Empty(t, replyLines(&events.Start{}, false, Palette{}))
	signed := &events.LLMFinalAnswer{Reply: events.Reply{Facts: events.Facts{Reasoning: events.Reasoning{{Kind: events.ReasoningOpaque, Data: []byte(`"EqQB"`)}}}}}
	require.Empty(t, replyLines(signed, false, Palette{}))
	require.Equal(t, []string{"       reasoned, in 1 part that only the provider can read"}, replyLines(signed, true, Palette{}))
	search := events.ReasoningPart{Kind: events.ReasoningOpaque, Data: []byte(`{"type":"web_search_call","action":{"query":"a\u001bb"},"status":"completed"}`)}
	found := &events.LLMFinalAnswer{Reply: events.Reply{Facts: events.Facts{
		Reasoning: slices.Repeat(events.Reasoning{search}, 7), Citations: []events.Citation{{Type: "url_citation", URL: "https://example.org", Title: "A"}, {Type: "url_citation", URL: "https://example.org", Title: "A"}},
	}}}
	line := `       provider: web_search_call: a\x1bb (completed)`
	require.Equal(t, append(slices.Repeat([]string{line}, 5), "       provider: and 2 more", "       source: A https://example.org"), replyLines(found, false, Palette{}))
	require.Len(t, replyLines(found, true, Palette{}), 7+1)
	p.ContextDropped = &events.ContextDropped{Read: 4096, Sent: 9100}
	require.Equal(t, "       the server read only 4096 of at least 9100 tokens and dropped the rest", replyLines(p, false, Palette{})[0])
}

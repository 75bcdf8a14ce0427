package console

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
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
	require.NoError(t, Runs(&b, Table, page))
	require.Equal(t, "RUN  STATE  N  AGENT  STARTED              UPDATED              TASK\n"+
		"r1   done   5  a      2026-01-02 03:04:05  2026-01-02 03:04:05  one two\n"+
		"r2   error  0  -      -                    -                    \n", b.String())
	b.Reset()
	require.NoError(t, Runs(&b, JSON, list.Page{Runs: []list.Run{}}))
	require.JSONEq(t, `{"runs": []}`, b.String())
	b.Reset()
	require.NoError(t, Tools(&b, Table, []events.ToolSpec{{Name: "t", Pool: "web", Effect: "pure", Risk: "low", Description: "does\tthings"}}))
	require.Contains(t, b.String(), "t     web   pure    low   does things")
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

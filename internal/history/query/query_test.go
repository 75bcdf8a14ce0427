package query_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/history/query"
)

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// value is of a name, text of words; a star at the end is a prefix.
func value(s string) query.Value {
	s, prefix := strings.CutSuffix(s, "*")
	return query.Value{Text: s, Prefix: prefix}
}

func text(s string, words ...string) query.Value {
	v := value(s)
	v.Words = words
	return v
}

func values(all ...query.Value) []query.Value { return all }

func TestParse(t *testing.T) {
	at := func(s string) []query.Value {
		when, err := time.Parse(time.RFC3339, s)
		require.NoError(t, err)
		return values(query.Value{Time: when})
	}
	is := query.Is
	for in, want := range map[string][]query.Term{
		"":                                   nil,
		" \t\n":                              nil,
		"card":                               {{Op: is, Values: values(text("card", "card"))}},
		"  Card-Refuse":                      {{At: 2, Op: is, Values: values(text("Card-Refuse", "card", "refuse"))}},
		"é  b":                               {{Op: is, Values: values(text("é", "é"))}, {At: 3, Op: is, Values: values(text("b", "b"))}},
		"-card":                              {{Not: true, Op: is, Values: values(text("card", "card"))}},
		`"a b" c`:                            {{Op: is, Values: values(text("a b", "a", "b"))}, {At: 6, Op: is, Values: values(text("c", "c"))}},
		`-"a b"*`:                            {{Not: true, Op: is, Values: values(text("a b*", "a", "b"))}},
		`"a*"`:                               {{Op: is, Values: values(query.Value{Text: "a*", Words: []string{"a"}})}},
		`"say \"a\\b\" \n"`:                  {{Op: is, Values: values(text(`say "a\b" \n`, "say", "a", "b", "n"))}},
		`a\b`:                                {{Op: is, Values: values(text(`a\b`, "a", "b"))}},
		"a,b*":                               {{Op: is, Values: values(text("a,b*", "a", "b"))}},
		`"http://x"`:                         {{Op: is, Values: values(text("http://x", "http", "x"))}},
		"10:30 127.0.0.1:80":                 {{Op: is, Values: values(text("10:30", "10", "30"))}, {At: 6, Op: is, Values: values(text("127.0.0.1:80", "127", "0", "0", "1", "80"))}},
		">5":                                 {{Op: is, Values: values(text(">5", "5"))}},
		"agent:a,b-c":                        {{Field: query.Agent, Op: is, Values: values(value("a"), value("b-c"))}},
		`agent:"a,b c",d*`:                   {{Field: query.Agent, Op: is, Values: values(value("a,b c"), value("d*"))}},
		`-by:user:1`:                         {{Not: true, Field: query.By, Op: is, Values: values(value("user:1"))}},
		"tool:*":                             {{Field: query.Tool, Op: query.Any}},
		"-label.env.x-1:*":                   {{Not: true, Field: query.Label, Key: "env.x-1", Op: query.Any}},
		`label.env:""`:                       {{Field: query.Label, Key: "env", Op: is, Values: values(value(""))}},
		`label.env:"*"`:                      {{Field: query.Label, Key: "env", Op: is, Values: values(query.Value{Text: "*"})}},
		"label.env:-":                        {{Field: query.Label, Key: "env", Op: is, Values: values(value("-"))}},
		"score.ok:true score.ok>=-0.5":       {{Field: query.Score, Key: "ok", Op: is, Values: values(value("true"))}, {At: 14, Field: query.Score, Key: "ok", Op: query.AtLeast, Values: values(query.Value{Number: -.5})}},
		"text:Card,refus* error:tool_failed": {{Op: is, Values: values(text("Card", "card"), text("refus*", "refus"))}, {At: 17, Field: query.Error, Op: is, Values: values(text("tool_failed", "tool", "failed"))}},
		"started>24h":                        {{Field: query.Started, Op: query.Above, Values: at("2026-11-26T12:00:00Z")}},
		"started<=30d":                       {{Field: query.Started, Op: query.AtMost, Values: at("2026-10-28T12:00:00Z")}},
		"-ended<2026-01-31":                  {{Not: true, Field: query.Ended, Op: query.Below, Values: at("2026-01-31T00:00:00Z")}},
		"ended=2026-01-31T02:00:00+02:00":    {{Field: query.Ended, Op: query.Equal, Values: at("2026-01-31T00:00:00Z")}},
		"duration>10s":                       {{Field: query.Duration, Op: query.Above, Values: values(query.Value{Duration: 10 * time.Second})}},
		"cost>1.5e-3":                        {{Field: query.Cost, Op: query.Above, Values: values(query.Value{Number: .0015})}},
		"東京*":                                {{Op: is, Values: values(text("東京*", "東", "京"))}},
	} {
		q, err := query.Parse(in, now)
		require.NoError(t, err, in)
		for i := range q.Terms {
			for j, v := range q.Terms[i].Values {
				if q.Terms[i].Op != query.Is {
					require.NotEmpty(t, v.Text, in)
					q.Terms[i].Values[j].Text = ""
				}
			}
		}
		require.Equal(t, want, q.Terms, in)
	}
}

func TestParseRefuses(t *testing.T) {
	many := strings.Repeat("é ", query.MaxTerms)
	_, err := query.Parse(many, now)
	require.NoError(t, err)
	_, err = query.Parse(strings.Repeat("a", query.MaxBytes), now)
	require.NoError(t, err)
	for in, want := range map[string]struct {
		at      int
		message string
	}{
		strings.Repeat("a", query.MaxBytes+1): {0, "the query has more than 4096 bytes"},
		many + "x":                            {2 * query.MaxTerms, "the query has more than 64 terms"},
		"é nope:x":                            {2, `"nope" is no field; put quotes around text with this sign`},
		"a http://x":                          {2, `"http" is no field; put quotes around text with this sign`},
		"a -x>=1":                             {2, `"x" is no field; put quotes around text with this sign`},
		"State:done":                          {0, `"State" is no field; put quotes around text with this sign`},
		"größe:1":                             {0, `"größe" is no field; put quotes around text with this sign`},
		"label:x":                             {0, `"label" is no field; put quotes around text with this sign`},
		"label.:x":                            {0, "label. is not a label"},
		"label.A:x":                           {0, "label.A is not a label"},
		"score.:x":                            {0, "score. is not a score"},
		"a agent:":                            {2, "agent: a value is missing"},
		"agent:a,":                            {0, "agent: a value is missing"},
		"agent:a,*":                           {0, "agent: a value is missing"},
		"task:--":                             {0, "task: there is no letter or digit"},
		"a ---":                               {2, "there is no letter or digit"},
		"*":                                   {0, "there is no letter or digit"},
		`""`:                                  {0, "there is no letter or digit"},
		"\u0301":                              {0, "there is no letter or digit"},
		"½ \xff":                              {0, "there is no letter or digit"},
		"a \xff":                              {2, "there is no letter or digit"},
		`ab "c d`:                             {3, "the quote is not closed"},
		`ab "c\"`:                             {3, "the quote is not closed"},
		"started:2026-01-01":                  {0, "started is compared with >, <, >=, <= or ="},
		"cost:*":                              {0, "cost is compared with >, <, >=, <= or ="},
		"agent>a":                             {0, "agent is not compared with >; write agent:VALUE"},
		"label.a=b":                           {0, "label.a is not compared with =; write label.a:VALUE"},
		"cost>":                               {0, `"" is not a number`},
		"cost>1*":                             {0, `"1*" is not a number`},
		"cost>1,2":                            {0, `"1,2" is not a number`},
		"cost>NaN":                            {0, `"NaN" is not a number`},
		"tokens>1e999":                        {0, `"1e999" is not a number`},
		"score.x>high":                        {0, `"high" is not a number`},
		"duration>10":                         {0, `"10" is no duration such as 10s or 30d`},
		"duration>-1s":                        {0, `"-1s" is no duration such as 10s or 30d`},
		"started>yesterday":                   {0, `"yesterday" is no time; use 2026-01-31T15:04:05Z, 2026-01-31 or 24h (ago)`},
		"started>2026-02-30":                  {0, `"2026-02-30" is no time; use 2026-01-31T15:04:05Z, 2026-01-31 or 24h (ago)`},
		`c:\"a`:                               {0, "the quote is not closed"},
	} {
		_, err := query.Parse(in, now)
		var bad *query.BadError
		require.ErrorAs(t, err, &bad, "%.50q", in)
		require.Equal(t, want.at, bad.At, "%.50q", in)
		require.Equal(t, want.message, bad.Message, "%.50q", in)
		require.Contains(t, bad.Fields, "label.KEY")
		require.Len(t, bad.Fields, 24)
	}
}

func TestPrefixes(t *testing.T) {
	require.Equal(t, []query.Term{{Op: query.Is, Values: values(text("card*", "card"))}, {Op: query.Is, Values: values(text("re*", "re"))}}, query.Prefixes("Card: re"))
}

func TestParseSort(t *testing.T) {
	for in, want := range map[string]query.Sort{
		"": {By: query.Started, Descending: true}, "started": {By: query.Started}, "-cost": {By: query.Cost, Descending: true}, "steps": {By: query.Steps},
	} {
		s, err := query.ParseSort(in)
		require.NoError(t, err)
		require.Equal(t, want, s)
		if in != "" {
			require.Equal(t, in, s.String())
		}
	}
	for _, in := range []string{"-", "--cost", "agent", "events", " cost", "Cost"} {
		_, err := query.ParseSort(in)
		require.ErrorContains(t, err, "is no order; use started, ended", in)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`-"a b"* agent:a,"b c"*`, "started>24h cost<=1e3 score.x=2", `label.a:* "\"\\`, "é nope:x", "\xff a:\xff", "-----a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		q, err := query.Parse(in, now)
		if err != nil {
			var bad *query.BadError
			require.ErrorAs(t, err, &bad)
			require.True(t, bad.At == 0 || bad.At < utf8.RuneCountInString(in))
			return
		}
		require.LessOrEqual(t, len(q.Terms), query.MaxTerms)
		for i, term := range q.Terms {
			require.True(t, term.Op == query.Any || len(term.Values) > 0)
			if term.Field == query.AnyText && term.Op == query.Is {
				for _, v := range term.Values {
					require.NotEmpty(t, v.Words)
				}
			}
			// A term alone is the same term.
			rest := string([]rune(in)[term.At:])
			if i+1 < len(q.Terms) {
				rest = string([]rune(in)[term.At:q.Terms[i+1].At])
			}
			if utf8.ValidString(in) {
				alone, err := query.Parse(rest, now)
				require.NoError(t, err)
				term.At = 0
				require.Equal(t, []query.Term{term}, alone.Terms)
			}
		}
	})
}

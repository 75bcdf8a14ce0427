package history

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/query"
)

// A snippet begins near the first word of the query, wherever that is and however it is written.
func TestSnippets(t *testing.T) {
	far := strings.Repeat("ä\n\t", 1000)
	for _, c := range []struct {
		query, text string
		matches     bool
		has         string
	}{
		{"card", "The CARD was refused.", true, "The CARD was refused."},
		{"card", far + "The CARD was refused. " + far, true, "ä The CARD was refused. ä"},
		{"refused card", far + "card " + far + "refused", true, "card"},
		{"zz", far + "card", false, "ä"},
		{"書", strings.Repeat("請求", 500) + "書を送る", true, "書を送る"},
		{"cafe\u0301", far + "CAFÉ", true, "CAFÉ"},
		{"caf*", far + "Cafeteria", true, "Cafeteria"},
		{"-card was", "was", true, "was"},
		{"x", "", false, ""},
		{"x", "\xff\xfe x", true, "x"},
		{`text:card,refused`, "It was refused", true, "It was refused"},
		{"task:card", "card", false, ""},
		{"answer:card state:done", "card", true, "card"},
		{strings.Repeat("w", 70), far + strings.Repeat("W", 3000), true, "WWW"},
	} {
		q, err := query.Parse(c.query, time.Now())
		require.NoError(t, err)
		at, matches := locate(q, history.Text{Kind: history.Answer, Text: c.text})
		require.Equal(t, c.matches, matches, c.query)
		snippet := cutAround(c.text, at)
		require.LessOrEqual(t, utf8.RuneCountInString(snippet), snippetLength, c.query)
		require.True(t, utf8.ValidString(snippet))
		require.NotContains(t, snippet, "\n")
		require.Contains(t, snippet, c.has, c.query)
	}
	q, err := query.Parse("call_error:ETIMEDOUT", time.Now())
	require.NoError(t, err)
	_, matches := locate(q, history.Text{Kind: history.CallError, Code: "ETIMEDOUT", Text: "too slow"})
	require.True(t, matches, "the code is one")
}

package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"a\n\tb äöü 日本 👩‍💻":             "a\n\tb äöü 日本 👩‍💻",
		"\x1b]0;owned\x07":              `\x1b]0;owned\x07`,
		"\x1b[2Jgone":                   `\x1b[2Jgone`,
		"50 %\r100 %":                   `50 %\x0d100 %`,
		"a\x00\b\v\f\x7fb":              `a\x00\x08\x0b\x0c\u007fb`,
		"\u009b31m \u0085 \u0090":       `\u009b31m \u0085 \u0090`,
		"raw \x9b31m \xff \xe2\x80":     `raw \x9b31m \xff \xe2\x80`,
		"\u202egpj.exe\u202c":           `\u202egpj.exe\u202c`,
		"\u2066\u2067\u2068\u2069":      `\u2066\u2067\u2068\u2069`,
		"\u200e\u200f\u061c":            `\u200e\u200f\u061c`,
		"\u202a\u202b\u202d":            `\u202a\u202b\u202d`,
		"a\u2028b\u2029c":               `a\u2028b\u2029c`,
		"\ufffd is a character":         "\ufffd is a character",
		`\x1b as it was written`:        `\x1b as it was written`,
		strings.Repeat("x", 100) + "\b": strings.Repeat("x", 100) + `\x08`,
	} {
		require.Equal(t, want, Visible(text))
		require.Equal(t, want, Visible(want), "it has nothing to show any more")
	}
}

// JSON escapes what is below a blank by itself.
func TestVisibleJSONMeansTheSame(t *testing.T) {
	for _, text := range []string{"\u009b31m", "\u202e\u2028\x7f", "\x1b\x00\r", "\ufffd"} {
		data, err := json.Marshal(text)
		require.NoError(t, err)
		var got string
		require.NoError(t, json.Unmarshal([]byte(Visible(string(data))), &got), "%s", data)
		require.Equal(t, text, got)
	}
}

func TestOnlyOwnSequencesReachTheTerminal(t *testing.T) {
	var b bytes.Buffer
	o := &Output{w: &b, terminal: true}
	write := func(text string) string {
		b.Reset()
		n, err := o.Write([]byte(text))
		require.NoError(t, err)
		require.Equal(t, len(text), n)
		return b.String()
	}
	require.Equal(t, "\x1b[1;31mred\x1b[0m", write(Style("1;31", "red")))
	require.Equal(t, "\x1b[1m\\x1b[2J\x1b[0m", write(Style("1", "\x1b[2J")), "what is styled is looked at too")
	require.Equal(t, "\r\x1b[Kx", write(EraseLine()+"x"))
	require.Equal(t, `\x1b[31mred\x1b[0m`, write("\x1b[31mred\x1b[0m"), "a style of somebody else's")
	require.NotContains(t, write(mark+"]0;title\x07"+mark+"[2J"), "\x1b", "styles and erasing a line are all")

	require.Equal(t, "a", write("a\xe2"))
	require.Equal(t, "", write("\x80"))
	require.Equal(t, `\u202eb`, write("\xaeb"), "a character in three writes")
	require.Equal(t, "", write("\xc2"))
	require.Equal(t, `\xc2a`, write("a"), "it was none")
	require.Equal(t, "", write("\xe2\x80"))
	b.Reset()
	o.Flush()
	o.Flush()
	require.Equal(t, `\xe2\x80`, b.String(), "the rest never came")
}

func TestPipesGetEveryByte(t *testing.T) {
	var b bytes.Buffer
	o := &Output{w: &b}
	text := "\x1b]0;owned\x07\r\u202e\x9b\xff"
	_, err := o.Write([]byte(text))
	require.NoError(t, err)
	o.Flush()
	require.Equal(t, text, b.String())
	require.False(t, o.Color(func(string) string { return "" }))
	require.Equal(t, 80, o.Columns())
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestWriteFails(t *testing.T) {
	_, err := (&Output{w: broken{}, terminal: true}).Write([]byte("a"))
	require.ErrorContains(t, err, "gone")
}

func TestColor(t *testing.T) {
	env := func(key, value string) func(string) string {
		return func(k string) string { return map[string]string{key: value}[k] }
	}
	o := &Output{terminal: true}
	require.True(t, o.Color(env("", "")))
	require.False(t, o.Color(env("NO_COLOR", "1")))
	require.False(t, o.Color(env("TERM", "dumb")))
}

func TestWidth(t *testing.T) {
	for r, want := range map[rune]int{'a': 1, 'ä': 1, '日': 2, '👩': 2, '\u0301': 0, '\u200d': 0} {
		require.Equal(t, want, Width(r), "%q", r)
	}
}

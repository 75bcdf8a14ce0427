package interactive

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/terminal"
)

func TestTail(t *testing.T) {
	require.Equal(t, "it ends here", tail("So it ends\r\n\there", 12))
	require.Equal(t, "", tail("some words", 0))
	require.Equal(t, "", tail("some words", -7))
	require.Equal(t, "本語", tail("日本語", 5), "wide characters take two columns")
	require.Equal(t, `\x1b[2K`, tail("\x1b[2K", 7), "what is made visible takes its columns")
	require.Equal(t, "[2K", tail("\x1b[2K", 3))
}

// A live line that wraps could not be erased: whatever a model says, it stays
// within the terminal's width.
func TestLiveLineFits(t *testing.T) {
	for _, columns := range []int{80, 40, 5} {
		var b strings.Builder
		v := newView(&b, true, false, func() int { return columns })
		for _, words := range []string{"日本語 ", strings.Repeat("\x1b", 50), "50 %\r100 %\u202e", strings.Repeat("e\u0301", 500)} {
			v.words(false, words)
			b.Reset()
			v.draw()
			line := strings.TrimPrefix(b.String(), terminal.EraseLine())
			require.NotContains(t, line, "\r")
			require.NotContains(t, line, "\x1b")
			width := 0
			for _, r := range line {
				width += terminal.Width(r)
			}
			if columns > 20 { // else what the run does takes more by itself
				require.Less(t, width, columns, "%q", line)
			}
		}
	}
}

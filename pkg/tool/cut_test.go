package tool_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/tool"
)

func TestCut(t *testing.T) {
	require.Equal(t, "abc", tool.Cut("abc", 3, -1))
	require.Equal(t, "", tool.Cut("", 0, 0))
	require.Equal(t, "abc\n[moorebus: output cut at 3 bytes of 900]", tool.Cut("abcd", 3, 900))
	require.Equal(t, "ü\n[moorebus: output cut at 2 bytes of more]", tool.Cut("üü", 3, -1))
	require.Equal(t, "\n[moorebus: output cut at 0 bytes of 4]", tool.Cut("😀", 3, 4))
}

func TestPrefix(t *testing.T) {
	text := "aü€😀"
	for limit, want := range []string{"", "a", "a", "aü", "aü", "aü", "aü€", "aü€", "aü€", "aü€", text, text} {
		require.Equal(t, want, tool.Prefix(text, int64(limit)), limit)
	}
	broken := strings.Repeat("\x80", 10)
	require.Equal(t, broken[:6], tool.Prefix(broken, 6))
}

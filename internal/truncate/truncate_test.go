package truncate_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/truncate"
)

func TestResult(t *testing.T) {
	require.Equal(t, "abc", truncate.Result("abc", 3, -1))
	require.Equal(t, "", truncate.Result("", 0, 0))
	require.Equal(t, "abc\n[moorebus: output cut at 3 bytes of 900]", truncate.Result("abcd", 3, 900))
	require.Equal(t, "ü\n[moorebus: output cut at 2 bytes of more]", truncate.Result("üü", 3, -1))
	require.Equal(t, "\n[moorebus: output cut at 0 bytes of 4]", truncate.Result("😀", 3, 4))
}

func TestPrefix(t *testing.T) {
	text := "aü€😀"
	for limit, want := range []string{"", "a", "a", "aü", "aü", "aü", "aü€", "aü€", "aü€", "aü€", text, text} {
		require.Equal(t, want, truncate.Prefix(text, int64(limit)), limit)
	}
	broken := strings.Repeat("\x80", 10)
	require.Equal(t, broken[:6], truncate.Prefix(broken, 6))
}

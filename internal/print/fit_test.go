package print_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/print"
)

func TestFit(t *testing.T) {
	for text, want := range map[string]string{"": "", "abc": "abc", "abcde": "abcde", "abcdef": "abcd…", "日本": "日本", "日本語": "日本…", "a\nb": "a b", "ab   cdefgh": "ab c…"} {
		require.Equal(t, want, print.Fit(text, 5))
	}
}

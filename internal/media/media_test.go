package media_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/media"
)

func TestWords(t *testing.T) {
	require.Equal(t, "image image/png 12 kB", media.Words("image", "", "image/png", "", 11_500))
	require.Equal(t, "image image/png 999 B", media.Words("image", "", "image/png", "", 999))
	require.Equal(t, "file plan.pdf application/pdf 3.4 MB", media.Words("file", "plan.pdf", "application/pdf", "", 3_400_000))
	require.Equal(t, "image image/png https://example.com/a.png", media.Words("image", "", "image/png", "https://example.com/a.png", 0))
}

func TestIsText(t *testing.T) {
	for _, text := range []string{"text/plain", "text/markdown", "application/json", "application/ld+json", "image/svg+xml"} {
		require.True(t, media.IsText(text), text)
	}
	for _, other := range []string{"application/pdf", "application/octet-stream", "image/png"} {
		require.False(t, media.IsText(other), other)
	}
}

func TestValid(t *testing.T) {
	for _, good := range []string{"image/png", "application/vnd.ms-excel", "image/svg+xml"} {
		require.True(t, media.Valid(good), good)
	}
	for _, bad := range []string{"", "png", "image/", "/png", "image/PNG", "image/png; q=1", "image/png/x", "image/p ng"} {
		require.False(t, media.Valid(bad), bad)
	}
}

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/media"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestAttachedFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	png := "\x89PNG\x0D\x0A\x1A\x0A"
	parts, err := attached("What is this?", []string{file("photo", png), file("plan.pdf", "%PDF-1.7"), file("notes", "some words")})
	require.NoError(t, err)
	require.Equal(t, []events.Part{
		{Type: events.PartText, Text: "What is this?"},
		{Type: events.PartImage, MediaType: "image/png", Data: []byte(png)},
		{Type: events.PartFile, MediaType: "application/pdf", Name: "plan.pdf", Data: []byte("%PDF-1.7")},
		{Type: events.PartFile, MediaType: "text/plain", Name: "notes", Data: []byte("some words")},
	}, parts)
	parts, err = attached("just words", nil)
	require.NoError(t, err)
	require.Nil(t, parts)
	parts, err = attached("", []string{file("photo", png)})
	require.NoError(t, err)
	require.Len(t, parts, 1, "an image needs no words")
	_, err = attached("x", []string{filepath.Join(dir, "missing")})
	require.ErrorContains(t, err, "--attach: ")
	_, err = attached("x", []string{file("empty", "")})
	require.ErrorContains(t, err, "data: is empty")
	large := file("large", "")
	require.NoError(t, os.Truncate(large, media.MaxBytes+1))
	_, err = attached("x", []string{large})
	require.ErrorContains(t, err, "at most 21.0 MB")
}

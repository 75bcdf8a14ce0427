package llmhttp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/events"
)

// What a model does not take is named, but a file of text can be read by any model.
func TestWhatIsSentInstead(t *testing.T) {
	for want, p := range map[string]events.Part{
		"[image left out: this model does not take it; image/png; 3 bytes]":                 {Type: events.PartImage, MediaType: "image/png", Data: []byte("abc")},
		"[file left out: this model does not take it; a.pdf; application/pdf; https://h/a]": {Type: events.PartFile, Name: "a.pdf", MediaType: "application/pdf", URL: "https://h/a"},
		"[file notes.txt text/plain]\nsome words":                                           {Type: events.PartFile, Name: "notes.txt", MediaType: "text/plain", Data: []byte("some words")},
		"[file left out: this model does not take it; text/plain; 1 bytes]":                 {Type: events.PartFile, MediaType: "text/plain", Data: []byte("\xff")},
	} {
		require.Equal(t, want, llmhttp.LeftOut(p))
	}
}

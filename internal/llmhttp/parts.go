package llmhttp

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/media"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Takes reports whether a part of a message can be sent: text always, an image or a file if
// the row's setting (`images`, `files`) covers the message's role.
func Takes(c providers.Capabilities, role llm.Role, p events.Part) bool {
	setting := providers.PartsAll
	switch p.Type {
	case events.PartImage:
		setting = c.Images
	case events.PartFile:
		setting = c.Files
	}
	return setting == providers.PartsAll || setting == providers.PartsUser && role == llm.RoleUser
}

// LeftOut returns what is sent instead of a part that the model does not take: the content of
// a file of text, and of any other part that it is omitted.
func LeftOut(p events.Part) string {
	if p.Type == events.PartFile && media.IsText(p.MediaType) && len(p.Data) > 0 && utf8.Valid(p.Data) {
		return "[" + media.Words(p.Type, p.Name, p.MediaType, "", 0) + "]\n" + string(p.Data)
	}
	about := []string{cmp.Or(p.Type, "part") + " left out: this model does not take it"}
	for _, word := range []string{p.Name, p.MediaType} {
		if word != "" {
			about = append(about, word)
		}
	}
	switch {
	case len(p.Data) > 0:
		about = append(about, fmt.Sprintf("%d bytes", len(p.Data)))
	case p.URL != "" && !strings.HasPrefix(p.URL, "data:"):
		about = append(about, p.URL)
	}
	return "[" + strings.Join(about, "; ") + "]"
}

// DataURL returns the part's address, or its data as one.
func DataURL(p events.Part) string {
	if len(p.Data) == 0 {
		return p.URL
	}
	return "data:" + cmp.Or(p.MediaType, "application/octet-stream") + ";base64," + base64.StdEncoding.EncodeToString(p.Data)
}

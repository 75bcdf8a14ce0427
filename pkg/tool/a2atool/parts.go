package a2atool

import (
	"context"
	"encoding/json"
	"path"
	"strings"
	"unicode"

	"github.com/moorebus/moorebus/internal/capability"
	"github.com/moorebus/moorebus/internal/truncate"
)

// part is one part of a message or an artifact: a text, data, or a file.
type part struct {
	Text      *string         `json:"text,omitempty"`
	Raw       []byte          `json:"raw,omitempty"`
	URL       string          `json:"url,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
}

// joined returns an artifact's parts with its texts put together. An agent that streams an
// artifact appends a part for each chunk of its text, and cuts the text anywhere.
func joined(parts []part) (whole []part) {
	for _, p := range parts {
		if n := len(whole); n > 0 && p.Text != nil && whole[n-1].Text != nil {
			text := *whole[n-1].Text + *p.Text
			whole[n-1].Text = &text
			continue
		}
		whole = append(whole, p)
	}
	return whole
}

// textOf returns the parts as text. Files are kept beside the call's result.
func textOf(ctx context.Context, parts []part) string {
	var lines []string
	for i := range parts {
		switch p := &parts[i]; {
		case p.Text != nil:
			lines = append(lines, *p.Text)
		case len(p.Data) > 0:
			lines = append(lines, string(p.Data))
		case p.URL != "":
			lines = append(lines, strings.TrimSpace(p.what("")+" "+p.URL))
		case len(p.Raw) > 0:
			kind := "file"
			if strings.HasPrefix(p.MediaType, "image/") {
				kind = "image"
			}
			lines = append(lines, capability.Kept(ctx, p.what(kind), p.MediaType, p.Raw))
		}
	}
	return strings.Join(lines, "\n")
}

// maxFilename bounds the name of a file in the text of a result, in bytes.
const maxFilename = 200

// what is a file's kind with its name, of which the last element counts.
func (p *part) what(kind string) string {
	if p.Filename == "" {
		return kind
	}
	name := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, path.Base(p.Filename))
	return strings.TrimSpace(kind + " " + truncate.Prefix(name, maxFilename))
}

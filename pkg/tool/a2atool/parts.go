package a2atool

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/moorebus/moorebus/internal/callctx"
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

// textOf returns the parts as text. Files are kept with the call's result.
func (t *agentTool) textOf(ctx context.Context, parts []part) string {
	var lines []string
	for i := range parts {
		switch p := &parts[i]; {
		case p.Text != nil:
			lines = append(lines, *p.Text)
		case len(p.Data) > 0:
			lines = append(lines, string(p.Data))
		case p.URL != "":
			if data := t.load(ctx, p.URL); len(data) > 0 {
				lines = append(lines, p.kept(ctx, data))
			} else {
				lines = append(lines, strings.TrimSpace(p.what("")+" "+p.URL))
			}
		case len(p.Raw) > 0:
			lines = append(lines, p.kept(ctx, p.Raw))
		}
	}
	return strings.Join(lines, "\n")
}

// kept keeps the bytes of a file and says so.
func (p *part) kept(ctx context.Context, data []byte) string {
	kind := "file"
	if strings.HasPrefix(p.MediaType, "image/") {
		kind = "image"
	}
	return callctx.Stored(ctx, p.what(kind), p.MediaType, data)
}

// load returns the file at a URL of the agent's own server, else nil. Other servers are not asked:
// an agent may not name another host, and its headers go to no other.
func (t *agentTool) load(ctx context.Context, from string) []byte {
	u, err := url.Parse(from)
	if err != nil || t.source == nil || u.Scheme != t.origin.Scheme || u.Host != t.origin.Host {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, loadTimeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil
	}
	req.Header.Set("User-Agent", "moorebus")
	for name, value := range t.o.Headers {
		req.Header.Set(name, value)
	}
	res, err := t.client.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxFile+1))
	if err != nil || res.StatusCode != http.StatusOK || len(data) > maxFile {
		return nil
	}
	return data
}

// loadTimeout bounds the loading of a file, maxFile its size in bytes: models take no larger ones.
const (
	loadTimeout = time.Minute
	maxFile     = 20 << 20
)

// maxFilename bounds the name of a file in the text of a result, in bytes.
const maxFilename = 200

// what is a file's kind with the last element of its name.
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

// Package web serves the console: a page for people, made of the files in app and those of features' pages. They
// are in the binary, need no build step, and load nothing from other hosts. The page stores no data.
// It asks the HTTP API for everything, with the token that its user gives it.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
)

// policy is the Content-Security-Policy: code, styles and data only from the gateway itself.
// Images of a conversation are in its events, so they come as data: and blob:.
const policy = "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// file is an answer. packed returns its data compressed by gzip, which is done for the first
// reader: most gateways of tests, and many others, serve no page.
type file struct {
	media, tag string
	data       []byte
	packed     func() []byte
}

var media = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// Console serves the console.
type Console struct {
	// Paths are the patterns of its requests besides "GET /{$}": its pages, which all have the same document, and its
	// files.
	Paths []string
	files map[string]*file
}

// New returns the console with the pages of features. An error says which file it cannot serve.
func New(features []Page) (*Console, error) {
	all, err := filesOf(features)
	if err != nil {
		return nil, err
	}
	c := &Console{[]string{"GET /app/{file...}"}, map[string]*file{}}
	for _, page := range append(pages[1:len(pages):len(pages)], features...) {
		c.Paths = append(c.Paths, "GET "+page.Path)
	}
	for name, data := range all {
		kind, known := media[path.Ext(name)]
		if !known {
			return nil, fmt.Errorf("web: %s has no media type", name)
		}
		digest := sha256.Sum256(data)
		c.files["/app/"+name] = &file{
			kind, `"` + base64.RawURLEncoding.EncodeToString(digest[:12]) + `"`, data, sync.OnceValue(func() []byte { return pack(data) }),
		}
	}
	return c, nil
}

// ServeHTTP answers the requests of [Console.Paths].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := c.files["/app/index.html"]
	if strings.HasPrefix(r.URL.Path, "/app/") {
		f = c.files[r.URL.Path]
	}
	if f == nil {
		http.NotFound(w, r)
		return
	}
	f.serve(w, r)
}

func pack(data []byte) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(data) // a buffer takes everything
	_ = w.Close()
	return packed.Bytes()
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.media)
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // a browser asks whether the file is still the same
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", f.tag)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	data := f.data
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		data = f.packed()
	}
	h.Set("Content-Length", fmt.Sprint(len(data)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(data) // a client that is gone needs no error
	}
}

// Package web serves the console: a page for people, made of the files in app. They are in the
// binary, need no build step, and load nothing from other hosts. The page stores no data.
// It asks the HTTP API for everything, with the token that its user gives it.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed app
var app embed.FS

// Paths are the patterns under which [New] answers besides "GET /{$}": the pages, which all have
// the same document, and its files.
var Paths = []string{
	"GET /runs/{id}", "GET /inbox", "GET /compare", "GET /agents", "GET /workers", "GET /dead", "GET /app/{file...}",
}

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

// New returns the handler of [Paths]. An error says which file it cannot serve.
func New() (http.Handler, error) {
	files := map[string]*file{}
	err := fs.WalkDir(app, "app", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := app.ReadFile(name)
		if err != nil {
			return err
		}
		kind, known := media[path.Ext(name)]
		if !known {
			return fmt.Errorf("web: %s has no media type", name)
		}
		digest := sha256.Sum256(data)
		files["/"+name] = &file{
			kind, `"` + base64.RawURLEncoding.EncodeToString(digest[:12]) + `"`, data, sync.OnceValue(func() []byte { return pack(data) }),
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := files["/app/index.html"]
		if strings.HasPrefix(r.URL.Path, "/app/") {
			f = files[r.URL.Path]
		}
		if f == nil {
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	}), nil
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

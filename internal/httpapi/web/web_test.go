package web_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/httpapi/web"
	"github.com/moorebus/moorebus/internal/nodetest"
)

func served(t *testing.T, target string, header http.Header) *http.Response {
	t.Helper()
	console, err := web.New(all.Features().Pages())
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", console)
	for _, pattern := range console.Paths {
		mux.Handle(pattern, console)
	}
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Header = header
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w.Result()
}

func TestPagesAreOneDocument(t *testing.T) {
	for _, target := range []string{"/", "/?state=error", "/runs/0198c5a0-5a6b-7c00-8000-000000000001", "/inbox", "/compare?a=x&b=y"} {
		res := served(t, target, nil)
		require.Equal(t, http.StatusOK, res.StatusCode, target)
		require.Equal(t, "text/html; charset=utf-8", res.Header.Get("Content-Type"))
		policy := res.Header.Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'self'")
		require.NotContains(t, policy, "unsafe")
		document, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Contains(t, string(document), `<link rel="stylesheet" href="/app/compare/style.css">`, "a feature's style")
	}
	require.Equal(t, http.StatusNotFound, served(t, "/app/none.js", nil).StatusCode)
	require.Equal(t, http.StatusNotFound, served(t, "/app/", nil).StatusCode)
}

func TestFilesAreKeptByBrowsers(t *testing.T) {
	res := served(t, "/app/main.js", nil)
	require.Equal(t, "text/javascript; charset=utf-8", res.Header.Get("Content-Type"))
	plain, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	tag := res.Header.Get("ETag")
	require.NotEmpty(t, tag)
	require.Equal(t, http.StatusNotModified, served(t, "/app/main.js", http.Header{"If-None-Match": {tag}}).StatusCode)
	res = served(t, "/app/main.js", http.Header{"Accept-Encoding": {"gzip"}})
	unpacked, err := gzip.NewReader(res.Body)
	require.NoError(t, err)
	text, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	require.Equal(t, string(plain), string(text))
}

// sources are the console's files, by name.
func sources(t *testing.T) map[string]string {
	t.Helper()
	console, err := web.New(all.Features().Pages())
	require.NoError(t, err)
	files := console.Files()
	require.Greater(t, len(files), 10)
	return files
}

var comments = regexp.MustCompile(`(?s:/\*.*?\*/)|(?m:^\s*//.*$)`)

// mostLines bounds the console's code: lines of it that are neither empty nor comments.
const mostLines = 4000

func TestTheConsoleStaysSmall(t *testing.T) {
	lines := 0
	for _, text := range sources(t) {
		for line := range strings.Lines(comments.ReplaceAllString(text, "")) {
			if strings.TrimSpace(line) != "" {
				lines++
			}
		}
	}
	t.Logf("%d lines of code", lines)
	require.Less(t, lines, mostLines)
}

var imported = regexp.MustCompile(`(?:from |import )"(\.[^"]+)"`)

// What a browser loads before it paints the first page: the document, its style, and the
// modules of that page.
func TestTheFirstPaintIsSmall(t *testing.T) {
	all := sources(t)
	wanted := []string{"main.js", "fleet/runs.js"}
	seen := map[string]bool{"index.html": true, "style.css": true}
	for len(wanted) > 0 {
		name := wanted[0]
		wanted = wanted[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		require.Contains(t, all, name)
		for _, found := range imported.FindAllStringSubmatch(all[name], -1) {
			wanted = append(wanted, path.Join(path.Dir(name), found[1]))
		}
		for _, found := range regexp.MustCompile(`@import "([^"]+)"`).FindAllStringSubmatch(all[name], -1) {
			wanted = append(wanted, path.Join(path.Dir(name), found[1]))
		}
	}
	total := 0
	for name := range seen {
		res := served(t, "/app/"+name, http.Header{"Accept-Encoding": {"gzip"}})
		data, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		total += len(data)
	}
	t.Logf("%d bytes in %d files", total, len(seen))
	require.Less(t, total, 100_000)
}

var anyImport = regexp.MustCompile(`(?:from |import |import\()"(\.[^"]+)"`)

// A feature's page may import what the core shares, and nothing of another feature.
func TestPagesOfFeaturesImportTheCoreAlone(t *testing.T) {
	own := map[string]bool{}
	for _, page := range all.Features().Pages() {
		own[path.Dir(page.Module)] = true
	}
	for name, text := range sources(t) {
		for _, found := range anyImport.FindAllStringSubmatch(comments.ReplaceAllString(text, ""), -1) {
			to := path.Dir(path.Join(path.Dir(name), found[1]))
			require.False(t, own[to] && to != path.Dir(name) && name != "pages.js", "%s imports %s", name, found[1])
		}
	}
}

// No module of the console imports itself, by whatever way: each can be read with those below it.
func TestNoModuleImportsItself(t *testing.T) {
	all := sources(t)
	done := map[string]bool{}
	var visit func(name string, from []string)
	visit = func(name string, from []string) {
		from = append(from, name)
		require.NotContains(t, from[:len(from)-1], name, "a circle: %s", strings.Join(from, " → "))
		require.Contains(t, all, name)
		if done[name] {
			return
		}
		for _, found := range anyImport.FindAllStringSubmatch(comments.ReplaceAllString(all[name], ""), -1) {
			visit(path.Join(path.Dir(name), found[1]), from)
		}
		done[name] = true
	}
	visit("main.js", nil)
	require.True(t, done["acting/fork.js"], "dynamic imports count")
	require.True(t, done["compare/compare.js"], "pages of features count")
}

var code = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser|setHTML|createContextualFragment`)

// What a run holds cannot run as code, because no text is ever read as markup or code.
func TestNoTextBecomesCode(t *testing.T) {
	for name, text := range sources(t) {
		require.NotRegexp(t, code, text, name)
		if path.Ext(name) == ".html" {
			require.NotRegexp(t, regexp.MustCompile(`(?i)<script[^>]*>[^<]|\son\w+=|\sstyle=`), text, name)
		}
	}
}

func TestTypes(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts the compiler of TypeScript
	}
	modules := nodetest.Modules(t)
	own := t.TempDir()
	for name, text := range sources(t) {
		require.NoError(t, os.MkdirAll(filepath.Join(own, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(own, name), []byte(text), 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join(modules, "node_modules", "typescript", "bin", "tsc"),
		"--noEmit", "--checkJs", "--allowJs", "--strict", "--noUnusedLocals", "--target", "es2024", "--module", "es2022", "--moduleResolution", "bundler",
		"--lib", "es2024,dom,dom.iterable,dom.asynciterable", filepath.Join(own, "main.js"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

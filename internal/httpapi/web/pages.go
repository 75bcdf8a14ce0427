package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/moorebus/moorebus/internal/control/list"
)

//go:embed app
var app embed.FS

// Page is a page of the console.
type Page struct {
	// Path is its address, in which {name} is any part. Name is its title.
	Path, Name string
	// Place is the address of the page that the navigation marks: of its own entry, or of another page's.
	Place string
	// Module is the module whose default function draws it, under /app.
	Module string
	// Files are those of a feature's page, in a folder named page. They are served beside Module, and may import the
	// core's modules: "../lib/dom.js". The document links their styles.
	Files fs.FS
}

// pages are the pages of the core.
var pages = []Page{
	{Path: "/", Name: "Runs", Place: "/", Module: "fleet/runs.js"},
	{Path: "/runs/{id}", Name: "Run", Place: "/", Module: "run/page.js"},
	{Path: "/inbox", Name: "Inbox", Place: "/inbox", Module: "acting/inbox.js"},
	{Path: "/workers", Name: "Workers", Place: "/workers", Module: "fleet/workers.js"},
	{Path: "/agents", Name: "Agents", Place: "/agents", Module: "fleet/agents.js"},
	{Path: "/dead", Name: "Dead letters", Place: "/dead", Module: "fleet/dead.js"},
}

// filesOf returns the files of the console with the pages of features, by their names under /app.
func filesOf(features []Page) (map[string][]byte, error) {
	files := map[string][]byte{"pages.js": pagesModule(append(pages[:len(pages):len(pages)], features...)), "filters.js": filtersModule()}
	if err := read(files, app, "app", ""); err != nil {
		return nil, err
	}
	var links bytes.Buffer
	for _, page := range features {
		own := map[string][]byte{}
		if err := read(own, page.Files, "page", path.Dir(page.Module)); err != nil {
			return nil, err
		}
		for name, data := range own {
			if files[name] != nil {
				return nil, fmt.Errorf("page %s: there is a file %s already", page.Path, name)
			}
			if files[name] = data; path.Ext(name) == ".css" {
				fmt.Fprintf(&links, "<link rel=\"stylesheet\" href=\"/app/%s\">\n", name)
			}
		}
	}
	const end = "</head>"
	files["index.html"] = bytes.Replace(files["index.html"], []byte(end), append(links.Bytes(), end...), 1)
	return files, nil
}

// read adds the files of a folder, with their names in another one.
func read(into map[string][]byte, from fs.FS, folder, to string) error {
	return fs.WalkDir(from, folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(from, name)
		into[path.Join(to, strings.TrimPrefix(name, folder+"/"))] = data
		return err
	})
}

// pagesModule is the module with the table of the pages.
func pagesModule(all []Page) []byte {
	var b bytes.Buffer
	b.WriteString("// The pages of the console.\n\n" +
		`/** @type {{path: string, name: string, place: string, load: () => Promise<{default: (page: import("./lib/page.js").Page) => any}>}[]} */` +
		"\nexport const pages = [\n")
	for _, p := range all {
		fmt.Fprintf(&b, "  { path: %q, name: %q, place: %q, load: () => import(%q) },\n", p.Path, p.Name, p.Place, "./"+p.Module)
	}
	b.WriteString("];\n")
	return b.Bytes()
}

// filtersModule is the module with the filters of the list of runs that have a field.
func filtersModule() []byte {
	var b bytes.Buffer
	b.WriteString("// The filters of the list of runs.\n\n" +
		"/** @type {{name: string, label: string, kind: string, choices: [string, string][]}[]} */\nexport const known = [\n")
	for _, f := range list.AllFilters() {
		if f.Label != "" {
			choices, _ := json.Marshal(append([][2]string{}, f.Choices...)) // they are texts
			fmt.Fprintf(&b, "  { name: %q, label: %q, kind: %q, choices: %s },\n", f.Name, f.Label, f.Kind, choices)
		}
	}
	b.WriteString("];\n")
	return b.Bytes()
}

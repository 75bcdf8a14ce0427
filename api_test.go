package moorebus_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/api.txt anew")

// TestAPI holds what the packages below pkg export to docs/api.txt, one line for each
// name with its signature, so that a review sees what the API gains and loses.
func TestAPI(t *testing.T) {
	var api []string
	err := filepath.WalkDir("pkg", func(dir string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() != "testdata" {
			api = append(api, exported(t, dir)...)
		}
		return err
	})
	require.NoError(t, err)
	got := strings.Join(api, "\n") + "\n"
	if *update {
		require.NoError(t, os.WriteFile("docs/api.txt", []byte(got), 0o644))
	}
	want, err := os.ReadFile("docs/api.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got, "the API changed: if that is meant, run `make golden` and commit docs/api.txt")
}

// exported lists what a package exports on Linux, sorted.
func exported(t *testing.T, dir string) []string {
	t.Helper()
	context := build.Default
	context.GOOS, context.GOARCH, context.CgoEnabled = "linux", "amd64", false
	found, err := context.ImportDir(dir, 0)
	if _, none := err.(*build.NoGoError); none {
		return nil
	}
	require.NoError(t, err)
	l := &listing{t: t, prefix: filepath.ToSlash(dir) + ": "}
	for _, name := range found.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			l.decl(decl)
		}
	}
	slices.Sort(l.lines)
	return l.lines
}

type listing struct {
	t      *testing.T
	prefix string
	lines  []string
}

func (l *listing) add(kind string, node any) {
	var b bytes.Buffer
	require.NoError(l.t, printer.Fprint(&b, token.NewFileSet(), node))
	l.lines = append(l.lines, l.prefix+kind+strings.Join(strings.Fields(b.String()), " "))
}

func (l *listing) decl(decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() || d.Recv != nil && !ast.IsExported(base(d.Recv.List[0].Type)) {
			return
		}
		d.Body = nil
		if d.Recv != nil {
			d.Recv.List[0].Names = nil
		}
		l.add("", d)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				l.values(d.Tok, s)
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					l.typed(s)
				}
			}
		}
	}
}

func (l *listing) values(tok token.Token, s *ast.ValueSpec) {
	for i, name := range s.Names {
		if !name.IsExported() {
			continue
		}
		one := &ast.ValueSpec{Names: []*ast.Ident{name}, Type: s.Type}
		if tok == token.CONST && i < len(s.Values) {
			one.Values = s.Values[i : i+1]
		}
		l.add(tok.String()+" ", one)
	}
}

// typed lists a type, and its exported fields or methods each on a line of its own.
func (l *listing) typed(s *ast.TypeSpec) {
	members, kind := &ast.FieldList{}, ""
	switch t := s.Type.(type) {
	case *ast.StructType:
		members, kind = t.Fields, "field "
	case *ast.InterfaceType:
		members, kind = t.Methods, "method "
	}
	for _, m := range members.List {
		for _, name := range m.Names {
			if name.IsExported() {
				l.add(kind+s.Name.Name+"."+name.Name+" ", m.Type)
			}
		}
		if name := base(m.Type); len(m.Names) == 0 && (name == "" || ast.IsExported(name)) {
			l.add(kind+s.Name.Name+" embeds ", m.Type)
		}
	}
	members.List = nil
	l.add("type ", s)
}

// base is the name of a receiver's or an embedded type of the package itself.
func base(of ast.Expr) string {
	switch t := of.(type) {
	case *ast.StarExpr:
		return base(t.X)
	case *ast.IndexExpr:
		return base(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

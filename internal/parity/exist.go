package parity

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// Exist returns an error for every file and test of the rows that does not exist below the root of
// the module. The name of a subtest must be in the test files of its package, or be that of a
// file or folder beside them, as for tests that run scripts.
func Exist(root string, rows []Row) error {
	packages := map[string]*testPackage{}
	var errs []error
	for _, row := range rows {
		for _, where := range row.Where {
			if _, err := os.Stat(filepath.Join(root, where)); err != nil {
				errs = append(errs, fmt.Errorf("line %d: %s: there is no %s", row.Line, row.ID, where))
			}
		}
		for _, test := range row.Tests {
			p := packages[test.Package]
			if p == nil {
				var err error
				if p, err = readTests(filepath.Join(root, test.Package)); err != nil {
					errs = append(errs, fmt.Errorf("line %d: %s: %w", row.Line, row.ID, err))
					continue
				}
				packages[test.Package] = p
			}
			if err := p.has(test); err != nil {
				errs = append(errs, fmt.Errorf("line %d: %s: %w", row.Line, row.ID, err))
			}
		}
	}
	return errors.Join(errs...)
}

// testPackage are the test functions of a package by name, and the text of its test files with
// underscores for spaces.
type testPackage struct {
	dir       string
	functions map[string]bool
	text      string
}

func readTests(dir string) (*testPackage, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no tests", dir)
	}
	p := &testPackage{dir: dir, functions: map[string]bool{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				p.functions[f.Name.Name] = true
			}
		}
		p.text += strings.ReplaceAll(string(text), " ", "_")
	}
	return p, nil
}

func (p *testPackage) has(test Test) error {
	if !p.functions[test.Func()] {
		return fmt.Errorf("there is no test %s", test)
	}
	for _, part := range strings.Split(test.Name, "/")[1:] {
		if !strings.Contains(p.text, part) && !p.hasFile(part) {
			return fmt.Errorf("no file of the package names the subtest of %s", test)
		}
	}
	return nil
}

// hasFile reports whether the package's folder has a file or folder of this name, or its testdata
// one with any extension.
func (p *testPackage) hasFile(name string) bool {
	if _, err := os.Stat(filepath.Join(p.dir, name)); err == nil {
		return true
	}
	for _, pattern := range []string{"testdata/" + name + ".*", "testdata/*/" + name + ".*"} {
		if found, err := filepath.Glob(filepath.Join(p.dir, pattern)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

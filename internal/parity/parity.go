// Package parity checks docs/parity.md, the table of requirements and their tests, against the
// code: every file and test that it names exists, and every test ran and passed.
//
// A row of the table is
//
//	| id | what it asks | where | shown by |
//
// Where lists files and packages in backquotes. Shown by lists packages in backquotes, each
// followed by its tests with commas between them, and semicolons between packages:
//
//	`internal/planner` TestBudgets, TestReplies/final_answer; `e2e` TestKill9
//
// Every row has tests. Subtests have underscores for spaces, as in the output of go test. The
// document declares its ids in one line, `Ids: L1-L6, A4, …`, and has them in this order. An id may
// have several rows.
package parity

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Document is the path of the table, from the root of the module.
const Document = "docs/parity.md"

// Row is a row of the table.
type Row struct {
	Line  int
	ID    string
	Asks  string
	Where []string
	Tests []Test
}

// Test is a test, or a subtest with slashes, and the folder of its package.
type Test struct{ Package, Name string }

// String returns the test for messages.
func (t Test) String() string { return t.Package + " " + t.Name }

// Func returns the test's function, without subtests.
func (t Test) Func() string {
	name, _, _ := strings.Cut(t.Name, "/")
	return name
}

// Parse parses the document's table. Errors are rows in another form, and ids that are missing,
// unknown or out of order.
func Parse(text string) ([]Row, error) {
	var rows []Row
	var errs []error
	declared := []string{}
	for i, line := range strings.Split(text, "\n") {
		if ids, ok := strings.CutPrefix(line, "Ids: "); ok {
			all, err := expand(ids)
			if err != nil {
				errs = append(errs, fmt.Errorf("line %d: %w", i+1, err))
			}
			declared = append(declared, all...)
			continue
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| id ") {
			continue
		}
		row, err := parseRow(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", i+1, err))
			continue
		}
		row.Line = i + 1
		rows = append(rows, row)
	}
	errs = append(errs, checkIDs(declared, rows))
	return rows, errors.Join(errs...)
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	showing  = regexp.MustCompile("^`([^`]+)` (.+)$")
	testName = regexp.MustCompile(`^(Test|Fuzz|Example)[A-Za-z0-9_]*(/\S+)*$`)
)

func parseRow(line string) (Row, error) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) != 4 {
		return Row{}, fmt.Errorf("a row has 4 cells, this one %d", len(cells))
	}
	for i := range cells {
		if cells[i] = strings.TrimSpace(cells[i]); cells[i] == "" {
			return Row{}, fmt.Errorf("cell %d is empty", i+1)
		}
	}
	row := Row{ID: cells[0], Asks: cells[1]}
	for _, match := range quoted.FindAllStringSubmatch(cells[2], -1) {
		row.Where = append(row.Where, match[1])
	}
	for part := range strings.SplitSeq(cells[3], ";") {
		match := showing.FindStringSubmatch(strings.TrimSpace(part))
		if match == nil {
			return row, fmt.Errorf("%q is not a package in backquotes and its tests", strings.TrimSpace(part))
		}
		for name := range strings.SplitSeq(match[2], ",") {
			name = strings.TrimSpace(name)
			if !testName.MatchString(name) {
				return row, fmt.Errorf("%q is not the name of a test", name)
			}
			row.Tests = append(row.Tests, Test{match[1], name})
		}
	}
	if len(row.Where) == 0 {
		return row, errors.New("a row with tests says where in the code it is, in backquotes")
	}
	return row, nil
}

var idRange = regexp.MustCompile(`^([A-Z]+)(\d+)-([A-Z]+)(\d+)$`)

// expand parses a list of ids and ranges such as L1-L6.
func expand(list string) ([]string, error) {
	var ids []string
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		match := idRange.FindStringSubmatch(part)
		if match == nil {
			ids = append(ids, part)
			continue
		}
		first, _ := strconv.Atoi(match[2])
		last, _ := strconv.Atoi(match[4])
		if match[1] != match[3] || first >= last {
			return nil, fmt.Errorf("%s is not a range of ids", part)
		}
		for n := first; n <= last; n++ {
			ids = append(ids, match[1]+strconv.Itoa(n))
		}
	}
	return ids, nil
}

// checkIDs checks that the rows have the declared ids in their order.
func checkIDs(declared []string, rows []Row) error {
	if len(declared) == 0 {
		return errors.New("the document declares no ids: it needs a line `Ids: …`")
	}
	var errs []error
	at := -1
	for _, row := range rows {
		i := slices.Index(declared, row.ID)
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("line %d: the id %s is not declared", row.Line, row.ID))
		case i != at && i != at+1:
			next := "the end"
			if at+1 < len(declared) {
				next = declared[at+1]
			}
			errs = append(errs, fmt.Errorf("line %d: %s stands where %s should", row.Line, row.ID, next))
			at = i
		default:
			at = i
		}
	}
	if at+1 < len(declared) {
		errs = append(errs, fmt.Errorf("the table ends before %s", declared[at+1]))
	}
	return errors.Join(errs...)
}

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

package moorebus_test

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKeysOfLogs holds the keys of every line that is logged to the table of docs/operations/logs.md.
func TestKeysOfLogs(t *testing.T) {
	text, err := os.ReadFile("docs/operations/logs.md")
	require.NoError(t, err)
	_, table, there := strings.Cut(string(text), "## Keys")
	require.True(t, there)
	listed := map[string]bool{}
	for _, cell := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(table, -1) {
		for key := range strings.SplitSeq(cell[1], ", ") {
			listed[strings.Trim(key, "`")] = true
		}
	}
	found := 0
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.dir, "internal/") && !strings.HasPrefix(s.dir, "pkg/") && !strings.HasPrefix(s.dir, "cmd/") {
			continue
		}
		for name, file := range s.files {
			ast.Inspect(file, func(n ast.Node) bool {
				for _, key := range logged(n) {
					found++
					require.True(t, listed[key], "%s logs the key %q, which docs/operations/logs.md does not list", name, key)
				}
				return true
			})
		}
	}
	require.Greater(t, found, 100)
}

// logged returns the keys that a call of a logger names.
func logged(n ast.Node) (keys []string) {
	call, _ := n.(*ast.CallExpr)
	if call == nil {
		return nil
	}
	method, _ := call.Fun.(*ast.SelectorExpr)
	if method == nil || !slices.Contains([]string{"logger", "log", "out", "slog", "default", "load"}, strings.ToLower(last(method.X))) {
		return nil
	}
	first, known := map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "InfoContext": 2, "Log": 3, "With": 0}[method.Sel.Name]
	for i := first; known && i < len(call.Args); i += 2 {
		if text, is := call.Args[i].(*ast.BasicLit); is && text.Kind == token.STRING {
			key, _ := strconv.Unquote(text.Value) // a literal of the language
			keys = append(keys, key)
		}
	}
	return keys
}

// last is the last name of an expression.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return last(e.Fun)
	}
	return ""
}

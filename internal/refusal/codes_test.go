package refusal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/refusal"
)

var kinds = map[string]refusal.Kind{
	"Invalid": refusal.Invalid, "Unauthorized": refusal.Unauthorized, "Forbidden": refusal.Forbidden, "NotFound": refusal.NotFound,
	"WrongMethod": refusal.WrongMethod, "Conflict": refusal.Conflict, "TooLarge": refusal.TooLarge, "WrongMedia": refusal.WrongMedia,
	"Unprocessable": refusal.Unprocessable, "TooMany": refusal.TooMany, "Internal": refusal.Internal, "Unavailable": refusal.Unavailable,
}

// codes returns the constants of the codes, those of features too, by their names.
func codes(t *testing.T) map[string]string {
	files, err := filepath.Glob("../feature/*/*/row.go")
	require.NoError(t, err)
	all := map[string]string{}
	for _, file := range append(files, "refusal.go") {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, is := n.(*ast.ValueSpec); is && strings.HasPrefix(spec.Names[0].Name, "Code") {
				all[spec.Names[0].Name] = strings.Trim(spec.Values[0].(*ast.BasicLit).Value, `"`)
			}
			return true
		})
	}
	return all
}

// Every code has its meaning, and nothing else has one.
func TestEveryCodeHasItsMeaning(t *testing.T) {
	all := codes(t)
	require.Len(t, rows.Meanings(), len(all))
	for name, code := range all {
		meaning, known := rows.Meanings()[code]
		require.True(t, known, "%s has no meaning: add it to Meanings in codes.go, or to the feature's row", name)
		require.NotEmpty(t, meaning.Kinds, name)
		require.True(t, strings.HasSuffix(meaning.Text, "."), name)
	}
}

// Wherever a refusal is made of a kind and a code, the code's meaning has that kind. From it
// the HTTP API documents the status.
func TestCodesHaveTheKindsTheyAreMadeWith(t *testing.T) {
	named, made := codes(t), 0
	check := func(file string, call *ast.CallExpr) {
		for i, arg := range call.Args[:len(call.Args)-1] {
			kind, code := selected(arg), selected(call.Args[i+1])
			if _, is := kinds[kind]; !is || named[code] == "" {
				continue
			}
			made++
			require.Contains(t, rows.Meanings()[named[code]].Kinds, kinds[kind], "%s makes %s with the kind %s: add the kind in internal/refusal/codes.go, or in the feature's row", file, code, kind)
		}
	}
	require.NoError(t, filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if call, is := n.(*ast.CallExpr); is && len(call.Args) > 1 {
				check(file, call)
			}
			return true
		})
		return nil
	}))
	require.Greater(t, made, 40)
}

// selected returns the name that is selected from package refusal or the row of a feature, or "".
func selected(e ast.Expr) string {
	if s, is := e.(*ast.SelectorExpr); is {
		if x, is := s.X.(*ast.Ident); is && (x.Name == "refusal" || x.Name == "row") {
			return s.Sel.Name
		}
	}
	return ""
}

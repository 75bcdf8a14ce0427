package reducer_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// enteredSteps tells the test binary with counters to lead a run to Acting and then to
// apply as many ToolSuccess events.
const enteredSteps = "MOOREBUS_TEST_APPLY"

// TestApplyEnters counts the functions of this package, literals included, that
// Machine.Apply enters for a ToolSuccess. A reader of the fold has to open each of them.
func TestApplyEnters(t *testing.T) {
	if steps := os.Getenv(enteredSteps); steps != "" {
		applyOutcome(t, steps == "1")
		return
	}
	if testing.Short() {
		t.Skip("reason: builds the package with counters")
	}
	bin := filepath.Join(t.TempDir(), "counted")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-covermode=count", "-coverpkg=.", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	before, after := blocks(t, bin, "0"), blocks(t, bin, "1")
	entered := functions(t, func(block string) bool { return after[block] > before[block] })
	t.Logf("%d functions: %s", len(entered), strings.Join(entered, ", "))
	require.LessOrEqual(t, len(entered), 12, "%v", entered)
}

func applyOutcome(t *testing.T, apply bool) {
	s := in(t, events.Acting)
	subject, _, body, err := s.Draft(events.Acting, success("a", "1"))
	require.NoError(t, err)
	if apply {
		_, err = s.Machine.Apply(s.Mem, subject.String(), body)
		require.NoError(t, err)
	}
}

// blocks runs the binary and returns how often each block of the package ran, by
// "file:line.column" of its beginning.
func blocks(t *testing.T, bin, steps string) map[string]int {
	profile := filepath.Join(t.TempDir(), "profile")
	cmd := exec.CommandContext(t.Context(), bin, "-test.run=^TestApplyEnters$", "-test.coverprofile="+profile)
	cmd.Env = append(os.Environ(), enteredSteps+"="+steps)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := os.Open(profile)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	counts := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		place, rest, ok := strings.Cut(filepath.Base(lines.Text()), ",")
		if fields := strings.Fields(rest); ok && len(fields) == 3 {
			n, err := strconv.Atoi(fields[2])
			require.NoError(t, err)
			counts[place] = n
		}
	}
	return counts
}

// functions are the package's functions of which a block ran.
func functions(t *testing.T, ran func(block string) bool) []string {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	fset := token.NewFileSet()
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			var body *ast.BlockStmt
			name := "literal"
			switch f := n.(type) {
			case *ast.FuncDecl:
				body, name = f.Body, f.Name.Name
			case *ast.FuncLit:
				body = f.Body
			}
			if body != nil && len(body.List) > 0 {
				at := fset.Position(body.Lbrace)
				first := file + ":" + strconv.Itoa(at.Line) + "."
				// A body's first block begins at its brace, or right behind it.
				if ran(first+strconv.Itoa(at.Column)) || ran(first+strconv.Itoa(at.Column+1)) {
					names = append(names, first+name)
				}
			}
			return true
		})
	}
	return names
}

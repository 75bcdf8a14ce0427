package parity_test

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/parity"
)

// The document is complete, and names nothing that is not there.
func TestDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../" + parity.Document)
	require.NoError(t, err)
	rows, err := parity.Parse(string(text))
	require.NoError(t, err)
	require.NoError(t, parity.Exist("../..", rows))
	require.Greater(t, len(rows), 100)
}

const small = "Ids: A1-A2, B3\n" +
	"| id | asks | where | shown by |\n|---|---|---|---|\n" +
	"| A1 | one | `parity.go` | `.` TestDocument, TestRan/a_test_that_was_skipped; `ran` TestRun |\n" +
	"| A2 | two | `ran` | `ran` TestRun |\n" +
	"| A2 | two again | `ran` | `ran` TestRun |\n" +
	"| B3 | three | `ran` | `ran` TestRun |\n"

func TestParse(t *testing.T) {
	t.Parallel()
	rows, err := parity.Parse(small)
	require.NoError(t, err)
	require.Len(t, rows, 4)
	require.Equal(t, parity.Row{
		Line: 4, ID: "A1", Asks: "one", Where: []string{"parity.go"},
		Tests: []parity.Test{{Package: ".", Name: "TestDocument"}, {Package: ".", Name: "TestRan/a_test_that_was_skipped"}, {Package: "ran", Name: "TestRun"}},
	}, rows[0])
	require.NoError(t, parity.Exist(".", rows))
}

func TestDocumentsThatAreWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, says string }{
		"no ids":             {"Ids: A1-A2, B3\n", "", "declares no ids"},
		"a missing id":       {"| B3 | three | `ran` | `ran` TestRun |\n", "", "the table ends before B3"},
		"a gap":              {"Ids: A1-A2", "Ids: A1-A2, A7", "B3 stands where A7 should"},
		"out of order":       {"| A1 |", "| B3 |", "B3 stands where A1 should"},
		"an unknown id":      {"| A1 |", "| C1 |", "line 4: the id C1 is not declared"},
		"a range backwards":  {"A1-A2", "A2-A1", "A2-A1 is not a range"},
		"a cell too few":     {"| two | `ran` |", "| two |", "line 5: a row has 4 cells"},
		"an empty cell":      {"| two |", "|  |", "line 5: cell 2 is empty"},
		"no tests":           {"`.` TestDocument, TestRan/a_test_that_was_skipped; `ran` TestRun", "-", `"-" is not a package in backquotes`},
		"no package":         {"`.` TestDocument", "TestDocument", "is not a package in backquotes"},
		"no test's name":     {"TestDocument", "Document", `"Document" is not the name of a test`},
		"tests of no code":   {"| `parity.go` |", "| somewhere |", "says where in the code"},
		"a bar in the words": {"| one |", "| one | or two |", "a row has 4 cells"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, small, c.old)
			_, err := parity.Parse(strings.Replace(small, c.old, c.new, 1))
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestNamesOfNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, says string }{
		"a file":    {"`parity.go`", "`parity.rs`", "line 4: A1: there is no parity.rs"},
		"a test":    {"TestDocument", "TestNothing" + "AtAll", "there is no test . TestNothing"},
		"a subtest": {"a_test_that_was_skipped", "a_subtest_that" + "_nobody_wrote", "no file of the package names the subtest"},
		"a package": {"`ran` TestRun", "`run` TestRun", "run has no tests"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, small, c.old)
			rows, err := parity.Parse(strings.Replace(small, c.old, c.new, 1))
			require.NoError(t, err)
			require.ErrorContains(t, parity.Exist(".", rows), c.says)
		})
	}
}

// lines are those of a test runner with a package m/p.
func lines(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(`{"Package":"m/p",` + e + "}\n")
	}
	return b.String()
}

func TestRan(t *testing.T) {
	t.Parallel()
	rows := []parity.Row{{ID: "A1", Line: 7, Tests: []parity.Test{{Package: "p", Name: "TestA"}, {Package: "p", Name: "TestA/b"}}}}
	ran := []string{`"Action":"pass","Test":"TestA/b"`, `"Action":"pass","Test":"TestA"`}
	closed := `"Action":"output","Output":"ok  \tm/p\t0.1s\n"`
	for name, c := range map[string]struct {
		events []string
		says   string
	}{
		"all ran":                 {append(ran, closed, `"Action":"pass"`), ""},
		"a test that did not run": {append(ran[1:], closed, `"Action":"pass"`), "line 7: A1: p TestA/b did not run"},
		"a test that was skipped": {append(ran[1:], `"Action":"skip","Test":"TestA/b"`, `"Action":"pass"`), "p TestA/b: skip"},
		"a test that failed":      {append(ran[:1], `"Action":"fail","Test":"TestA"`, `"Action":"fail"`), "p TestA: fail"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var shown strings.Builder
			results, err := parity.Read("m", strings.NewReader(lines(c.events...)), &shown)
			require.NoError(t, err)
			if err := results.Ran(rows); c.says == "" {
				require.NoError(t, err)
				require.Equal(t, "ok  \tm/p\t0.1s\n", shown.String())
				require.Equal(t, 1, results.Passed)
			} else {
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}

func TestThePackageOfTheModulesRoot(t *testing.T) {
	t.Parallel()
	results, err := parity.Read("m", strings.NewReader(`{"Package":"m","Action":"pass","Test":"TestA"}`), io.Discard)
	require.NoError(t, err)
	require.NoError(t, results.Ran([]parity.Row{{ID: "A1", Tests: []parity.Test{{Package: ".", Name: "TestA"}}}}))
}

// What failed is shown, and what passed is not.
func TestWhatIsShown(t *testing.T) {
	t.Parallel()
	var shown strings.Builder
	results, err := parity.Read("m", strings.NewReader("not JSON\n"+lines(
		`"Action":"build-output","Output":"does not build\n"`,
		`"Action":"output","Test":"TestGood","Output":"good\n"`, `"Action":"pass","Test":"TestGood"`,
		`"Action":"output","Test":"TestBad","Output":"bad\n"`, `"Action":"fail","Test":"TestBad"`,
		`"Action":"output","Test":"TestHangs","Output":"hangs\n"`,
		`"Action":"output","Output":"panic: test timed out\n"`,
		`"Action":"output","Output":"FAIL\tm/p\t9s\n"`, `"Action":"fail"`,
	)), &shown)
	require.NoError(t, err)
	require.Equal(t, "not JSON\ndoes not build\nbad\npanic: test timed out\nFAIL\tm/p\t9s\nhangs\n", shown.String())
	require.Equal(t, 1, results.Failed)
}

// What a test said itself is shown again where its processes logged a lot.
func TestWhatALoudTestSaid(t *testing.T) {
	t.Parallel()
	printed := func(text string) string {
		quoted, err := json.Marshal(text + "\n")
		require.NoError(t, err)
		return `"Action":"output","Test":"TestBad","Output":` + string(quoted)
	}
	events := []string{printed("    \tError Trace:\tx_test.go:9"), printed("    \tError:\tNot equal"), printed("    \tTest:\tTestBad")}
	for range 40 {
		events = append(events, printed("a line of a server"))
	}
	events = append(events, printed("    x_test.go:12: and this"), `"Action":"fail","Test":"TestBad"`)
	var shown strings.Builder
	_, err := parity.Read("m", strings.NewReader(lines(events...)), &shown)
	require.NoError(t, err)
	_, end, again := strings.Cut(shown.String(), "again, what the test said last:\n")
	require.True(t, again, shown.String())
	require.Equal(t, "    \tError Trace:\tx_test.go:9\n    \tError:\tNot equal\n    \tTest:\tTestBad\n    x_test.go:12: and this\n", end)
}

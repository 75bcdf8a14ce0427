package parity

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Results are the results of all tests, from the output of `go test -json`.
type Results struct {
	// Passed and Failed count packages.
	Passed, Failed int

	module   string
	outcomes map[Test]string
	// output is the output of tests that have not ended yet.
	output map[Test][]string
	shown  io.Writer
}

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
}

// Read reads all lines and writes what a person needs: the last line of each package, and the output
// of failed tests. module is the path prefix of packages.
func Read(module string, lines io.Reader, shown io.Writer) (*Results, error) {
	r := &Results{module: module, outcomes: map[Test]string{}, output: map[Test][]string{}, shown: shown}
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			r.show(scanner.Text() + "\n") // a message of the go command
			continue
		}
		r.apply(e)
	}
	return r, scanner.Err()
}

func (r *Results) show(text string) { _, _ = io.WriteString(r.shown, text) }

func (r *Results) apply(e event) {
	test := Test{cmp.Or(strings.TrimPrefix(strings.TrimPrefix(e.Package, r.module), "/"), "."), e.Test}
	switch e.Action {
	case "build-output":
		r.show(e.Output)
	case "output":
		r.printed(test, e.Output)
	case "pass", "fail", "skip":
		r.outcomes[test] = e.Action
		if e.Action == "fail" {
			r.failed(test)
		}
		delete(r.output, test)
		if e.Test != "" {
			return
		}
		switch e.Action {
		case "pass":
			r.Passed++
		case "fail":
			r.Failed++
		}
	}
}

// printed keeps a line of a test or package, and shows the last line of a package.
func (r *Results) printed(test Test, line string) {
	if test.Name == "" && closing(line) {
		r.show(line)
		return
	}
	r.output[test] = append(r.output[test], line)
}

func closing(line string) bool {
	for _, word := range []string{"ok  \t", "FAIL\t", "?   \t", "panic: "} {
		if strings.HasPrefix(line, word) {
			return true
		}
	}
	return false
}

// failed shows the output of a failed test, or of a package's tests that never ended.
func (r *Results) failed(test Test) {
	for other, lines := range r.output {
		if other == test || test.Name == "" && other.Package == test.Package {
			r.show(strings.Join(lines, ""))
			r.show(again(lines))
			delete(r.output, other)
		}
	}
}

var said = regexp.MustCompile(`^ +\w+\.go:\d+: `)

// again returns what a test said itself, if that is hard to find among what its processes logged.
func again(lines []string) string {
	const long, most = 40, 20
	if len(lines) < long {
		return ""
	}
	var own []string
	block := false // the lines that testify writes, from Error Trace to Test
	for _, line := range lines {
		block = block || strings.Contains(line, "\tError Trace:")
		if block || said.MatchString(line) || strings.Contains(line, "--- FAIL: ") {
			own = append(own, line)
		}
		block = block && !strings.Contains(line, "\tTest:")
	}
	if len(own) == 0 {
		return ""
	}
	return "again, what the test said last:\n" + strings.Join(own[max(0, len(own)-most):], "")
}

// Ran returns an error for every test of the rows that did not run and pass.
func (r *Results) Ran(rows []Row) error {
	var errs []error
	for _, row := range rows {
		for _, test := range row.Tests {
			switch outcome := r.outcomes[test]; outcome {
			case "pass":
			case "":
				errs = append(errs, fmt.Errorf("line %d: %s: %s did not run", row.Line, row.ID, test))
			default:
				errs = append(errs, fmt.Errorf("line %d: %s: %s: %s", row.Line, row.ID, test, outcome))
			}
		}
	}
	return errors.Join(errs...)
}

// Command ran reads the output of `go test -json ./...`, shows what a person needs of it, and fails
// if a package failed, or if a test that docs/parity.md names did not run and pass.
//
//	go test -json ./... | go run ./internal/parity/ran
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/moorebus/moorebus/internal/parity"
)

const module = "github.com/moorebus/moorebus"

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	results, err := parity.Read(module, in, out)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "packages: %d passed, %d failed\n", results.Passed, results.Failed); err != nil {
		return err
	}
	if results.Failed > 0 || results.Passed == 0 {
		return errors.New("not all tests passed")
	}
	text, err := os.ReadFile(parity.Document)
	if err != nil {
		return err
	}
	rows, err := parity.Parse(string(text))
	if err == nil {
		err = results.Ran(rows)
	}
	if err != nil {
		return fmt.Errorf("%s:\n%w", parity.Document, err)
	}
	_, err = fmt.Fprintf(out, "parity: the tests of all %d rows ran and passed\n", len(rows))
	return err
}

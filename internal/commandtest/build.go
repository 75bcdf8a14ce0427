// Package commandtest builds commands that tests run as processes, and starts them so
// that they end with the test. All packages share what it builds, since linking takes
// longer than most tests. For tests, benchmarks and chaos only.
package commandtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// Build builds commands, without the race detector, into a folder of bin/test in the
// module's root, and returns that folder's path. It relinks only what has changed. The
// commands are named as for `go build` in the root. Build waits while another process
// builds.
func Build(folder string, packages ...string) (dir string, err error) {
	err = inFolder(folder, func(root, of string) error {
		dir = of
		return build(root, dir, packages)
	})
	return dir, err
}

// ErrNoHistory says that a revision cannot be built, since the repository with it is not here.
var ErrNoHistory = errors.New("the history of the repository is not here")

// BuildRevision builds commands as [Build] does, as they were at a revision of the repository.
// What was built once is not built again. Errors: [ErrNoHistory].
func BuildRevision(revision string, packages ...string) (dir string, err error) {
	err = inFolder("at-"+revision, func(root, of string) error {
		dir = of
		if _, err := os.Stat(filepath.Join(dir, ".built")); err == nil {
			return nil
		}
		source, err := os.MkdirTemp("", "moorebus-at-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(source)
		archive := exec.Command("sh", "-c", `git archive "$0" | tar -x -C "$1"`, revision, source)
		archive.Dir = root
		out, err := archive.CombinedOutput()
		if _, missing := os.Stat(filepath.Join(source, "go.mod")); missing != nil {
			return fmt.Errorf("%w: revision %s: %v: %s", ErrNoHistory, revision, err, out)
		}
		// What it does counts, and not how fast it is.
		if err := build(source, dir, packages, "-gcflags=github.com/moorebus/moorebus/...=-l -dwarf=false"); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, ".built"), nil, 0o644)
	})
	return dir, err
}

// inFolder calls fn with the module's root and a folder of bin/test, which no other process
// uses meanwhile.
func inFolder(folder string, fn func(root, dir string) error) error {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	root := filepath.Dir(string(bytes.TrimSpace(out)))
	dir := filepath.Join(root, "bin", "test", folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(dir, ".lock")).Lock()
	if err != nil {
		return err
	}
	defer unlock()
	return fn(root, dir)
}

func build(root, dir string, packages []string, flags ...string) error {
	args := slices.Concat([]string{"build", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}, flags, packages)
	build := exec.Command("go", args...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %q: %w\n%s", packages, err, out)
	}
	return nil
}

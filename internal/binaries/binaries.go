// Package binaries builds commands that tests run as processes. All packages of tests
// share what it builds: linking takes longer than most tests. For tests only.
package binaries

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// Build builds commands, without the race detector, into a folder of bin/test in the
// module's root, and returns that folder's path. It relinks only what has changed. The
// commands are named as for `go build` in the root. Build waits while another process
// builds.
func Build(folder string, packages ...string) (dir string, err error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	root := filepath.Dir(string(bytes.TrimSpace(out)))
	dir = filepath.Join(root, "bin", "test", folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(dir, ".lock")).Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	args := append([]string{"build", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}, packages...)
	build := exec.Command("go", args...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %q: %w\n%s", packages, err, out)
	}
	return dir, nil
}

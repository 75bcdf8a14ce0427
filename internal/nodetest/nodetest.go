// Package nodetest runs third-party programs for node in tests: clients of the protocols that
// Moorebus speaks, and tools in TypeScript. Their versions are pinned in programs/, with the
// digests of everything that they bring along.
package nodetest

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

//go:embed programs/package.json programs/package-lock.json
var programs embed.FS

// installTimeout bounds the download of the packages.
const installTimeout = 5 * time.Minute

// Modules returns a folder whose node_modules has the packages. The first call on a machine
// installs them under the user's cache, which needs npm and its registry. A test is skipped
// where node or npm is missing, and fails where they cannot install.
func Modules(t testing.TB) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("reason: %s is missing; this test runs programs of other makers with it", program)
		}
	}
	dir, err := installed()
	if err != nil {
		t.Fatalf("installing the packages of internal/nodetest/programs: %s", err)
	}
	return dir
}

// Command returns node on a script, whose imports are found among the packages. The script is
// written into its own folder; it ends with the test.
func Command(t testing.TB, script string, arguments ...string) *exec.Cmd {
	t.Helper()
	modules := Modules(t)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(modules, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "script.mjs")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", append([]string{file}, arguments...)...)
	cmd.Dir = dir
	return cmd
}

var installed = sync.OnceValues(func() (string, error) {
	files := map[string][]byte{}
	digest := sha256.New()
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := programs.ReadFile("programs/" + name)
		if err != nil {
			return "", err
		}
		files[name] = data
		digest.Write(data)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(cache, "moorebus", "node")
	dir := filepath.Join(parent, hex.EncodeToString(digest.Sum(nil))[:16])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(parent, "new-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }() // after the rename there is nothing left
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(temp, name), data, 0o600); err != nil {
			return "", err
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), installTimeout)
	defer stop()
	npm := exec.CommandContext(ctx, "npm", "ci", "--omit-lockfile-registry-resolved", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = temp
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	// Of two test binaries that install at once, the second finds the folder of the first.
	if err := os.Rename(temp, dir); err != nil {
		if _, exists := os.Stat(dir); exists != nil {
			return "", err
		}
	}
	return dir, nil
})

// Package examples_test runs every example by the commands that its README
// gives, and holds what it prints to what stands there.
package examples_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/stretchr/testify/require"
)

// played are the examples whose commands go into several terminals. All others
// have one command.
var played = map[string]func(t *testing.T, s []session){
	"actor":         playActor,
	"approval.yaml": playApproval,
	"services":      playServices,
	"subagents":     playSubagents,
}

var (
	// bin has the directories of the built programs of cmd and of examples.
	bin = map[string]string{}
	// offline are Go's settings for an example that runs a program by `go run`, such
	// as an MCP server: it is built of what is there.
	offline []string
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "examples:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func prepare() (err error) {
	if offline, err = offlineSettings(); err != nil || testing.Short() {
		return err
	}
	if bin["cmd"], err = commandtest.Build("cmd", "./cmd/moorebus"); err == nil {
		bin["examples"], err = commandtest.Build("examples", "./examples/...")
	}
	return err
}

func offlineSettings() ([]string, error) {
	settings := []string{"GOPROXY=off"}
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			return nil, fmt.Errorf("go env %s: %w", name, err)
		}
		settings = append(settings, name+"="+strings.TrimSpace(string(value)))
	}
	return settings, nil
}

// newHome makes a home folder, which Go's settings are in: programs that hand on
// nothing else of their environment hand on HOME.
func newHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	write := exec.Command("go", append([]string{"env", "-w"}, offline...)...)
	write.Env = environment(home)
	out, err := write.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return home
}

func environment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "USER=ann"}
}

// session is a command as a document gives it, and what it prints there.
type session struct {
	command string
	output  []string
}

var block = regexp.MustCompile("(?ms)^```console\n(.*?)^```")

// sessions reads the console blocks of a README.
func sessions(t *testing.T, text string) []session {
	t.Helper()
	var all []session
	for _, match := range block.FindAllStringSubmatch(text, -1) {
		lines := strings.Split(strings.TrimRight(match[1], "\n"), "\n")
		command, ok := strings.CutPrefix(lines[0], "$ ")
		require.True(t, ok, "a console block begins with `$ ` and the command: %q", lines[0])
		all = append(all, session{command, lines[1:]})
	}
	return all
}

// documents returns what there is of examples with the document of each: a
// folder's README, or a YAML file itself.
func documents(t *testing.T) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		switch {
		case e.IsDir():
			all[e.Name()] = filepath.Join(e.Name(), "README.md")
		case filepath.Ext(e.Name()) == ".yaml":
			all[e.Name()] = e.Name()
		}
	}
	require.NotEmpty(t, all)
	return all
}

// comment is what stands in a YAML file as comment.
func comment(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line, ok := strings.CutPrefix(line, "#"); ok {
			b.WriteString(strings.TrimPrefix(line, " "))
		}
	}
	return b.String()
}

// Each example has a document with its command and what that prints, and does
// so.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: the examples take long to build
	}
	t.Parallel()
	for name, document := range documents(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(document)
			require.NoError(t, err, "an example has a README.md of a few lines with its command")
			if filepath.Ext(name) == ".yaml" {
				text = []byte(comment(string(text)))
			}
			all := sessions(t, string(text))
			if play := played[name]; play != nil {
				play(t, all)
				return
			}
			require.Len(t, all, 1, "an example has one command, in a console block")
			require.NotEmpty(t, all[0].output, "it prints something")
			requirePrinted(t, all[0].output, runToEnd(t, newHome(t), all[0].command))
		})
	}
}

// The list of the examples names all of them, with the commands that they give,
// and nothing else.
func TestListOfExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	all := documents(t)
	for name, document := range all {
		require.Contains(t, string(text), "["+name+"]("+name+")", "README.md lists every example")
		own, err := os.ReadFile(document)
		require.NoError(t, err)
		if filepath.Ext(name) == ".yaml" {
			own = []byte(comment(string(own)))
		}
		for _, s := range sessions(t, string(own))[:1] {
			require.Contains(t, strings.ReplaceAll(string(text), `\|`, "|"), "`"+s.command+"`", "README.md has the command of %s", name)
		}
	}
	links := regexp.MustCompile(`\]\(([a-z0-9.]+)\)`)
	for _, link := range links.FindAllStringSubmatch(string(text), -1) {
		require.Contains(t, all, link[1], "README.md lists what there is")
	}
}

// shell makes a command of a document one that can be run from the module's
// root: what it runs is built already, sees no keys, and keeps its data in home.
func shell(ctx context.Context, home, command string) *exec.Cmd {
	for of, dir := range bin {
		command = strings.ReplaceAll(command, "go run ./"+of+"/", dir+"/")
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = ".."
	cmd.Env = environment(home)
	return cmd
}

// runToEnd runs a command that ends by itself and returns what it printed.
func runToEnd(t *testing.T, home, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := shell(ctx, home, command)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	require.NoError(t, cmd.Run(), "%s\n%s", command, &log)
	return out.String()
}

// requirePrinted holds what was printed to a document: its lines, where `…`
// stands for anything, a line of nothing else for any lines.
func requirePrinted(t *testing.T, want []string, got string) {
	t.Helper()
	pattern := regexp.QuoteMeta(strings.Join(want, "\n"))
	pattern = regexp.MustCompile(`(?m)^…$`).ReplaceAllString(pattern, "(?s:.*)")
	pattern = strings.ReplaceAll(pattern, "…", ".*")
	require.Regexp(t, "^"+pattern+"$", strings.TrimRight(got, "\n"))
}

package files

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	block   = regexp.MustCompile("(?s)```sh\n(.*?)```")
	setting = regexp.MustCompile(`^\w+=\S*$`)
	roles   = []string{"planner", "actor", "observer", "gateway", "replay"}
)

// TestManuals tries the command lines of the pages on deployment and operation.
func TestManuals(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "operations", "*.md"))
	require.NoError(t, err)
	tried := 0
	for _, page := range append(pages, filepath.Join(root, "docs", "deploy.md"), filepath.Join(root, "deploy", "nats", "README.md"), filepath.Join(root, "docs", "how-to", "operate.md")) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, found := range block.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(strings.ReplaceAll(found[1], "\\\n", " ")) {
				for _, args := range commands(line) {
					accepts(t, page+": "+line, args)
					tried++
				}
			}
		}
	}
	require.Greater(t, tried, 30)
}

// commands returns the arguments of the programs of this project in a line for the shell.
func commands(line string) (all [][]string) {
	line, _, _ = strings.Cut(line, " #")
	for _, one := range regexp.MustCompile(`\|\|?|&&?|;|<\(|[()]`).Split(line, -1) {
		one, _, _ = strings.Cut(one, " >")
		words := strings.Fields(strings.NewReplacer("'", "", `"`, "").Replace(one))
		words = slices.DeleteFunc(words, func(w string) bool { return w == "<" })
		for len(words) > 0 && (setting.MatchString(words[0]) || words[0] == "env" || words[0] == "sudo") {
			words = words[1:]
		}
		switch {
		case len(words) == 0:
		case words[0] == "moorebus" && len(words) > 1:
			all = append(all, words[1:])
		case slices.Contains(roles, words[0]):
			all = append(all, words)
		}
	}
	return all
}

package moorebus_test

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	code    = regexp.MustCompile("`[^`\n]*`")
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	noWord  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the fragments by which headings are linked to.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		all[strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return all
}

// TestLinksOfDocuments follows every relative link of a Markdown file, to files and
// to headings.
func TestLinksOfDocuments(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "*.md").Output()
	require.NoError(t, err)
	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(fence.ReplaceAllString(string(text), ""), ""), -1) {
			name, fragment, _ := strings.Cut(found[1], "#")
			if strings.Contains(name, ":") {
				continue // elsewhere
			}
			to := file
			if name != "" {
				to = path.Join(path.Dir(file), name)
			}
			_, err := os.Stat(filepath.FromSlash(to))
			require.NoError(t, err, "%s links to %s", file, found[1])
			if fragment != "" {
				target, err := os.ReadFile(to)
				require.NoError(t, err)
				require.True(t, anchors(string(target))[fragment], "%s links to %s, and there is no such heading", file, found[1])
			}
		}
	}
}

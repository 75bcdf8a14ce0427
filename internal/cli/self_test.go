package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStartedAs(t *testing.T) {
	t.Parallel()
	const cached = "/users/ann/.cache/go-build/5f/5f8c0b1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f708192a3b4c5d6e7f-d/moorebus"
	for _, c := range []struct {
		arg, executable, found string
		inModule               bool
		want                   string
	}{
		{"moorebus", "/usr/local/bin/moorebus", "/usr/local/bin/moorebus", false, "moorebus"},
		{"/usr/local/bin/moorebus", "/usr/local/bin/moorebus", "/usr/local/bin/moorebus", false, "moorebus"},
		{"./bin/moorebus", "/src/bin/moorebus", "/usr/local/bin/moorebus", true, "./bin/moorebus"},
		{"/opt/my tools/moorebus", "/opt/my tools/moorebus", "", false, "'/opt/my tools/moorebus'"},
		{"", "", "", false, "moorebus"},
		{cached, cached, "", true, "go run ./cmd/moorebus"},
		{cached, cached, "", false, "go run github.com/moorebus/moorebus/cmd/moorebus"},
		{"/var/go-build12/b001/exe/moorebus", "/var/go-build12/b001/exe/moorebus", "", true, "go run ./cmd/moorebus"},
	} {
		require.Equal(t, c.want, startedAs(c.arg, c.executable, c.found, c.inModule), c.arg)
	}
	require.Equal(t, "moorebus", Self(), "a test is another program")
}

func TestPerson(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ann", Person(func(name string) string { return map[string]string{"USER": "ann"}[name] }))
	require.Equal(t, "bob", Person(func(name string) string { return map[string]string{"LOGNAME": "bob"}[name] }))
	require.NotEmpty(t, Person(func(string) string { return "" }))
}

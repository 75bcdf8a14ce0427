package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	t.Chdir("../../..")
	var out strings.Builder
	require.ErrorContains(t, run(strings.NewReader(""), &out), "not all tests passed", "nothing ran at all")
	pass := `{"Action":"pass","Package":"` + module + `/pkg/x"}` + "\n"
	require.ErrorContains(t, run(strings.NewReader(pass), &out), "did not run", "the tests of the table are missing")
	require.Contains(t, out.String(), "packages: 1 passed, 0 failed")
	fail := `{"Action":"fail","Package":"` + module + `/pkg/x"}` + "\n"
	require.ErrorContains(t, run(strings.NewReader(pass+fail), &out), "not all tests passed")
	require.Contains(t, out.String(), "packages: 1 passed, 1 failed")
}

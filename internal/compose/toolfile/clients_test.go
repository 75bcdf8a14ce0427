package toolfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
)

// TestNoActorHasTheClientsPool: it ends with exit code 1 and says where the pool is named.
func TestNoActorHasTheClientsPool(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tools.yaml")
	require.NoError(t, os.WriteFile(file, []byte("tools:\n  - {name: x, exec: {command: [cat]}, pool: client}\n"), 0o600))
	for says, try := range map[string]func() error{
		`line 2: tools[0].pool: the pool "client" is reserved`: func() error { _, _, err := toolfile.ActorTools(file, nil, false); return err },
		`--pool: the pool "client" is reserved`:                func() error { _, _, err := toolfile.ActorTools("", []string{"client"}, false); return err },
	} {
		err := toolfile.BadConfig(try())
		require.ErrorContains(t, err, says)
		exit := new(cli.ExitError)
		require.False(t, errors.As(err, &exit), "%v", err)
	}
}

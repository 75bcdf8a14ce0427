package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mount makes a directory in memory of this size until the test ends.
func mount(t *testing.T, flags uintptr, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "size="+size); err != nil {
		t.Skip("reason: a file system of a chosen size can be mounted by root alone: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// On a disk that is full from the beginning, or only read, the store is a temporary file.
func TestUnwritable(t *testing.T) {
	file := filepath.Join(mount(t, 0, "16k"), "views.db")
	s, log := open(t, file)
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	works(t, s, 0)

	dir := mount(t, 0, "10m")
	kept, _ := open(t, filepath.Join(dir, "views.db"))
	works(t, kept, 0)
	require.NoError(t, kept.Close())
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	s, log = open(t, filepath.Join(dir, "views.db"))
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	works(t, s, 0)
}

// A batch for which the disk has no room changes nothing. The store goes on where it was once there is room.
func TestDiskFills(t *testing.T) {
	dir := mount(t, 0, "4m")
	s, log := open(t, filepath.Join(dir, "views.db"))
	works(t, s, 0)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 3<<20), 0o600))
	large := history.Batch{Stream: "s", From: 1, To: 2}
	for i := range 300 {
		r := full(string(rune('A'+i)), strings.Repeat("large ", 500))
		large.Runs = append(large.Runs, history.Change{Run: r, Texts: []history.Text{{Kind: history.Task, Text: r.Task}}})
	}
	require.ErrorContains(t, s.Apply(t.Context(), large), "full")
	at, err := s.Positions(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"s": 1}, at)
	got, err := s.Runs(t.Context(), []events.Run{{Namespace: "default", ID: "A"}, {Namespace: "default", ID: "w"}})
	require.NoError(t, err)
	require.Equal(t, []history.Run{full("w", "works")}, got)
	require.NoError(t, os.Remove(filepath.Join(dir, "ballast")))
	large.Runs = large.Runs[:5]
	require.NoError(t, s.Apply(t.Context(), large))
	require.Empty(t, log.String())
}

package powerloss

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// traced is a trace as strace writes it, of one thread and the directory /d.
func traced(t *testing.T, lines ...string) []step {
	t.Helper()
	steps, err := parseTrace(strings.NewReader("1 " + strings.Join(lines, "\n1 ") + "\n"))
	require.NoError(t, err)
	require.Len(t, steps, len(lines))
	return steps
}

// outcomes returns what power losses after the trace leave, with how many seeds do:
// each image as "path=content path=content".
func outcomes(t *testing.T, e Entries, steps []step) map[string]int {
	t.Helper()
	d := newDisk(e)
	r := newReplayer(d, "/d", "/marks", steps)
	for _, s := range steps {
		require.NoError(t, r.start(s))
		r.finish(s)
	}
	all := map[string]int{}
	for seed := range uint64(2000) {
		var is []string
		l := d.lose(rand.New(rand.NewPCG(1, seed)))
		for path, content := range l.image.files {
			is = append(is, fmt.Sprintf("%s=%s", path, content))
		}
		all[strings.Join(is, " ")]++
	}
	return all
}

// possible are the images that power losses leave.
func possible(t *testing.T, e Entries, lines ...string) []string {
	t.Helper()
	var all []string
	for image := range outcomes(t, e, traced(t, lines...)) {
		all = append(all, image)
	}
	return all
}

const (
	create = `openat(AT_FDCWD, "/d/a", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 3`
	open   = `openat(AT_FDCWD, "/d", O_RDONLY|O_CLOEXEC) = 4`
	syncs  = `ioctl(4, FS_IOC_SETFLAGS, [FS_SYNC_FL|FS_EXTENT_FL]) = 0`
)

// A write that is not flushed is there, or not, or its size alone is there.
func TestWhatSurvives(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entries Entries
		lines   []string
		images  []string
	}{
		"nothing is flushed": {EntriesStrict,
			[]string{create, `pwrite64(3, "xy", 2, 0) = 2`},
			[]string{"", "a=", "a=xy", "a=\x00\x00"}},
		"the entry alone is flushed": {EntriesStrict,
			[]string{open, create, `fsync(4) = 0`, `pwrite64(3, "xy", 2, 0) = 2`},
			[]string{"a=", "a=xy", "a=\x00\x00"}},
		"the file alone is flushed": {EntriesStrict,
			[]string{create, `write(3, "xy", 2) = 2`, `fdatasync(3) = 0`},
			[]string{"", "a=xy"}},
		"the file alone is flushed, which takes its entry along": {EntriesFile,
			[]string{create, `write(3, "xy", 2) = 2`, `fdatasync(3) = 0`},
			[]string{"a=xy"}},
		"a flush that failed": {EntriesFile,
			[]string{create, `fsync(3) = -1 EIO (Input/output error)`},
			[]string{"", "a="}},
		"a directory with S": {EntriesStrict,
			[]string{open, syncs, create, `write(3, "xy", 2) = 2`},
			[]string{"a=xy"}},
		"a file that loses S": {EntriesStrict,
			[]string{open, syncs, create, `write(3, "x", 1) = 1`, `ioctl(3, FS_IOC_SETFLAGS, [FS_EXTENT_FL]) = 0`, `write(3, "y", 1) = 1`},
			[]string{"a=x", "a=xy", "a=x\x00"}},
		"a directory with D": {EntriesStrict,
			[]string{open, `ioctl(4, FS_IOC_SETFLAGS, [FS_DIRSYNC_FL]) = 0`, create, `write(3, "y", 1) = 1`},
			[]string{"a=", "a=y", "a=\x00"}},
		"a file that is opened with O_SYNC": {EntriesStrict,
			[]string{open, `openat(AT_FDCWD, "/d/a", O_WRONLY|O_CREAT|O_SYNC, 0600) = 3`, `fsync(4) = 0`, `write(3, "y", 1) = 1`},
			[]string{"a=y"}},
		"a new size needs a flush": {EntriesStrict,
			[]string{open, syncs, create, `write(3, "xy", 2) = 2`, `ftruncate(3, 1) = 0`},
			[]string{"a=xy", "a=x"}},
		"a rename is there or not": {EntriesStrict,
			[]string{open, create, `fsync(4) = 0`, `renameat(AT_FDCWD, "/d/a", AT_FDCWD, "/d/b") = 0`},
			[]string{"a=", "b="}},
		"a rename that a flush covers": {EntriesStrict,
			[]string{open, create, `renameat(4, "a", 4, "b") = 0`, `fsync(4) = 0`},
			[]string{"b="}},
		"a removal is there or not": {EntriesStrict,
			[]string{open, create, `fsync(4) = 0`, `unlinkat(4, "a", 0) = 0`},
			[]string{"", "a="}},
		"later writes survive without earlier ones": {EntriesStrict,
			[]string{open, create, `fsync(4) = 0`, `pwrite64(3, "x", 1, 0) = 1`, `pwrite64(3, "y", 1, 1) = 1`},
			[]string{"a=", "a=x", "a=\x00y", "a=xy", "a=x\x00", "a=\x00\x00"}},
		"an old removal does not take what was made and flushed since": {EntriesFile,
			[]string{`mkdirat(AT_FDCWD, "/d/s", 0700) = 0`, `unlinkat(AT_FDCWD, "/d/s", AT_REMOVEDIR) = 0`, `mkdirat(AT_FDCWD, "/d/s", 0700) = 0`,
				`openat(AT_FDCWD, "/d/s/a", O_RDWR|O_CREAT, 0600) = 3`, `fsync(3) = 0`},
			[]string{"s/a="}},
		"an old write does not undo a synchronous one": {EntriesStrict,
			[]string{open, create, `fsync(4) = 0`, `pwrite64(3, "xx", 2, 0) = 2`, `openat(AT_FDCWD, "/d/a", O_RDWR|O_DSYNC) = 5`, `pwrite64(5, "y", 1, 0) = 1`},
			[]string{"a=y", "a=yx", "a=y\x00"}},
		"a write in flight when the process is killed": {EntriesStrict,
			[]string{open, create, `fsync(4) = 0`, `pwrite64(3, "x", 1, 0 <unfinished ...>`, `<... pwrite64 resumed>) = ?`, `+++ killed by SIGKILL +++`},
			[]string{"a=", "a=x", "a=\x00"}},
		"another thread's file of the same number": {EntriesStrict,
			[]string{open, syncs, create, `close(3) = 0`, `openat(AT_FDCWD, "/elsewhere", O_RDWR|O_CREAT, 0600) = 3`, `write(3, "no", 2) = 2`},
			[]string{"a="}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ElementsMatch(t, c.images, possible(t, c.entries, c.lines...))
		})
	}
}

// A flush covers the writes that had ended before it began, and is good for nothing
// before it has ended.
func TestFlushCoversWhatWasThere(t *testing.T) {
	t.Parallel()
	steps, err := parseTrace(strings.NewReader(`1 openat(AT_FDCWD, "/d", O_RDONLY|O_CLOEXEC) = 4
1 openat(AT_FDCWD, "/d/a", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 3
1 fsync(4) = 0
1 clone3({flags=CLONE_VM|CLONE_THREAD, stack=0}, 88) = 2
1 pwrite64(3, "x", 1, 0) = 1
1 pwrite64(3, "y", 1, 1 <unfinished ...>
2 fsync(3 <unfinished ...>
1 <... pwrite64 resumed>) = 1
2 <... fsync resumed>) = 0
`))
	require.NoError(t, err)
	for cut, images := range map[int][]string{
		6: {"a=", "a=x", "a=\x00y", "a=xy", "a=x\x00", "a=\x00\x00"}, // the second write has begun
		8: {"a=", "a=x", "a=\x00y", "a=xy", "a=x\x00", "a=\x00\x00"}, // the flush has not ended
		9: {"a=x", "a=xy", "a=x\x00"},
	} {
		var have []string
		for image := range outcomes(t, EntriesStrict, steps[:cut]) {
			have = append(have, image)
		}
		require.ElementsMatch(t, images, have, cut)
	}
}

// The last write of a file may be there in part, by sectors, and nothing else may.
func TestTornWrite(t *testing.T) {
	t.Parallel()
	first, last := strings.Repeat("x", 600), strings.Repeat("y", 1000)
	torn := false
	for image := range outcomes(t, EntriesStrict, traced(t, open, create, `fsync(4) = 0`,
		fmt.Sprintf(`pwrite64(3, %q, 600, 0) = 600`, first), `fsync(3) = 0`, fmt.Sprintf(`pwrite64(3, %q, 1000, 600) = 1000`, last))) {
		content := strings.TrimPrefix(image, "a=")
		require.Equal(t, first, content[:600])
		switch len(content) {
		case 600:
			continue
		case 1600:
		default:
			require.Fail(t, "a length that was never", len(content))
		}
		for _, part := range []string{content[600:1024], content[1024:1536], content[1536:]} {
			require.Contains(t, []string{strings.Repeat("y", len(part)), strings.Repeat("\x00", len(part))}, part)
			torn = torn || part[0] == 0
		}
	}
	require.True(t, torn)
}

// The model refuses what it does not know, instead of proving something wrong.
func TestUnknownCallsAreRefused(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`writev(3, [{iov_base="x", iov_len=1}], 1) = 1`,
		`mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0) = 0x7f0000000000`,
		`linkat(AT_FDCWD, "/d/a", AT_FDCWD, "/d/b", 0) = 0`,
		`pwrite64(3, "xy"..., 200, 0) = 200`,
		`ioctl(3, FS_IOC_FSSETXATTR, {fsx_xflags=FS_XFLAG_SYNC}) = 0`,
		`renameat(AT_FDCWD, "/d/a", AT_FDCWD, "/elsewhere") = 0`,
	} {
		steps := traced(t, create, line)
		r := newReplayer(newDisk(EntriesStrict), "/d", "/marks", steps)
		require.NoError(t, r.start(steps[0]))
		r.finish(steps[0])
		require.Error(t, r.start(steps[1]), line)
	}
}

func TestParseTrace(t *testing.T) {
	t.Parallel()
	steps := traced(t, `pwrite64(3, "a\n\"(,) = 1\0011\377\\", 14, 5) = 14`, `openat(AT_FDCWD, "/x", O_RDONLY) = -1 ENOENT (No such file or directory)`)
	data, err := steps[0].call.text(1)
	require.NoError(t, err)
	require.Equal(t, "a\n\"(,) = 1\x011\xff\\", string(data))
	at, ok := steps[0].call.number(3)
	require.True(t, ok)
	require.EqualValues(t, 5, at)
	_, ok = steps[1].call.returned()
	require.False(t, ok)
	for _, bad := range []string{"no number", "1 <... write resumed>) = 1", "1 write", "1 write(3"} {
		_, err := parseTrace(strings.NewReader(bad + "\n"))
		require.Error(t, err, bad)
	}
}

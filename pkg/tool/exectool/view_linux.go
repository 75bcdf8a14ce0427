package exectool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/confine"
	"golang.org/x/sys/unix"
)

// shared are folders that all processes of a system share. In its own view a command has its
// own, which are empty.
func shared() []string { return []string{"/tmp", "/var/tmp", "/dev/shm", os.TempDir()} }

const (
	// sharedSize bounds each of the shared folders, which are in memory. TMPDIR is on the disk.
	sharedBytes = 256 << 20
	sharedSize  = "size=256m"
	nothing     = "size=0,nr_inodes=2,mode=000"
)

// ofKernel is where root sets up the entire system's kernel, whatever its namespaces.
var ofKernel = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"}

// ownView gives this process's mount namespace a /proc of its own processes, a /dev with harmless
// devices only, empty shared folders and no sockets of others, and hides what is hidden. What
// the command may reach stays where it is, also below those folders.
func ownView(g grants) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	for _, path := range ofKernel { // their own mounts stay read-only
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	kept, err := hold(slices.Concat(g.Read, g.Write, []string{g.Dir, g.Temp}, resolvers(), devices))
	if err != nil {
		return err
	}
	defer kept.close()
	covered := []string{"/dev", "/dev/shm"}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, sharedSize+",mode=755"); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	for name, target := range map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink("/proc/self/"+target, "/dev/"+name); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/dev/shm", 0o777); err != nil { //nolint:gosec // as it is on every system
		return err
	}
	if err := os.Chmod("/dev/shm", 0o777|os.ModeSticky); err != nil { // for all users, as on every system
		return err
	}
	for _, folder := range append(shared(), "/run") { // where sockets lead to programs outside, such as Docker's and systemd's
		options := sharedSize + ",mode=1777"
		if folder == "/run" {
			options = "size=1m,mode=755"
		}
		real, err := filepath.EvalSymlinks(folder)
		if err != nil || slices.Contains(covered, real) || kept.has(real) {
			continue // it is not there, or is what the command works in
		}
		if err := unix.Mount("tmpfs", real, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("%s: %w", folder, err)
		}
		covered = append(covered, real)
	}
	if err := kept.showAgain(covered); err != nil {
		return err
	}
	own := slices.DeleteFunc(append([]string{"/proc"}, covered[2:]...), func(path string) bool { return path == "/run" })
	if err := readOnly(append(slices.Clone(g.Write), g.Temp, "/dev/shm"), own); err != nil {
		return err
	}
	if err := cover(g.Hide, g.Write); err != nil {
		return err
	}
	return os.Chdir(g.Dir) // what it was is covered now
}

// readOnly makes all that is mounted read-only but for folders, with all that is in them, which become
// their own mounts, and for what was mounted for this sandbox, without what is mounted in it. So not
// even mode, owner and times of other files can be changed, which Landlock does not cover.
func readOnly(folders, own []string) error {
	slices.Sort(folders) // some may lie in others
	for _, path := range folders {
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	all, err := mountPoints()
	if err != nil {
		return err
	}
	err = unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if errors.Is(err, unix.ENOSYS) { // Linux before 5.12
		err = nil
		for _, m := range all {
			err = errors.Join(err, m.remount(unix.MS_RDONLY))
		}
	}
	if err != nil {
		return fmt.Errorf("the file system cannot be made read-only: %w", err)
	}
	for _, m := range all { // what was read-only before stays so
		is := func(folder string) bool { return within(m.path, folder) }
		if m.flags&unix.MS_RDONLY == 0 && !slices.Contains(ofKernel, m.path) && (slices.ContainsFunc(folders, is) || slices.Contains(own, m.path)) {
			if err := m.remount(0); err != nil {
				return err
			}
		}
	}
	return nil
}

// mountPoint is something mounted, with those flags that a mount for itself has.
type mountPoint struct {
	path  string
	flags uintptr
}

// mountPoints lists what is mounted.
func mountPoints() (all []mountPoint, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	names := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 6 {
			return nil, fmt.Errorf("a mount cannot be read: %q", line)
		}
		m := mountPoint{path: names.Replace(f[4])}
		for option := range strings.SplitSeq(f[5], ",") {
			m.flags |= map[string]uintptr{"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "nosymfollow": unix.MS_NOSYMFOLLOW}[option]
		}
		all = append(all, m)
	}
	return all, nil
}

// remount makes a mount read-only, or writable, and leaves the rest of it as it is. What another mount
// covers, or what this user cannot reach, neither can a command.
func (m mountPoint) remount(readOnly uintptr) error {
	err := unix.Mount("", m.path, "", unix.MS_REMOUNT|unix.MS_BIND|m.flags&^unix.MS_RDONLY|readOnly, "")
	for _, beyond := range []error{unix.ENOENT, unix.ENOTDIR, unix.EINVAL, unix.EACCES} {
		if errors.Is(err, beyond) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m.path, err)
	}
	return nil
}

// resolvers is where the system's DNS settings are in the end.
func resolvers() []string {
	real, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	return []string{real}
}

// held are paths and open files of what they name.
type held map[string]*os.File

func hold(paths []string) (held, error) {
	h := held{}
	for _, path := range paths {
		if path == "" || h[path] != nil {
			continue
		}
		fd, err := confine.Open(path) // the actor followed links; one that is new leads nowhere
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
			continue
		}
		if err != nil {
			h.close()
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		h[path] = os.NewFile(uintptr(fd), path)
	}
	return h, nil
}

func (h held) close() {
	for _, f := range h {
		_ = f.Close() // it was only a name
	}
}

// has reports whether a folder is one of the paths, or in one.
func (h held) has(folder string) bool {
	for path := range h {
		if within(folder, path) {
			return true
		}
	}
	return false
}

// showAgain mounts those paths that lie below what was covered where they were.
func (h held) showAgain(covered []string) error {
	var hiddenBy []string
	for path := range h {
		if slices.ContainsFunc(covered, func(folder string) bool { return within(path, folder) }) {
			hiddenBy = append(hiddenBy, path)
		}
	}
	slices.Sort(hiddenBy) // folders come before what is in them
	for _, path := range hiddenBy {
		if _, err := os.Lstat(path); err == nil {
			continue // with a folder
		}
		if err := place(path, h[path]); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", h[path].Fd()), path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// place makes something at the path to mount what was there.
func place(path string, was *os.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // in a file system of this sandbox alone
		return err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(was.Fd()), &stat); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.Mkdir(path, 0o755) //nolint:gosec // it is covered
	}
	return os.WriteFile(path, nil, 0o600)
}

// cover hides paths behind what is empty. The folders between them and one that may be written are
// mounted on themselves: what is a mount point can be neither renamed nor removed, and a folder with
// another name would no longer be hidden from the next command.
func cover(paths, writable []string) error {
	for _, folder := range between(paths, writable) {
		if err := unix.Mount(folder, folder, "", unix.MS_BIND|unix.MS_REC, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", folder, err)
		}
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // it lies in something that is covered
		case err != nil:
			return err
		case info.IsDir():
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, nothing)
		default:
			err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("%s cannot be hidden: %w", strings.ToValidUTF8(path, "?"), err)
		}
	}
	return nil
}

// loopback brings up the interface by which processes of the sandbox reach each other.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

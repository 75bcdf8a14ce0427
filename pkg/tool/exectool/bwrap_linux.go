package exectool

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// underBwrap has Bubblewrap make namespaces and file system of a command. In them it starts the keeper,
// by the open file of this program, as the program need not be in that file system.
func underBwrap(cmd *exec.Cmd, o *order) error {
	bwrap, err := exec.LookPath(string(Bwrap))
	if err != nil {
		return fmt.Errorf("sandbox: bwrap: Bubblewrap is not installed here: %w", err)
	}
	self, err := os.Open(selfPath)
	if err != nil {
		return err
	}
	args := []string{bwrap, "--unshare-all", "--as-pid-1", "--proc", "/proc", "--dev", "/dev"}
	if o.Network {
		args = append(args, "--share-net")
	}
	for _, folder := range append(shared(), "/run") {
		args = append(args, "--perms", "1777", "--size", strconv.Itoa(sharedBytes), "--tmpfs", folder)
	}
	for _, m := range o.Grants.mounts() {
		kind := "--ro-bind"
		if m.write {
			kind = "--bind"
		}
		args = append(args, kind, m.path, m.path)
	}
	for _, link := range o.Grants.links() {
		args = append(args, "--symlink", link.target, link.path)
	}
	for _, m := range o.Grants.covers() {
		switch m.kind {
		case coverBetween:
			args = append(args, "--bind", m.path, m.path)
		case coverFolder:
			args = append(args, "--perms", "0000", "--tmpfs", m.path, "--remount-ro", m.path)
		case coverFile:
			args = append(args, "--ro-bind", "/dev/null", m.path)
		}
	}
	o.By, o.Inside = Bwrap, true
	cmd.Path, cmd.ExtraFiles = bwrap, append(cmd.ExtraFiles, self)
	cmd.Args = append(append(args, "--chdir", o.Grants.Dir, "--", fmt.Sprintf("/proc/self/fd/%d", 2+len(cmd.ExtraFiles))), o.arguments()...)
	return nil
}

// mount is a path that another program shows to a command.
type mount struct {
	path  string
	write bool
}

// mounts lists what a command may reach in a file system that has nothing else, folders before what
// is in them. What lies in one that is shown in the same way is omitted.
func (g grants) mounts() []mount {
	all := map[string]bool{} // whether it may be written
	for _, path := range slices.Concat(readable, g.Read) {
		if _, err := os.Stat(path); err == nil && !within(path, "/proc") && !within(path, "/sys") {
			all[path] = false
		}
	}
	for _, path := range append(slices.Clone(g.Write), g.Temp) {
		all[path] = true
	}
	var list []mount
	for path, write := range all {
		shown := slices.ContainsFunc(g.Hide, func(hide string) bool { return within(path, hide) })
		for other, too := range all {
			shown = shown || other != path && within(path, other) && (too || !write)
		}
		if !shown {
			list = append(list, mount{path, write})
		}
	}
	slices.SortFunc(list, func(a, b mount) int { return strings.Compare(a.path, b.path) })
	return list
}

// link is a symbolic link by which a command names something that it may reach.
type link struct{ path, target string }

// links lists those of the names of what a command may reach that are not shown otherwise.
func (g grants) links() (list []link) {
	shown := g.mounts()
	for path, target := range g.Names {
		if !slices.ContainsFunc(shown, func(m mount) bool { return within(path, m.path) }) {
			list = append(list, link{path, target})
		}
	}
	slices.SortFunc(list, func(a, b link) int { return strings.Compare(a.path, b.path) })
	return list
}

// The kinds of covers: a folder between one that is hidden and one that may be written is mounted on
// itself, as [cover] does; a folder and a file are hidden behind nothing.
const (
	coverBetween = iota
	coverFolder
	coverFile
)

type covering struct {
	path string
	kind int
}

// covers lists what hides, in what a command may reach, what is hidden.
func (g grants) covers() (list []covering) {
	shown := g.mounts()
	var hide []covering
	for _, path := range g.Hide {
		at := slices.IndexFunc(shown, func(m mount) bool { return within(path, m.path) })
		info, err := os.Stat(path)
		if at < 0 || err != nil {
			continue
		}
		kind := coverFile
		if info.IsDir() {
			kind = coverFolder
		}
		hide = append(hide, covering{path, kind})
	}
	for _, folder := range between(g.Hide, g.Write) {
		list = append(list, covering{folder, coverBetween})
	}
	return append(list, slices.DeleteFunc(hide, func(c covering) bool { // a folder that is hidden hides it
		return slices.ContainsFunc(hide, func(other covering) bool { return other.path != c.path && within(c.path, other.path) })
	})...)
}

// between lists the folders between hidden paths and folders that may be written, from above.
func between(hide, writable []string) (list []string) {
	for _, path := range hide {
		for _, folder := range writable {
			for parent := filepath.Dir(path); within(parent, folder) && parent != folder; parent = filepath.Dir(parent) {
				list = append(list, parent)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

package exectool

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// hidden are the paths that no command in a sandbox may read or write, see [Hide].
var hidden struct {
	sync.Mutex
	paths []string
}

// Hide keeps files and folders from commands in a sandbox, wherever they lie and whatever a
// command may read besides: keys, logs, and the files that say what a tool may do. Paths that are
// empty, or that do not exist when a command starts, are omitted. It adds to what is hidden.
func Hide(paths ...string) {
	hidden.Lock()
	defer hidden.Unlock()
	for _, path := range paths {
		absolute, err := filepath.Abs(path)
		if path != "" && err == nil && !slices.Contains(hidden.paths, absolute) {
			hidden.paths = append(hidden.paths, absolute)
		}
	}
}

// worked are the working folders of this process's tools.
var worked struct {
	sync.Mutex
	folders []string
}

// worksIn notes the working folder of a tool.
func worksIn(folder string) {
	worked.Lock()
	defer worked.Unlock()
	if !slices.Contains(worked.folders, folder) {
		worked.folders = append(worked.folders, folder)
	}
}

// workplaces returns the working folders of all tools.
func workplaces() []string {
	worked.Lock()
	defer worked.Unlock()
	return slices.Clone(worked.folders)
}

// concealed are the hidden paths that exist, without symbolic links.
func concealed() []string {
	hidden.Lock()
	defer hidden.Unlock()
	var there []string
	for _, path := range hidden.paths {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			there = append(there, real)
		}
	}
	return there
}

// grants is what a command may reach in the file system, in addition to what every command may.
type grants struct {
	// Dir is the working folder, Temp the folder for temporary files.
	Dir, Temp string
	// Read may be read and Write be written as well. Hide is in none of them.
	Read, Write, Hide []string
	// Names has what in Read has another name, by that.
	Names map[string]string `json:"-"`
}

// readable is what any command may read: programs, libraries, and how the system names users, hosts
// and certificates. Of /etc nothing else, as keys are there too.
var readable = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/proc",
	"/sys/fs/cgroup", "/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage",
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/alternatives", "/etc/passwd", "/etc/group",
	"/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols",
	"/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/locale.conf", "/etc/mime.types", "/etc/fonts", "/etc/os-release",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem", "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/crypto-policies",
	"/etc/bash.bashrc", "/etc/inputrc", "/etc/terminfo", "/etc/java", "/etc/perl", "/etc/magic",
}

// devices are the files in /dev that any command may read and write.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// libraries are the folders next to a program's folder bin that belong to it.
var libraries = []string{"lib", "lib64", "libexec", "share", "include", "pyvenv.cfg"}

// grant returns what a command may reach: its working folder and that for temporary files, the
// program with its libraries, the files that its arguments name, and what the tool's settings say.
// The working folder is home, where dir led when the tool was made, or without dir this process's own,
// unless that is everything; then it is temp. All paths are without symbolic links. What does not exist is omitted.
//
// A command may replace what is in its working folder by a symbolic link to what it or another tool may
// not read. So a link in the working folder of a tool leads out of it only if it did when this tool was
// made, as before says.
func grant(dir, home, temp, program string, args, read []string, before map[string]string) (grants, error) {
	wd := home
	if dir == "" {
		var err error
		if wd, err = realDir(""); err != nil {
			return grants{}, err
		}
	}
	g := grants{Dir: wd, Temp: temp, Hide: concealed(), Names: map[string]string{}}
	if dir == "" && everything(wd) {
		g.Dir = temp
	} else {
		g.Write = append(g.Write, wd)
	}
	add := func(path string) {
		if !filepath.IsAbs(path) {
			path = filepath.Join(wd, path)
		}
		real, err := filepath.EvalSymlinks(path)
		if err == nil && before[filepath.Clean(path)] != real && !within(real, wd) && linkedIn(path, append(workplaces(), wd)) {
			return
		}
		inside := slices.ContainsFunc(g.Write, func(folder string) bool { return within(real, folder) })
		if err == nil && !inside && !slices.Contains(g.Read, real) {
			g.Read = append(g.Read, real)
		}
		if path = filepath.Clean(path); err == nil && path != real {
			g.Names[path] = real
		}
	}
	add(program)
	if !filepath.IsAbs(program) {
		program = filepath.Join(wd, program)
	}
	if real, err := filepath.EvalSymlinks(program); err == nil {
		for _, from := range []string{program, real} {
			if folder := filepath.Dir(from); filepath.Base(folder) == "bin" {
				for _, name := range libraries {
					add(filepath.Join(filepath.Dir(folder), name))
				}
			}
		}
	}
	for _, path := range append(paths(args), read...) {
		add(path)
	}
	return g, nil
}

// realDir returns a working folder without symbolic links. What of it does not exist yet is as dir says,
// so that it is no link when it does.
func realDir(dir string) (string, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for rest := ""; ; path = filepath.Dir(path) {
		real, err := filepath.EvalSymlinks(path)
		if err == nil || path == filepath.Dir(path) {
			return filepath.Join(real, rest), err
		}
		rest = filepath.Join(filepath.Base(path), rest)
	}
}

// paths are the words of a command that name files.
func paths(args []string) (list []string) {
	for _, arg := range args {
		if strings.ContainsRune(arg, filepath.Separator) && filepath.Clean(arg) != "/" {
			list = append(list, arg)
		}
	}
	return list
}

// leadsTo returns where the paths that a tool names lead now, by the paths; wd is its working folder.
func leadsTo(wd string, list []string) map[string]string {
	now := map[string]string{}
	for _, path := range list {
		if !filepath.IsAbs(path) {
			path = filepath.Join(wd, path)
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			now[filepath.Clean(path)] = real
		}
	}
	return now
}

// maxLinks is how many links a path may go through, as Linux has it.
const maxLinks = 40

// linkedIn reports whether a path goes through a symbolic link in one of some folders, which are without
// links.
func linkedIn(path string, folders []string) bool {
next:
	for range maxLinks {
		at := "/"
		rest := strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
		for i, name := range rest {
			here := filepath.Join(at, name)
			target, err := os.Readlink(here)
			if err != nil {
				at = here // it is no link
				continue
			}
			if slices.ContainsFunc(folders, func(folder string) bool { return within(here, folder) }) {
				return true
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(at, target)
			}
			path = filepath.Join(append([]string{target}, rest[i+1:]...)...)
			continue next
		}
		return false
	}
	return true
}

// everything reports whether a folder holds more than a tool is meant to have: the entire system, or
// all that is the user's.
func everything(dir string) bool {
	if dir == "/" {
		return true
	}
	home, err := os.UserHomeDir()
	if err == nil {
		home, err = filepath.EvalSymlinks(home)
	}
	return err == nil && within(home, dir)
}

// within reports whether a path is the folder or lies in it. Both are clean and absolute.
func within(path, folder string) bool {
	return folder == "/" || path == folder || strings.HasPrefix(path, folder+"/")
}

// without returns what covers the paths but for what is hidden.
func without(paths, hide []string) (parts []string) {
	for _, path := range paths {
		parts = append(parts, uncovered(path, hide)...)
	}
	return parts
}

// uncovered returns the folder itself if nothing hidden lies in it, else what is in it, without what
// is hidden. What appears in the folder later is not covered.
func uncovered(folder string, hide []string) []string {
	inside := slices.ContainsFunc(hide, func(path string) bool { return within(path, folder) })
	switch {
	case slices.ContainsFunc(hide, func(path string) bool { return within(folder, path) }):
		return nil
	case !inside:
		return []string{folder}
	}
	entries, _ := os.ReadDir(folder) // what cannot be read is not granted
	var parts []string
	for _, e := range entries {
		parts = append(parts, uncovered(filepath.Join(folder, e.Name()), hide)...)
	}
	return parts
}

package exectool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moorebus/moorebus/pkg/tool"
)

// runscLog is the file of a bundle in which runsc says why it failed.
const runscLog = "log"

// runscFailed is the exit status of runsc itself. A command may have it, too.
const runscFailed = 128

// underRunsc has gVisor run a command: the keeper starts runsc outside, with a bundle as the runtime
// specification of the Open Container Initiative describes it. It returns the bundle's folder, which
// the command does not see. It holds the command's environment, so the keeper removes it, too.
func underRunsc(cmd *exec.Cmd, o *order) (bundle string, err error) {
	runsc, err := exec.LookPath(string(Runsc))
	if err != nil {
		return "", fmt.Errorf("sandbox: runsc: gVisor is not installed here: %w", err)
	}
	if bundle, err = os.MkdirTemp("", "moorebus-runsc-"); err != nil {
		return "", err
	}
	root, network := filepath.Join(bundle, "rootfs"), "none"
	if o.Network {
		network = "host"
	}
	spec, err := o.bundle(root, cmd.Env)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o600)
	}
	o.By, o.Inside, o.Path, o.Bundle = Runsc, false, runsc, bundle
	o.Args = []string{runsc, "--rootless", "--ignore-cgroups", "--network=" + network, "--root", filepath.Join(bundle, "state"),
		"--log", filepath.Join(bundle, runscLog), "--log-format", "json", "run", "--bundle", bundle, filepath.Base(bundle)}
	return bundle, err
}

// The runtime specification, as far as it is used.
type (
	ociSpec struct {
		Version string     `json:"ociVersion"`
		Process ociProcess `json:"process"`
		Root    ociRoot    `json:"root"`
		Mounts  []ociMount `json:"mounts"`
		Linux   ociLinux   `json:"linux"`
	}
	ociProcess struct {
		User            struct{ UID, GID int } `json:"user"`
		Args            []string               `json:"args"`
		Env             []string               `json:"env"`
		Dir             string                 `json:"cwd"`
		Limits          []ociLimit             `json:"rlimits"`
		NoNewPrivileges bool                   `json:"noNewPrivileges"`
	}
	ociLimit struct {
		Type string `json:"type"`
		Hard uint64 `json:"hard"`
		Soft uint64 `json:"soft"`
	}
	ociRoot struct {
		Path     string `json:"path"`
		ReadOnly bool   `json:"readonly"`
	}
	ociMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	ociLinux struct {
		Namespaces []ociNamespace `json:"namespaces"`
	}
	ociNamespace struct {
		Type string `json:"type"`
	}
)

// bundle writes the specification of a command, and makes the file system that its mounts need.
func (o *order) bundle(root string, env []string) ([]byte, error) {
	s := ociSpec{Version: "1.0.0", Root: ociRoot{Path: root, ReadOnly: true}}
	// The program of the specification is also its name, so its own is omitted.
	s.Process = ociProcess{Args: append([]string{o.Path}, o.Args[1:]...), Env: env, Dir: o.Grants.Dir, NoNewPrivileges: true}
	for name, most := range map[string]uint64{"CORE": 0, "FSIZE": maxFileSize, "NOFILE": maxOpenFiles} {
		s.Process.Limits = append(s.Process.Limits, ociLimit{Type: "RLIMIT_" + name, Hard: most, Soft: most})
	}
	for _, name := range []string{"pid", "mount", "ipc", "uts", "network"} {
		if name != "network" || !o.Network {
			s.Linux.Namespaces = append(s.Linux.Namespaces, ociNamespace{name})
		}
	}
	add := func(path, kind, source string, options ...string) error {
		s.Mounts = append(s.Mounts, ociMount{Destination: path, Type: kind, Source: source, Options: options})
		info, err := os.Stat(source)
		if err == nil && !info.IsDir() {
			return errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755), os.WriteFile(filepath.Join(root, path), nil, 0o600)) //nolint:gosec // it shows names
		}
		return os.MkdirAll(filepath.Join(root, path), 0o755) //nolint:gosec // it shows names
	}
	errs := []error{add("/proc", "proc", "proc"), os.MkdirAll(filepath.Join(root, "dev"), 0o755)} //nolint:gosec // gVisor has its own
	for _, folder := range append(shared(), "/run") {
		errs = append(errs, add(folder, "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777", sharedSize))
	}
	for _, m := range o.Grants.mounts() {
		option := "ro"
		if m.write {
			option = "rw"
		}
		errs = append(errs, add(m.path, "bind", m.path, "rbind", option))
	}
	nothing := filepath.Join(filepath.Dir(root), "nothing")
	errs = append(errs, os.WriteFile(nothing, nil, 0o400))
	for _, c := range o.Grants.covers() {
		switch c.kind {
		case coverBetween:
			errs = append(errs, add(c.path, "bind", c.path, "rbind", "rw"))
		case coverFolder:
			errs = append(errs, add(c.path, "tmpfs", "tmpfs", "ro", "mode=000"))
		case coverFile:
			errs = append(errs, add(c.path, "bind", nothing, "ro"))
		}
	}
	for _, l := range o.Grants.links() {
		at := filepath.Join(root, l.path)
		err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(l.target, at)) //nolint:gosec // it shows names
		if !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	text, err := json.Marshal(s)
	return text, errors.Join(append(errs, err)...)
}

// maxRunscLog is how much of runsc's log is read: a report must fit into a pipe.
const maxRunscLog = 16 << 10

// logOf returns what runsc said.
func logOf(bundle string) string {
	if bundle == "" {
		return "" // it does not run here
	}
	file, err := os.Open(filepath.Join(bundle, runscLog))
	if err != nil {
		return "" // it said nothing
	}
	defer func() { _ = file.Close() }() // it was only read
	text, _ := io.ReadAll(io.LimitReader(file, maxRunscLog))
	return string(text)
}

// runscVerdict returns what runsc says itself of its end: a [*notStarted] if the command was not
// started, a [*tool.Failure] if that is not known, nil if it was the command that ended so.
func runscVerdict(log string, w syscall.WaitStatus) error {
	if w.Exited() && w.ExitStatus() != runscFailed {
		return nil
	}
	for text := range strings.Lines(log) {
		var line struct{ Level, Msg string }
		if json.Unmarshal([]byte(text), &line) != nil || line.Level != "error" && line.Level != "fatal" {
			continue
		}
		for _, step := range []string{"creating container", "starting container"} {
			if strings.Contains(line.Msg, step) {
				return &notStarted{reason: "runsc: " + line.Msg}
			}
		}
		return tool.Failf(tool.CodeUnreachable, "the sandbox of the command broke, how it ended is not known: runsc: %s", line.Msg)
	}
	if w.Signaled() {
		return tool.Failf(tool.CodeUnreachable, "the sandbox of the command broke, how it ended is not known: runsc: %s", stateOf(w))
	}
	return nil
}

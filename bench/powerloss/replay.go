package powerloss

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
)

// replayer applies a trace to a disk, step by step.
type replayer struct {
	disk *disk
	// root is the directory that the disk holds, and marks the file to which the load
	// writes what it saw.
	root, marks string
	// process says which process a thread belongs to.
	process map[int]int
	open    map[int]map[int64]*descriptor
	// ends has what is to be done at the end of the calls in flight.
	ends map[*call]func(result int64, ok bool)
	// at counts the steps.
	at int
	// seen are the marks so far, each a line.
	seen [][]byte
}

// descriptor is an open file. Copies of a descriptor share it.
type descriptor struct {
	node           *node
	path           string
	marks          bool
	append, synced bool
	offset         int64
}

// newReplayer prepares a replay of a trace of which root was empty at the start.
func newReplayer(d *disk, root, marks string, steps []step) *replayer {
	r := &replayer{disk: d, root: root, marks: marks, process: map[int]int{}, open: map[int]map[int64]*descriptor{}, ends: map[*call]func(int64, bool){}}
	for _, s := range steps {
		if s.call == nil || !s.ends {
			continue
		}
		child, ok := s.call.returned()
		switch s.call.name {
		case "clone", "clone3", "fork", "vfork":
			if ok && strings.Contains(s.call.args, "CLONE_THREAD") {
				r.process[int(child)] = r.of(s.thread)
			}
		}
	}
	return r
}

// of returns the process of a thread: that of the thread that began it, or itself.
func (r *replayer) of(thread int) int {
	if p, known := r.process[thread]; known {
		return p
	}
	return thread
}

// start applies the step without the end of its call, finish the rest.
func (r *replayer) start(s step) error {
	r.at++
	if s.call == nil || !s.begins {
		return nil
	}
	end, err := r.begin(s.call)
	if err != nil {
		return fmt.Errorf("step %d: %w", r.at, err)
	}
	if end != nil {
		r.ends[s.call] = end
	}
	return nil
}

func (r *replayer) finish(s step) {
	if s.call == nil || !s.ends || r.ends[s.call] == nil {
		return
	}
	end := r.ends[s.call]
	delete(r.ends, s.call)
	result, ok := s.call.returned()
	// A call in which the process was killed has no result. It may have been carried out.
	end(result, ok || strings.HasPrefix(s.call.result, "?"))
}

// files returns the open files of the thread's process.
func (r *replayer) files(c *call) map[int64]*descriptor {
	p := r.of(c.thread)
	if r.open[p] == nil {
		r.open[p] = map[int64]*descriptor{}
	}
	return r.open[p]
}

// file returns the open file that argument i of the call names. It returns nil for a file
// outside the data directory.
func (r *replayer) file(c *call, i int) *descriptor {
	fd, ok := c.number(i)
	if !ok {
		return nil
	}
	return r.files(c)[fd]
}

// begin applies the beginning of a call. It returns what its end does, or nil.
func (r *replayer) begin(c *call) (end func(int64, bool), err error) {
	switch c.name {
	case "open", "openat", "creat", "openat2":
		return r.openFile(c)
	case "close":
		fd, _ := c.number(0)
		delete(r.files(c), fd) // from now on another thread may get the number
	case "dup", "dup2", "dup3", "fcntl":
		return r.duplicate(c)
	case "execve":
		r.open[r.of(c.thread)] = nil // Go opens everything close-on-exec
	case "write", "pwrite64":
		return r.write(c)
	case "ftruncate", "truncate":
		return r.truncate(c)
	case "fsync", "fdatasync":
		return r.fsync(c)
	case "sync", "syncfs":
		begun := r.at
		return func(_ int64, ok bool) {
			if ok {
				r.disk.syncAll(begun)
			}
		}, nil
	case "ioctl":
		return r.attributes(c)
	case "lseek":
		f := r.file(c, 0)
		return func(to int64, ok bool) {
			if ok && f != nil {
				f.offset = to
			}
		}, nil
	case "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat":
		return r.rename(c)
	case "sync_file_range", "clone", "clone3", "fork", "vfork":
	default:
		return nil, r.refuse(c)
	}
	return nil, nil
}

// refuse is an error if a call that the model does not know is about the files.
func (r *replayer) refuse(c *call) error {
	for i := range 5 {
		if f := r.file(c, i); f != nil && (c.name != "mmap" || i == 4 && strings.Contains(c.args, "PROT_WRITE") && strings.Contains(c.args, "MAP_SHARED")) {
			return fmt.Errorf("the model does not know %s of %s", c.name, f.path)
		}
		if text, err := c.text(i); err == nil && r.inside(string(text)) {
			return fmt.Errorf("the model does not know %s of %s", c.name, text)
		}
	}
	return nil
}

func (r *replayer) inside(path string) bool {
	return path == r.root || strings.HasPrefix(path, r.root+"/")
}

// short leaves the directory's own path out of what reports say.
func (r *replayer) short(text string) string { return strings.ReplaceAll(text, r.root+"/", "") }

// place is a name in a directory of the disk.
type place struct {
	dir  *node
	name string
	path string
}

// node is what has the name, or nil.
func (p *place) node() *node {
	if p.name == "" {
		return p.dir
	}
	return p.dir.names[p.name]
}

// place resolves a call's path, which is argument i, after the directory that argument
// i-1 names if the call takes one. It returns nil for what is outside.
func (r *replayer) place(c *call, i int, at bool) (*place, error) {
	text, err := c.text(i)
	if err != nil {
		return nil, nil // a path that could not be read: the call fails
	}
	path, dir := string(text), r.disk.root
	if !filepath.IsAbs(path) {
		if !at {
			return nil, nil
		}
		f := r.file(c, i-1)
		if f == nil || f.node == nil {
			return nil, nil
		}
		dir = f.node
		path = filepath.Join(f.path, path)
	} else if !r.inside(filepath.Clean(path)) {
		return nil, nil
	}
	path = filepath.Clean(path)
	below, err := filepath.Rel(r.root, path)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(string(text)) {
		below = filepath.Clean(string(text))
	}
	names := strings.Split(below, "/")
	if below == "." {
		return &place{dir: dir, path: path}, nil
	}
	for _, name := range names[:len(names)-1] {
		if dir = dir.names[name]; dir == nil || !dir.isDir {
			return nil, nil // the call fails
		}
	}
	return &place{dir: dir, name: names[len(names)-1], path: path}, nil
}

func (r *replayer) openFile(c *call) (func(int64, bool), error) {
	at, first := c.name == "openat" || c.name == "openat2", 0
	if at {
		first = 1
	}
	flags, _ := c.word(first + 1)
	has := func(flag string) bool { return strings.Contains(flags, flag) }
	if text, err := c.text(first); err == nil && string(text) == r.marks {
		return func(fd int64, ok bool) {
			if ok {
				r.files(c)[fd] = &descriptor{marks: true, path: r.marks}
			}
		}, nil
	}
	p, err := r.place(c, first, at)
	if p == nil || err != nil {
		return nil, err
	}
	if c.name == "openat2" || c.name == "creat" || has("O_TMPFILE") {
		return nil, fmt.Errorf("the model does not know %s(%.200s)", c.name, c.args)
	}
	var cut *change
	if n := p.node(); n != nil && has("O_TRUNC") && len(n.data) > 0 {
		cut = r.disk.begin(&change{what: "truncate " + r.short(p.path), begun: r.at, file: n, truncate: true})
	}
	begun := r.at
	return func(fd int64, ok bool) {
		if cut != nil && ok {
			r.disk.finish(cut, r.at, false)
		} else if cut != nil {
			r.disk.forget(cut)
		}
		if !ok {
			return
		}
		n := p.node()
		if n == nil {
			n = p.dir.child(false)
			made := r.disk.begin(&change{what: "create " + r.short(p.path), begun: begun, bindings: []binding{{p.dir, p.name, n}}})
			r.disk.finish(made, r.at, false)
		}
		// O_SYNC contains O_DSYNC.
		r.files(c)[fd] = &descriptor{node: n, path: p.path, append: has("O_APPEND"), synced: has("O_SYNC") || has("O_DSYNC")}
	}, nil
}

func (r *replayer) duplicate(c *call) (func(int64, bool), error) {
	f := r.file(c, 0)
	if f == nil {
		return nil, nil
	}
	if c.name == "fcntl" && !strings.Contains(c.args, "F_DUPFD") {
		return nil, nil
	}
	return func(fd int64, ok bool) {
		if ok {
			r.files(c)[fd] = f
		}
	}, nil
}

func (r *replayer) write(c *call) (func(int64, bool), error) {
	f := r.file(c, 0)
	if f == nil || !f.marks && f.node == nil {
		return nil, nil
	}
	data, err := c.text(1)
	if err != nil {
		return nil, err
	}
	if f.marks {
		r.seen = append(r.seen, bytes.TrimSpace(data))
		return nil, nil
	}
	offset, positioned := c.number(3)
	if !positioned {
		offset = f.offset
	}
	if f.append {
		offset = int64(len(f.node.data))
	}
	written := r.disk.begin(&change{what: fmt.Sprintf("write %s, %d bytes at %d", r.short(f.path), len(data), offset), begun: r.at, file: f.node, offset: offset, data: data})
	return func(n int64, ok bool) {
		if !ok {
			r.disk.forget(written)
			return
		}
		if n > 0 { // not where the process was killed in the call
			written.data = written.data[:n]
		}
		if !positioned {
			f.offset = offset + int64(len(written.data))
		}
		r.disk.finish(written, r.at, f.synced || f.node.sync)
	}, nil
}

func (r *replayer) truncate(c *call) (func(int64, bool), error) {
	var n *node
	var path string
	if c.name == "truncate" {
		p, err := r.place(c, 0, false)
		if p == nil || err != nil {
			return nil, err
		}
		n, path = p.node(), p.path
	} else if f := r.file(c, 0); f != nil {
		n, path = f.node, f.path
	}
	size, ok := c.number(1)
	if n == nil || !ok {
		return nil, nil
	}
	cut := r.disk.begin(&change{what: fmt.Sprintf("truncate %s to %d", r.short(path), size), begun: r.at, file: n, offset: size, truncate: true})
	return func(_ int64, ok bool) {
		if ok {
			r.disk.finish(cut, r.at, false)
		} else {
			r.disk.forget(cut)
		}
	}, nil
}

func (r *replayer) fsync(c *call) (func(int64, bool), error) {
	f, begun := r.file(c, 0), r.at
	if f == nil || f.node == nil {
		return nil, nil
	}
	return func(_ int64, ok bool) {
		if ok && !strings.HasPrefix(c.result, "?") {
			r.disk.fsync(f.node, begun)
		}
	}, nil
}

// attributes is chattr.
func (r *replayer) attributes(c *call) (func(int64, bool), error) {
	f := r.file(c, 0)
	request, _ := c.word(1)
	if f == nil || f.node == nil || strings.Contains(request, "GETFLAGS") || strings.Contains(request, "GETXATTR") || strings.HasPrefix(request, "TC") {
		return nil, nil
	}
	if request != "FS_IOC_SETFLAGS" {
		return nil, fmt.Errorf("the model does not know ioctl %s of %s", request, f.path)
	}
	flags, _ := c.word(2)
	// The attributes are gone before the call returns, and are there after it.
	sync, dirsync := strings.Contains(flags, "FS_SYNC_FL"), strings.Contains(flags, "FS_DIRSYNC_FL")
	f.node.sync, f.node.dirsync = f.node.sync && sync, f.node.dirsync && dirsync
	return func(_ int64, ok bool) {
		if ok {
			f.node.sync, f.node.dirsync = sync, dirsync
		}
	}, nil
}

// rename is every call that changes names and no content.
func (r *replayer) rename(c *call) (func(int64, bool), error) {
	at, first := strings.HasSuffix(c.name, "at") || strings.HasSuffix(c.name, "at2"), 0
	if at {
		first = 1
	}
	p, err := r.place(c, first, at)
	if err != nil {
		return nil, err
	}
	var bindings []binding
	switch {
	case strings.HasPrefix(c.name, "rename"):
		second := first + 1
		if at {
			second++
		}
		to, err := r.place(c, second, at)
		if err != nil {
			return nil, err
		}
		if p == nil && to == nil {
			return nil, nil
		}
		if p == nil || to == nil || strings.Contains(c.args, "RENAME_EXCHANGE") {
			return nil, fmt.Errorf("the model does not know %s(%.300s)", c.name, c.args)
		}
		bindings = []binding{{to.dir, to.name, p.node()}, {p.dir, p.name, nil}}
		if p.node() == nil {
			return nil, nil // the call fails
		}
	case p == nil:
		return nil, nil
	case strings.HasPrefix(c.name, "mkdir"):
		if p.node() != nil {
			return nil, nil // the call fails
		}
		bindings = []binding{{p.dir, p.name, p.dir.child(true)}}
	default:
		if p.node() == nil {
			return nil, nil // the call fails
		}
		bindings = []binding{{p.dir, p.name, nil}}
	}
	named := r.disk.begin(&change{what: c.name + " " + r.short(c.args), begun: r.at, bindings: bindings})
	return func(_ int64, ok bool) {
		if ok {
			r.disk.finish(named, r.at, false)
		} else {
			r.disk.forget(named)
		}
	}, nil
}

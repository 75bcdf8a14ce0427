package powerloss

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// Entries says when the entry of a new or renamed file is on the disk.
type Entries string

const (
	// EntriesStrict is what POSIX promises: an entry is on the disk after an fsync of its
	// directory, or at once in a directory with the sync or the dirsync attribute.
	EntriesStrict Entries = "strict"
	// EntriesFile is what ext4 and xfs do besides: an fsync of a file takes its own entry
	// to the disk, and those of the directories above it.
	EntriesFile Entries = "file"
)

// disk is a model of a file system that may lose power. Each change is pending until
// something makes it durable. Of what is pending, any subset survives a power loss.
// Times are places in the trace, so that a flush covers what had ended before it began.
type disk struct {
	entries Entries
	root    *node
	// pending are all changes that a power loss may undo, in the order in which they began.
	pending []*change
}

// node is a file or a directory.
type node struct {
	isDir bool
	// sync and dirsync are the attributes S and D of chattr.
	sync, dirsync bool

	// data is a file's content as processes read it, kept what is surely on the disk.
	data, kept []byte
	// names and keptNames are the same of a directory.
	names, keptNames map[string]*node
	pending          []*change
	// boundBy are the pending changes that gave the node a name.
	boundBy []*change
}

// change is something that was done to a file's content or to names.
type change struct {
	// what is said of it in reports.
	what string
	// begun and done are times. done is 0 before the call has returned.
	begun, done int

	// file is the file whose content changes: data at offset, or with truncate its size
	// becomes offset. nil: names change.
	file     *node
	offset   int64
	data     []byte
	truncate bool

	// bindings change names, all of them or none.
	bindings []binding
}

// binding gives a name to a node, or takes it away (nil).
type binding struct {
	dir  *node
	name string
	node *node
}

func newDisk(e Entries) *disk { return &disk{entries: e, root: newDir()} }

func newDir() *node {
	return &node{isDir: true, names: map[string]*node{}, keptNames: map[string]*node{}}
}

// child returns a new file or directory with the attributes that it inherits.
func (n *node) child(isDir bool) *node {
	c := &node{}
	if isDir {
		c = newDir()
		c.dirsync = n.dirsync
	}
	c.sync = n.sync
	return c
}

// begin notes a change that may take effect from now on.
func (d *disk) begin(c *change) *change {
	d.pending = append(d.pending, c)
	for _, n := range c.places() {
		n.pending = append(n.pending, c)
	}
	for _, b := range c.bindings {
		if b.node != nil {
			b.node.boundBy = append(b.node.boundBy, c)
		}
	}
	return c
}

// places are the file or the directories that the change is made to.
func (c *change) places() []*node {
	if c.file != nil {
		return []*node{c.file}
	}
	var dirs []*node
	for _, b := range c.bindings {
		if !slices.Contains(dirs, b.dir) {
			dirs = append(dirs, b.dir)
		}
	}
	return dirs
}

// forget takes a change out of what is pending: it failed, or it is durable.
func (d *disk) forget(c *change) {
	is := func(other *change) bool { return other == c }
	d.pending = slices.DeleteFunc(d.pending, is)
	for _, n := range c.places() {
		n.pending = slices.DeleteFunc(n.pending, is)
	}
	for _, b := range c.bindings {
		if b.node != nil {
			b.node.boundBy = slices.DeleteFunc(b.node.boundBy, is)
		}
	}
}

// finish is the return of the change's call: processes see the change. With sync it
// is durable, too.
func (d *disk) finish(c *change, at int, sync bool) {
	c.done = at
	if c.file != nil {
		c.file.data = c.apply(c.file.data)
	}
	for _, b := range c.bindings {
		b.apply(b.dir.names)
		sync = sync || b.dir.sync || b.dir.dirsync
	}
	switch {
	case !sync:
	case c.file == nil:
		d.keep(c)
	case c.truncate: // no promise: only a flush makes a new size durable
	default:
		// A synchronous write takes the file's size along, but not other data.
		d.flush(c.file, c.begun, func(other *change) bool { return other == c || other.truncate })
		d.keepEntry(c.file, c.begun)
	}
}

// apply returns the content with the change.
func (c *change) apply(content []byte) []byte {
	size := int(c.offset)
	if !c.truncate {
		size = max(len(content), size+len(c.data))
	}
	if size <= len(content) {
		content = content[:size]
	} else {
		content = append(content, make([]byte, size-len(content))...)
	}
	copy(content[c.offset:], c.data)
	return content
}

func (b binding) apply(names map[string]*node) {
	if b.node == nil {
		delete(names, b.name)
		return
	}
	names[b.name] = b.node
}

// fsync is an fsync or fdatasync of a file or directory that began at the given time
// and has returned.
func (d *disk) fsync(n *node, begun int) {
	d.flush(n, begun, func(c *change) bool { return c.done != 0 && c.done < begun })
	d.keepEntry(n, begun)
}

// keepEntry makes the names of a flushed node durable, where the file system does.
func (d *disk) keepEntry(n *node, begun int) {
	if d.entries != EntriesFile {
		return
	}
	for _, c := range slices.Clone(n.boundBy) {
		if c.done == 0 || c.done >= begun {
			continue
		}
		d.keep(c)
		for _, b := range c.bindings {
			d.keepEntry(b.dir, begun)
		}
	}
}

// syncAll is sync(2).
func (d *disk) syncAll(begun int) {
	for _, c := range slices.Clone(d.pending) {
		if c.done != 0 && c.done < begun {
			d.keep(c)
		}
	}
}

// flush makes the node's changes durable that are covered.
func (d *disk) flush(n *node, begun int, covered func(*change) bool) {
	for _, c := range slices.Clone(n.pending) {
		if covered(c) && c.done != 0 && (c.done < begun || c.begun == begun) {
			d.keep(c)
		}
	}
}

// keep makes one change durable. What older changes did in the same place does not come
// back, whether they survive or not.
func (d *disk) keep(c *change) {
	d.forget(c)
	for _, b := range c.bindings {
		b.apply(b.dir.keptNames)
		for _, older := range slices.Clone(b.dir.pending) {
			if older.begun < c.begun {
				d.unbind(older, b)
			}
		}
	}
	if c.file == nil {
		return
	}
	c.file.kept = c.apply(c.file.kept)
	for _, older := range c.file.pending {
		if older.begun < c.begun && !older.truncate {
			older.yield(c)
		}
	}
}

// unbind takes a name out of an older change.
func (d *disk) unbind(older *change, b binding) {
	rest := slices.DeleteFunc(slices.Clone(older.bindings), func(o binding) bool { return o.dir == b.dir && o.name == b.name })
	if len(rest) == len(older.bindings) {
		return
	}
	d.forget(older)
	if older.bindings = rest; len(rest) == 0 {
		return
	}
	d.begin(older)
	byBegin := func(a, b *change) int { return a.begun - b.begun }
	slices.SortStableFunc(d.pending, byBegin)
	for _, n := range older.places() {
		slices.SortStableFunc(n.pending, byBegin)
	}
}

// yield gives the older write the bytes of a newer change where both wrote, and takes
// what was truncated.
func (c *change) yield(newer *change) {
	if newer.truncate {
		c.data = c.data[:min(len(c.data), max(0, int(newer.offset-c.offset)))]
		return
	}
	from, to := max(c.offset, newer.offset), min(c.offset+int64(len(c.data)), newer.offset+int64(len(newer.data)))
	if from < to {
		c.data = slices.Clone(c.data) // the caller's
		copy(c.data[from-c.offset:], newer.data[from-newer.offset:to-newer.offset])
	}
}

// differs says how the files below a directory of this machine differ from what the
// model says that processes read; empty if they do not.
func (d *disk) differs(have *image) string {
	want := &image{files: map[string][]byte{}}
	want.add(d.root, "", func(n *node) ([]byte, map[string]*node) { return n.data, n.names })
	for _, path := range slices.Sorted(maps.Keys(want.files)) {
		if got, there := have.files[path]; !there {
			return path + " is in the model alone"
		} else if !bytes.Equal(got, want.files[path]) {
			return fmt.Sprintf("%s has %d bytes, and %d others in the model", path, len(got), len(want.files[path]))
		}
	}
	for path := range have.files {
		if _, there := want.files[path]; !there {
			return path + " is not in the model"
		}
	}
	return ""
}

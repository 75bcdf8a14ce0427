package powerloss

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// image is what lies on a disk: files by their path, and directories.
type image struct {
	files map[string][]byte
	dirs  []string
}

// loss is a power loss: what is left, and what is not.
type loss struct {
	image *image
	// dropped says which changes are lost, and torn which are there in part.
	dropped, torn []string
	pending       int
}

// lose returns what a power loss leaves now. The random numbers decide which of the
// pending changes survive; the same ones leave the same.
func (d *disk) lose(random *rand.Rand) *loss {
	l := &loss{image: &image{files: map[string][]byte{}}, pending: len(d.pending)}
	// Few losses leave things that many would not, and the other way about.
	contents, names := odds(random), odds(random)
	survives := map[*change][]byte{}
	for _, c := range d.pending {
		chance := contents
		if c.file == nil {
			chance = names
		}
		if random.Float64() >= chance {
			l.dropped = append(l.dropped, c.what)
		} else {
			survives[c] = c.data
		}
	}
	for _, c := range d.pending {
		if c.file == nil || c.truncate || c != lastWrite(c.file) || random.IntN(3) != 0 {
			continue
		}
		if _, alive := survives[c]; alive {
			l.torn = append(l.torn, c.what)
			delete(survives, c)
			survives[c] = c.tear(c.file.image(survives), random)
		}
	}
	l.image.add(d.root, "", func(n *node) ([]byte, map[string]*node) {
		if !n.isDir {
			return n.image(survives), nil
		}
		names := maps.Clone(n.keptNames)
		for _, c := range n.pending {
			if _, alive := survives[c]; !alive {
				continue
			}
			for _, b := range c.bindings {
				if b.dir == n {
					b.apply(names)
				}
			}
		}
		return nil, names
	})
	return l
}

// odds are the chance of a change to survive, in one image.
func odds(random *rand.Rand) float64 { return []float64{0, 0.1, 0.5, 0.9, 1}[random.IntN(5)] }

// lastWrite is the file's last pending write.
func lastWrite(n *node) *change {
	for _, c := range slices.Backward(n.pending) {
		if !c.truncate {
			return c
		}
	}
	return nil
}

// image is the file's content with the changes that survive.
func (n *node) image(survives map[*change][]byte) []byte {
	content := slices.Clone(n.kept)
	for _, c := range n.pending {
		if data, alive := survives[c]; alive {
			part := *c
			part.data = data
			content = part.apply(content)
		}
	}
	return content
}

// tear returns the change's data of which some sectors are as they are without it.
func (c *change) tear(without []byte, random *rand.Rand) []byte {
	data := slices.Clone(c.data)
	for i := 0; i < len(data); {
		end := min(len(data), i+sector-int(c.offset+int64(i))%sector)
		if random.IntN(2) == 0 {
			clear(data[i:end])
			if at := int(c.offset) + i; at < len(without) {
				copy(data[i:end], without[at:])
			}
		}
		i = end
	}
	return data
}

// add takes a node and what is below it into the image. look returns the content or
// the names of a node.
func (m *image) add(n *node, path string, look func(*node) ([]byte, map[string]*node)) {
	content, names := look(n)
	if !n.isDir {
		m.files[path] = content
		return
	}
	m.dirs = append(m.dirs, path)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		m.add(names[name], filepath.Join(path, name), look)
	}
}

// write makes the image's files below a directory.
func (m *image) write(dir string) error {
	for _, path := range m.dirs {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o700); err != nil {
			return err
		}
	}
	for path, content := range m.files {
		if err := os.WriteFile(filepath.Join(dir, path), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// readImage reads the files below a directory.
func readImage(dir string) (*image, error) {
	m := &image{files: map[string][]byte{}}
	return m, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			m.dirs = append(m.dirs, below)
			return nil
		}
		m.files[below], err = os.ReadFile(path)
		return err
	})
}

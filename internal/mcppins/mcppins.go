// Package mcppins reads and writes the file of pinned definitions of MCP tools: what servers said
// of their tools when somebody accepted it.
//
// The file has the definitions together with their digests, so that a later difference can be
// shown. A file whose digests are not those of its definitions is refused.
package mcppins

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

// maxSize is the largest file that is read, in bytes.
const maxSize = 16 << 20

const version = 1

// File is the contents of a file, by server.
type File struct {
	Version int               `json:"version"`
	Servers map[string]Server `json:"servers"`
}

// Server is what a server said.
type Server struct {
	// Instructions are those for the model; nil: there were none.
	Instructions *Pin `json:"instructions,omitempty"`
	// Tools are the tools by the server's own names.
	Tools map[string]Pin `json:"tools"`
}

// Pin is a definition and its digest.
type Pin struct {
	SHA256     string          `json:"sha256"`
	Definition json.RawMessage `json:"definition"`
}

// New returns a file without pins.
func New() *File { return &File{Version: version, Servers: map[string]Server{}} }

// Of pins what a server says.
func Of(said *mcptool.Said) (Server, error) {
	s := Server{Tools: map[string]Pin{}}
	for name, definition := range said.Definitions {
		digest, err := mcptool.Digest(definition)
		if err != nil {
			return Server{}, err
		}
		p := Pin{SHA256: digest, Definition: definition}
		if name == mcptool.PinOfInstructions {
			s.Instructions = &p
		} else {
			s.Tools[name] = p
		}
	}
	return s, nil
}

// All returns the pins of a server, with its instructions as [mcptool.PinOfInstructions].
func (s Server) All() map[string]Pin {
	all := maps.Clone(s.Tools)
	if all == nil {
		all = map[string]Pin{}
	}
	if s.Instructions != nil {
		all[mcptool.PinOfInstructions] = *s.Instructions
	}
	return all
}

// Digests returns the digests of a server's pins. A server without pins has none.
func (f *File) Digests(server string) map[string]string {
	digests := map[string]string{}
	for name, p := range f.Servers[server].All() {
		digests[name] = p.SHA256
	}
	return digests
}

// Read reads a file. A file that is not there is an error that wraps [os.ErrNotExist].
func Read(path string) (*File, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case len(data) > maxSize:
		return nil, fmt.Errorf("%s: larger than %d MiB, the most that is read", path, maxSize>>20)
	}
	f, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; `moorebus mcp pin` writes it anew", path, err)
	}
	return f, nil
}

func parse(data []byte) (*File, error) {
	f := &File{}
	if err := strict.DecodeJSON(data, f); err != nil {
		return nil, err
	}
	if f.Version != version {
		return nil, fmt.Errorf("version: %d is not known, this build reads %d", f.Version, version)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		for pinned, p := range f.Servers[name].All() {
			digest, err := mcptool.Digest(p.Definition)
			if err != nil || digest != p.SHA256 {
				return nil, errors.Join(err, fmt.Errorf("servers.%s: the digest of %s is not that of its definition", name, Title(pinned)))
			}
		}
	}
	return f, nil
}

// Title names what is pinned.
func Title(pinned string) string {
	if pinned == mcptool.PinOfInstructions {
		return "the instructions"
	}
	return fmt.Sprintf("the tool %q", pinned)
}

// Write writes the file, sorted. It has its name only when it is complete and on the disk.
func (f *File) Write(path string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(f); err != nil {
		return err
	}
	if b.Len() > maxSize {
		return fmt.Errorf("%s: the definitions take more than %d MiB; offer fewer tools", path, maxSize>>20)
	}
	t, err := os.CreateTemp(filepath.Dir(path), ".pins-*")
	if err != nil {
		return err
	}
	_, err = t.Write(b.Bytes())
	err = errors.Join(err, t.Chmod(0o644), t.Sync(), t.Close())
	if err == nil {
		err = os.Rename(t.Name(), path)
	}
	if err != nil {
		_ = os.Remove(t.Name())
	}
	return err
}

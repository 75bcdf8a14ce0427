// Package agentfile reads the files that people write for Moorebus: agent definitions, tool
// files and provider files, in YAML or JSON.
//
// Reading is strict. Unknown and duplicate keys, values of the wrong type, invalid UTF-8
// and anything after the document are errors with line and key. No file may be larger than
// [MaxSize].
//
// An agent definition never says where keys are sent or what is executed. Endpoints and
// keys are in the planner's provider file ([ParseProviders]), commands and URLs in the
// actor's tool file ([ParseTools]). One file may have an agent and its tools, as two
// documents ([ParseFile]).
package agentfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
)

// MaxSize is the largest file that is read, in bytes.
const MaxSize = 1 << 20

// ErrTooLarge says that a file is larger than [MaxSize].
var ErrTooLarge = errors.New("larger than 1 MiB, the most that is read")

// Format is the format of a document.
type Format string

// The formats. Auto reads a document that begins like a JSON object as JSON, and any other
// document as YAML.
const (
	Auto Format = ""
	YAML Format = "yaml"
	JSON Format = "json"
)

// Documents are the documents of one file. A missing document is nil.
type Documents struct {
	// Agent is the first agent, Others those after it, which it may call.
	Agent  *events.Agent
	Others []events.Agent
	Tools  *ToolFile
}

// Agents returns every agent of the file, in order.
func (d Documents) Agents() []events.Agent {
	if d.Agent == nil {
		return nil
	}
	return append([]events.Agent{*d.Agent}, d.Others...)
}

// ParseFile reads a file that holds agent definitions, a tool file, or both as
// documents (`---`), in any order. A document whose only keys are tools and
// mcp, with mappings for tools, is a tool file.
func ParseFile(data []byte, o Options) (Documents, error) {
	nodes, err := parse(data, Auto)
	if err != nil {
		return Documents{}, err
	}
	var docs Documents
	for _, node := range nodes {
		switch {
		case isToolFile(node) && docs.Tools == nil:
			docs.Tools, err = toolFile(node)
		case isToolFile(node):
			err = node.Errorf("", "a second tool file in one file; put all tools into one document")
		default:
			err = docs.add(node, o)
		}
		if err != nil {
			return Documents{}, err
		}
	}
	return docs, nil
}

// add takes up the next agent.
func (d *Documents) add(node *strict.Node, o Options) error {
	a, err := Decode(node, "", o)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(d.Agents(), func(other events.Agent) bool { return other.Name == a.Name }) {
		return node.Errorf("", "a second agent %q in one file; rename or remove one", a.Name)
	}
	if d.Agent == nil {
		d.Agent = &a
	} else {
		d.Others = append(d.Others, a)
	}
	return nil
}

// ReadFile is [ParseFile] for a file of the given name, which stands at the
// beginning of every error.
func ReadFile(name string, o Options) (Documents, error) {
	data, err := readFile(name)
	if err != nil {
		return Documents{}, err
	}
	docs, err := ParseFile(data, o)
	if err != nil {
		return Documents{}, fmt.Errorf("%s: %w", name, err)
	}
	docs.Tools.locate(name)
	return docs, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}

// isToolFile reports whether a document holds tools rather than an agent, which
// has names where a tool file has mappings.
func isToolFile(n *strict.Node) bool {
	if n.Kind != strict.Object || len(n.Members) == 0 {
		return false
	}
	for _, m := range n.Members {
		if m.Key != "tools" && m.Key != "mcp" && m.Key != "approval" {
			return false
		}
	}
	return true
}

// parse reads every document of a file; there is at least one.
func parse(data []byte, f Format) ([]*strict.Node, error) {
	if len(data) > MaxSize {
		return nil, ErrTooLarge
	}
	var nodes []*strict.Node
	var err error
	if f == JSON || f == Auto && looksLikeJSON(data) {
		var n *strict.Node
		n, err = strict.ParseJSON(data)
		nodes = []*strict.Node{n}
	} else {
		nodes, err = strict.ParseYAML(data)
	}
	if err == nil && len(nodes) == 0 {
		err = errors.New("there is nothing in it")
	}
	return nodes, err
}

// looksLikeJSON reports whether text is JSON, or so close to it that JSON's
// errors say more than YAML's.
func looksLikeJSON(data []byte) bool {
	data = bytes.TrimLeft(data, " \t\r\n\ufeff")
	return bytes.HasPrefix(data, []byte(`{`)) && (json.Valid(data) || bytes.HasPrefix(bytes.TrimLeft(data[1:], " \t\r\n"), []byte(`"`)))
}

// one reads a file that must hold exactly one document.
func one(data []byte, f Format) (*strict.Node, error) {
	nodes, err := parse(data, f)
	if err != nil {
		return nil, err
	}
	if len(nodes) > 1 {
		return nil, nodes[1].Errorf("", "a second document begins here; only one is read")
	}
	return nodes[0], nil
}

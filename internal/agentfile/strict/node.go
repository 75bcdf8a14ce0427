// Package strict reads YAML and JSON documents so that nothing in them is
// overlooked: unknown and repeated keys, wrong types, text that is not UTF-8 and
// anything after the document are errors, each with its line and its path.
//
// Both formats become one tree of [Node]s, whose numbers and texts are what the
// document says, verbatim and in its order. [Decode] puts a tree onto a Go value
// by the value's json tags: what the document leaves out stays as it is.
package strict

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Kind is what a [Node] is.
type Kind int

// The kinds of nodes.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

// String names the kind as error messages do.
func (k Kind) String() string {
	return [...]string{"nothing", "a truth value", "a number", "a string", "a list", "a mapping"}[k]
}

// Node is one value of a document.
type Node struct {
	Kind Kind
	// Line is where the value begins, from 1.
	Line int
	// Text is a string's value, a number in JSON's form, true or false.
	Text string
	// Members are an object's, in order; Items are an array's.
	Members []Member
	Items   []*Node

	// raw is the value as it stands in a JSON document.
	raw []byte
}

// Member is one key of an object with its value.
type Member struct {
	Key   string
	Line  int
	Value *Node
}

// Error is one thing that is wrong with a document.
type Error struct {
	// Line is the place, from 1; 0 if it is not known.
	Line int
	// Path is the key, such as config.max_steps or tools[2].name; empty for
	// the document itself.
	Path string
	// Reason says what is wrong and what to write.
	Reason string

	cause error
}

// Unwrap returns the error that was given its line, nil if there is none.
func (e *Error) Unwrap() error { return e.cause }

// Error returns line, path and reason.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		b.WriteString("line " + strconv.Itoa(e.Line) + ": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Reason)
	return b.String()
}

// Errorf makes an error about the node.
func (n *Node) Errorf(path, format string, args ...any) *Error {
	return &Error{Line: n.Line, Path: path, Reason: fmt.Sprintf(format, args...)}
}

// Get returns the value of a key of an object, nil if there is none.
func (n *Node) Get(key string) *Node {
	for i := range n.Members {
		if n.Members[i].Key == key {
			return n.Members[i].Value
		}
	}
	return nil
}

// Without returns the object without a key, and that key's value, nil if there
// is none. The node itself stays as it is.
func (n *Node) Without(key string) (rest, value *Node) {
	c := &Node{Kind: n.Kind, Line: n.Line, Text: n.Text, Items: n.Items}
	for _, m := range n.Members {
		if m.Key == key {
			value = m.Value
			continue
		}
		c.Members = append(c.Members, m)
	}
	return c, value
}

// At returns the node at a path, or the last one on the way there that exists.
func (n *Node) At(path string) *Node {
	for part := range strings.SplitSeq(strings.ReplaceAll(path, "[", ".["), ".") {
		var next *Node
		if index, isIndex := strings.CutPrefix(part, "["); isIndex {
			if i, err := strconv.Atoi(strings.TrimSuffix(index, "]")); err == nil && i >= 0 && i < len(n.Items) {
				next = n.Items[i]
			}
		} else {
			next = n.Get(part)
		}
		if next == nil {
			return n
		}
		n = next
	}
	return n
}

// Place gives an error that begins with a path, as in "config.max_steps: must
// be at least 1", the line of that path. prefix stands before the path.
func (n *Node) Place(prefix string, err error) error {
	if known := (*Error)(nil); errors.As(err, &known) && known.Line > 0 {
		return err
	}
	path, reason, found := strings.Cut(err.Error(), ": ")
	if !found || strings.ContainsAny(path, " \"'") {
		path, reason = "", err.Error()
	}
	placed := n.At(path).Errorf(join(prefix, path), "%s", reason)
	placed.cause = err
	return placed
}

func join(path, key string) string {
	if path == "" || key == "" {
		return path + key
	}
	return path + "." + key
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

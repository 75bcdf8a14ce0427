package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds a YAML document with its aliases written out.
const maxNodes = 200_000

// ParseYAML reads the YAML documents of a file; empty ones are omitted. Aliases
// are followed; merge keys and tags of one's own are refused.
func ParseYAML(data []byte) ([]*Node, error) {
	if err := checkUTF8(data); err != nil {
		return nil, err
	}
	var docs []*Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	c := converter{left: maxNodes}
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			// The library has no type for this; its text has the line.
			return nil, &Error{Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
		}
		node, err := c.node(&doc, "", 0)
		if err != nil {
			return nil, err
		}
		if node.Kind != Null {
			docs = append(docs, node)
		}
	}
}

// converter makes nodes of the library's.
type converter struct {
	// left is how many more nodes may come.
	left int
}

func (c *converter) node(y *yaml.Node, path string, depth int) (*Node, error) {
	if c.left--; c.left < 0 || depth > maxDepth {
		return nil, &Error{Line: y.Line, Path: path, Reason: "the document is too large or too deep (aliases count as what they stand for)"}
	}
	n := &Node{Line: y.Line}
	switch y.Kind {
	case yaml.DocumentNode:
		if len(y.Content) == 0 {
			return n, nil
		}
		return c.node(y.Content[0], path, depth)
	case yaml.AliasNode:
		target, err := c.node(y.Alias, path, depth+1)
		if err == nil {
			target.Line = y.Line
		}
		return target, err
	case yaml.MappingNode:
		n.Kind = Object
		return n, c.mapping(n, y, path, depth)
	case yaml.SequenceNode:
		n.Kind = Array
		if tag := y.ShortTag(); tag != "!!seq" {
			return nil, n.Errorf(path, "the tag %s is not known here", tag)
		}
		for i, item := range y.Content {
			v, err := c.node(item, index(path, i), depth+1)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, v)
		}
		return n, nil
	case yaml.ScalarNode:
		return n, scalar(n, y, path)
	}
	return n, nil
}

func (c *converter) mapping(n *Node, y *yaml.Node, path string, depth int) error {
	if tag := y.ShortTag(); tag != "!!map" {
		return n.Errorf(path, "the tag %s is not known here", tag)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			return &Error{Line: key.Line, Path: path, Reason: "a key must be plain text; merge keys are not known here"}
		}
		if first, twice := seen[key.Value]; twice {
			return &Error{Line: key.Line, Path: join(path, key.Value), Reason: "the key stands there twice, first in line " + strconv.Itoa(first)}
		}
		seen[key.Value] = key.Line
		value, err := c.node(y.Content[i+1], join(path, key.Value), depth+1)
		if err != nil {
			return err
		}
		n.Members = append(n.Members, Member{Key: key.Value, Line: key.Line, Value: value})
	}
	return nil
}

func scalar(n *Node, y *yaml.Node, path string) error {
	n.Text = y.Value
	switch tag := y.ShortTag(); tag {
	case "!!null":
		n.Text = ""
	case "!!str", "!!timestamp":
		n.Kind = String
	case "!!bool":
		n.Kind = Bool
		n.Text = strings.ToLower(y.Value)
		if n.Text != "true" && n.Text != "false" {
			return n.Errorf(path, "%q is not a truth value; write true or false", y.Value)
		}
	case "!!int", "!!float":
		n.Kind = Number
		text, ok := number(y.Value)
		if !ok {
			return n.Errorf(path, "%q is not a number that can be written in JSON", y.Value)
		}
		n.Text = text
	default:
		return n.Errorf(path, "the tag %s is not known here", tag)
	}
	return nil
}

// number returns a YAML number as JSON writes it: verbatim where that is JSON
// already.
func number(text string) (string, bool) {
	if json.Valid([]byte(text)) {
		return text, text[0] != '"' && text[0] != '{' && text[0] != '['
	}
	plain := strings.ReplaceAll(text, "_", "")
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return strconv.FormatInt(i, 10), true
	}
	f, err := strconv.ParseFloat(plain, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return "", false
	}
	return strconv.FormatFloat(f, 'g', -1, 64), true
}

package llm

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ToolNames maps the names of a request's tools to such as every provider takes
// (letters, digits, _ and -, at most 64 of them), and back. A name that is fine
// stands for itself. Another one (`server.tool`) has its other characters
// replaced by _, and ends in a part of its hash where that would be too long or
// is another tool's name. The mapping follows from the request alone, and what
// is offered has the same names however the conversation grows.
type ToolNames struct {
	wire map[string]string // by the tool's name
	tool map[string]string // by the name on the wire
}

const maxToolName = 64

var (
	goodToolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	badInName    = regexp.MustCompile(`[^A-Za-z0-9_-]`)
)

// NamesOf makes the mapping for a request: for the tools that it offers, then
// for those that only its history knows.
func NamesOf(req Request) *ToolNames {
	n := &ToolNames{wire: map[string]string{}, tool: map[string]string{}}
	offered := make(map[string]bool, len(req.Tools))
	for _, t := range req.Tools {
		offered[t.Name] = true
	}
	n.add(offered)
	known := map[string]bool{}
	for _, m := range req.Messages {
		if m.Role == RoleTool {
			known[m.Name] = true
		}
		for _, c := range m.Calls {
			known[c.Name] = true
		}
	}
	n.add(known)
	return n
}

// Wire returns the name that the provider is told of a tool of the request.
func (n *ToolNames) Wire(name string) string {
	if wire, ok := n.wire[name]; ok {
		return wire
	}
	return n.take(name)
}

// Tool returns the tool that the provider names; a name that nobody told it is
// returned as it is.
func (n *ToolNames) Tool(wire string) string {
	if name, ok := n.tool[wire]; ok {
		return name
	}
	return wire
}

// Reserve returns a name for a tool that is no tool of the request: the given
// one, or one made of it that nothing else has.
func (n *ToolNames) Reserve(name string) string {
	wire := n.free(name)
	n.tool[wire] = wire
	return wire
}

// add takes the good names first, so that they stand for themselves, and the
// others in the order of the alphabet.
func (n *ToolNames) add(names map[string]bool) {
	sorted := slices.Sorted(maps.Keys(names))
	for _, good := range []bool{true, false} {
		for _, name := range sorted {
			if _, known := n.wire[name]; !known && good == goodToolName.MatchString(name) {
				n.take(name)
			}
		}
	}
}

func (n *ToolNames) take(name string) string {
	wire := n.free(name)
	n.wire[name], n.tool[wire] = wire, name
	return wire
}

// free returns a good name for name that is not taken.
func (n *ToolNames) free(name string) string {
	wire := badInName.ReplaceAllString(strings.ToValidUTF8(name, "_"), "_")
	if wire == "" {
		wire = "_"
	}
	if _, taken := n.tool[wire]; !taken && len(wire) <= maxToolName {
		return wire
	}
	sum := sha256.Sum256([]byte(name))
	end := "_" + hex.EncodeToString(sum[:4])
	for k := 2; ; k++ {
		made := wire[:min(len(wire), maxToolName-len(end))] + end
		if _, taken := n.tool[made]; !taken {
			return made
		}
		end = "_" + hex.EncodeToString(sum[:4]) + "_" + strconv.Itoa(k)
	}
}

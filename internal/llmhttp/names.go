package llmhttp

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// ToolNames maps the names of a request's tools to names that every provider accepts
// (letters, digits, _ and -, at most 64 of them), and back. A valid name stays. In
// another one (`server.tool`) other characters become _. It ends in a part of its hash
// if it would be too long or is another tool's name. The mapping depends on the request
// only, and offered tools keep their names however the conversation grows.
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
func NamesOf(req llm.Request) *ToolNames {
	n := &ToolNames{wire: map[string]string{}, tool: map[string]string{}}
	offered := make(map[string]bool, len(req.Tools))
	for _, t := range req.Tools {
		offered[t.Name] = true
	}
	n.add(offered)
	known := map[string]bool{}
	for _, m := range req.Messages {
		if m.Role == llm.RoleTool {
			known[m.Name] = true
		}
		for _, c := range m.Calls {
			known[c.Name] = true
		}
	}
	n.add(known)
	return n
}

// Wire returns the name of a tool that is sent to the provider.
func (n *ToolNames) Wire(name string) string {
	if wire, ok := n.wire[name]; ok {
		return wire
	}
	return n.assign(name)
}

// Tool returns the tool of a name that the provider uses. An unknown name is returned
// unchanged.
func (n *ToolNames) Tool(wire string) string {
	if name, ok := n.tool[wire]; ok {
		return name
	}
	return wire
}

// Begins reports whether a text is the beginning of a longer name of a tool on the wire.
func (n *ToolNames) Begins(text string) bool {
	for name := range n.tool {
		if len(name) > len(text) && strings.HasPrefix(name, text) {
			return true
		}
	}
	return false
}

// Continues reports whether more is a further part of a tool's name on the wire, of which a
// server has sent a first part. The name of another tool is none.
func (n *ToolNames) Continues(first, more string) bool {
	whole := first + more
	return n.tool[more] == "" && (n.tool[whole] != "" || n.Begins(whole))
}

// Reserve returns a unique name for a tool that is not in the request: the given name if
// it is free, else a name derived from it.
func (n *ToolNames) Reserve(name string) string {
	wire := n.free(name)
	n.tool[wire] = wire
	return wire
}

// add maps valid names first, so that they stay, and then the others in alphabetical
// order.
func (n *ToolNames) add(names map[string]bool) {
	sorted := slices.Sorted(maps.Keys(names))
	for _, good := range []bool{true, false} {
		for _, name := range sorted {
			if _, known := n.wire[name]; !known && good == goodToolName.MatchString(name) {
				n.assign(name)
			}
		}
	}
}

func (n *ToolNames) assign(name string) string {
	wire := n.free(name)
	n.wire[name], n.tool[wire] = wire, name
	return wire
}

// free returns a valid name for name that is not in use.
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

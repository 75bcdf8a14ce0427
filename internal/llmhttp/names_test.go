package llmhttp

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/pkg/llm"
)

func offering(names ...string) llm.Request {
	var req llm.Request
	for _, name := range names {
		req.Tools = append(req.Tools, llm.Tool{Name: name})
	}
	return req
}

func TestToolNames(t *testing.T) {
	long := strings.Repeat("x", 70)
	n := NamesOf(offering("search", "files.read", "files_read", "files read", long, long+"y", "größe"))
	require.Equal(t, "search", n.Wire("search"))
	require.Equal(t, "files_read", n.Wire("files_read"), "a good name stands for itself")
	require.Equal(t, "files_read_601e4eb6", n.Wire("files.read"), "a name that is taken gets a part of its hash")
	require.Regexp(t, `^files_read_[0-9a-f]{8}$`, n.Wire("files read"))
	require.Regexp(t, `^x{55}_[0-9a-f]{8}$`, n.Wire(long))
	require.NotEqual(t, n.Wire(long), n.Wire(long+"y"))
	require.Equal(t, "gr__e", n.Wire("größe"))
	require.Equal(t, "unheard of", n.Tool("unheard of"))
}

// What is offered keeps its names when the conversation brings others.
func TestToolNamesOfTheHistory(t *testing.T) {
	req := offering("files.read")
	require.Equal(t, "files_read", NamesOf(req).Wire("files.read"))
	req.Messages = []llm.Message{
		{Role: llm.RoleAssistant, Calls: []llm.Call{{Name: "files_read"}, {Name: "gone.tool"}, {Name: ""}}},
		{Role: llm.RoleTool, Name: "only.here"},
	}
	n := NamesOf(req)
	require.Equal(t, "files_read", n.Wire("files.read"))
	require.Regexp(t, `^files_read_[0-9a-f]{8}$`, n.Wire("files_read"), "a tool that is not offered any more gives way")
	require.Equal(t, "gone_tool", n.Wire("gone.tool"))
	require.Equal(t, "gone.tool", n.Tool("gone_tool"))
	require.Equal(t, "only_here", n.Wire("only.here"))
	require.Equal(t, "_", n.Wire(""))
}

func TestReservedToolName(t *testing.T) {
	n := NamesOf(offering("answer", "a.b"))
	reserved := n.Reserve("answer")
	require.Regexp(t, `^answer_[0-9a-f]{8}$`, reserved)
	require.Equal(t, "answer", n.Wire("answer"))
	require.NotEqual(t, reserved, n.Reserve("answer"))
	require.Equal(t, "final", NamesOf(offering("a")).Reserve("final"))
}

// Whatever the names are: what is sent is good, and leads back.
func TestToolNamesLeadBack(t *testing.T) {
	good := regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	name := rapid.OneOf(rapid.StringMatching(`[a.b_ ]{0,4}`), rapid.StringN(0, 80, 200))
	rapid.Check(t, func(t *rapid.T) {
		offered := rapid.SliceOfN(name, 0, 12).Draw(t, "offered")
		past := rapid.SliceOfN(name, 0, 12).Draw(t, "past")
		req := offering(offered...)
		for _, p := range past {
			req.Messages = append(req.Messages, llm.Message{Role: llm.RoleAssistant, Calls: []llm.Call{{Name: p}}})
		}
		n, alone := NamesOf(req), NamesOf(offering(offered...))
		for _, o := range offered {
			if alone.Wire(o) != n.Wire(o) {
				t.Fatalf("%q is called %q, and %q in a conversation", o, alone.Wire(o), n.Wire(o))
			}
		}
		for _, name := range append(offered, past...) {
			wire := n.Wire(name)
			if !good.MatchString(wire) || n.Tool(wire) != name {
				t.Fatalf("%q is called %q, which leads back to %q", name, wire, n.Tool(wire))
			}
		}
	})
}

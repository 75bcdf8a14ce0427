package llm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

func TestPlainNames(t *testing.T) {
	t.Parallel()
	req := llm.Request{
		Tools: []llm.Tool{{Name: "fs.read"}, {Name: "fs_read"}, {Name: "fs-read"}, {Name: "git.log"}},
		Messages: []llm.Message{
			{Role: llm.RoleUser, Content: "fs.read is a name"},
			{Role: llm.RoleAssistant, Calls: []llm.Call{{ID: "1", Name: "fs.read"}, {ID: "2", Name: "gone.away"}}},
			{Role: llm.RoleTool, CallID: "1", Name: "fs.read"},
		},
	}
	var got []llm.Chunk
	plain, stream, restore := llm.WithPlainNames(req, func(c llm.Chunk) { got = append(got, c) })
	require.Equal(t, []llm.Tool{{Name: "fs_read_2"}, {Name: "fs_read"}, {Name: "fs-read"}, {Name: "git_log"}}, plain.Tools)
	require.Equal(t, "fs_read_2", plain.Messages[1].Calls[0].Name)
	require.Equal(t, "gone.away", plain.Messages[1].Calls[1].Name)
	require.Equal(t, "fs_read_2", plain.Messages[2].Name)
	require.Equal(t, req.Messages[0], plain.Messages[0])
	require.Equal(t, "fs.read", req.Tools[0].Name, "what was handed in is as it was")
	require.Equal(t, "fs.read", req.Messages[1].Calls[0].Name)

	stream(llm.Chunk{Kind: llm.ChunkToolCall, Name: "git_log"})
	require.Equal(t, "git.log", got[0].Name)
	res := restore(llm.ToolCalls{Calls: []llm.Call{{Name: "fs_read_2"}, {Name: "fs_read"}, {Name: "unknown"}}})
	require.Equal(t, []llm.Call{{Name: "fs.read"}, {Name: "fs_read"}, {Name: "unknown"}}, res.(llm.ToolCalls).Calls)
	require.Equal(t, llm.Text{Content: "x"}, restore(llm.Text{Content: "x"}))
}

func TestPlainNamesLeaveAloneWhatFits(t *testing.T) {
	t.Parallel()
	req := llm.Request{Tools: []llm.Tool{{Name: "a_b-C9"}}}
	plain, stream, restore := llm.WithPlainNames(req, nil)
	require.Equal(t, req, plain)
	require.Nil(t, stream)
	require.Equal(t, llm.Text{}, restore(llm.Text{}))
}

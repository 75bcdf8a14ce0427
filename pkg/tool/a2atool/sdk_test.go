package a2atool

import (
	"bufio"
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/nodetest"
	"github.com/moorebus/moorebus/pkg/tool"
)

// An agent that the protocol's own SDK serves, over JSON-RPC alone, is a tool: its streamed text,
// its question, its file and its refusal.
func TestServerOfTheSDK(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("testdata/server.mjs")
	require.NoError(t, err)
	server := nodetest.Command(t, string(script))
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "the server does not start")
	made := toolOf(t, Options{URL: lines.Text()})
	require.Equal(t, "Paints.", made.Definition().Description)
	do := func(words string, id string) (string, error) {
		c := call(words)
		c.ID = id
		return made.Run(t.Context(), c)
	}
	result, err := do("poem", "c1")
	require.NoError(t, err)
	require.Equal(t, "Roses are red,\nviolets are blue.", result)
	questions, result, err := conversation(t, made, call("paint"), "green")
	require.NoError(t, err)
	require.Len(t, questions, 1)
	require.Contains(t, questions[0], "Which colour?")
	require.Equal(t, "painted green", result)
	var kept []string
	ctx := callctx.WithStore(t.Context(), func(_ context.Context, mediaType string, data []byte) (string, error) {
		kept = append(kept, mediaType+" "+string(data))
		return "blobs/1", nil
	})
	result, err = made.Run(ctx, tool.Call{Run: "run-1", ID: "c2", Arguments: task1("draw")})
	require.NoError(t, err)
	require.Equal(t, "[image rose.png image/png, 11 bytes, kept as blobs/1]", result)
	require.Equal(t, []string{"image/png \xc2\x89PNG drawn"}, kept)
	_, err = made.Run(t.Context(), tool.Call{Run: "run-1", ID: "c3", Arguments: `{"task": "more", "task_id": "nothing"}`})
	var f *tool.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, codeError, f.Code)
	require.Contains(t, f.Message, "-32001")
}

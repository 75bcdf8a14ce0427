package a2a_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/a2atool"
)

// drawing and scan are the files of the tool draw: one that fits into an answer, and one that has a
// URL there.
var (
	drawing = []byte("\x89PNG\r\n\x1a\n a drawing")
	scan    = append([]byte("%PDF-1.7\x00\xff"), bytes.Repeat([]byte{1}, 5<<20)...)
)

// draw is a tool that returns both.
func draw() tool.Tool {
	return agent.Func("draw", "Draws.", func(ctx context.Context, _ struct{}) (string, error) {
		return agent.Attach(ctx, "image/png", drawing) + agent.Attach(ctx, "application/pdf", scan), nil
	}, agent.Pure)
}

// load returns what is at a URL.
func load(t *testing.T, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, string(data[:min(len(data), 200)]))
	return data
}

// requireFiles checks the artifacts of a task that has drawn.
func requireFiles(t *testing.T, artifacts []any) {
	t.Helper()
	require.Len(t, artifacts, 2, artifacts)
	png := field(artifacts[0], "parts").([]any)[0]
	require.Equal(t, "image/png", field(png, "mediaType"))
	require.Equal(t, base64.StdEncoding.EncodeToString(drawing), field(png, "raw"))
	require.Nil(t, field(png, "url"))
	pdf := field(artifacts[1], "parts").([]any)[0]
	require.Equal(t, "application/pdf", field(pdf, "mediaType"))
	require.Nil(t, field(pdf, "raw"))
	require.Equal(t, scan, load(t, field(pdf, "url").(string)))
	require.NotEqual(t, field(artifacts[0], "artifactId"), field(artifacts[1], "artifactId"))
}

// The files that tools return are artifacts of the task, in answers and in streams.
func TestFilesOfTools(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	base := url + "/v1/a2a/drawer"
	_, sent := call(t, "POST", base+"/message:send", message("m-1", "", `{"text": "Draw."}`))
	all := field(sent, "task", "artifacts").([]any)
	require.Equal(t, "Drawn.", textOf(all[0]), "the answer is the first artifact")
	requireFiles(t, all[1:])
	_, task := call(t, "GET", base+"/tasks/"+field(sent, "task", "id").(string), "")
	require.Equal(t, all, field(task, "artifacts"))
	_, seen := updates(t, base+"/message:stream", message("m-2", "", `{"text": "Draw."}`))
	var streamed []any
	for _, u := range seen {
		if a := field(u, "artifactUpdate", "artifact"); a != nil && field(a, "artifactId") != "answer" {
			require.Equal(t, true, field(u, "artifactUpdate", "lastChunk"))
			streamed = append(streamed, a)
		}
	}
	requireFiles(t, streamed)
	_, listed := call(t, "GET", base+"/tasks?includeArtifacts=true", "")
	for _, a := range field(listed["tasks"].([]any)[0], "artifacts").([]any)[1:] {
		require.Contains(t, field(field(a, "parts").([]any)[0], "url"), url+"/v1/blobs/", "a list has no files itself")
	}
}

// The files of an agent elsewhere are kept beside the result of the call, whether they came with the
// task or are at its server.
func TestFilesOfAnAgentElsewhere(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	source, err := a2atool.New(a2atool.Options{URL: url + "/v1/a2a/drawer", Over: tool.Definition{Name: "ask"}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	tools, ended := make(chan tool.Tool, 1), make(chan struct{})
	go func() {
		defer close(ended)
		source.Run(ctx, slog.New(slog.DiscardHandler), func(now []tool.Tool) {
			if len(now) == 1 {
				tools <- now[0]
			}
		})
	}()
	defer func() { stop(); <-ended }()
	kept := map[string][]byte{}
	keeping := callctx.WithStore(ctx, func(_ context.Context, mediaType string, data []byte) (string, error) {
		kept[mediaType] = data
		return "blobs/" + mediaType, nil
	})
	result, err := (<-tools).Run(keeping, tool.Call{Run: "run", ID: "call", Name: "ask", Arguments: `{"task": "Draw."}`})
	require.NoError(t, err)
	require.Contains(t, result, "Drawn.\n[image image/png, ")
	require.Equal(t, map[string][]byte{"image/png": drawing, "application/pdf": scan}, kept)
}

// The files of a message are parts of the user's message, which the model gets. The history has
// them too: what the object store has by its URL.
func TestFilesOfMessages(t *testing.T) {
	t.Parallel()
	asked := make(chan []events.Part, 1)
	g, url := serve(t, func(o *host.Options) {
		o.Providers["sees"] = llm.CallerFunc(func(_ context.Context, r llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
			asked <- r.Messages[len(r.Messages)-1].Parts
			return llm.Text{Content: "Seen."}, nil
		})
	})
	_, err := g.PutAgent(t.Context(), "", "sees", []byte(`{"llm": {"provider": "sees"}}`), agentfile.JSON)
	require.NoError(t, err)
	large := append([]byte("%PDF-1.7"), bytes.Repeat([]byte{2}, 300<<10)...)
	file := func(mediaType, name string, data []byte) string {
		part, err := json.Marshal(map[string]any{"raw": data, "mediaType": mediaType, "filename": name})
		require.NoError(t, err)
		return string(part)
	}
	status, sent := call(t, "POST", url+"/v1/a2a/sees/message:send", message("m-1", "", `{"text": "Look."}`,
		file("image/png", "", drawing), file("application/pdf", "plan.pdf", large), file("text/plain; charset=utf-8", "notes.txt", []byte("Notes."))))
	require.Equal(t, http.StatusOK, status, sent)
	got := <-asked
	require.Len(t, got, 4)
	require.Equal(t, drawing, got[1].Data)
	require.Equal(t, large, got[2].Data)
	require.Equal(t, "text/plain", got[3].MediaType)
	parts := field(field(sent, "task", "history").([]any)[0], "parts").([]any)
	require.Equal(t, base64.StdEncoding.EncodeToString(drawing), field(parts[1], "raw"))
	require.Equal(t, "plan.pdf", field(parts[2], "filename"))
	at := field(parts[2], "url").(string)
	require.True(t, strings.HasPrefix(at, url+"/v1/blobs/"), at)
	require.Equal(t, large, load(t, at))
}

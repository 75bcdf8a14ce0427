package doctor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/stretchr/testify/require"
)

// models is a server with a list of models; show is what Ollama says of one, or nothing.
func models(t *testing.T, show string, names ...string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			list := make([]string, 0, len(names))
			for _, name := range names {
				list = append(list, fmt.Sprintf(`{"id":%q}`, name))
			}
			_, _ = io.WriteString(w, `{"object":"list","data":[`+strings.Join(list, ",")+`]}`)
		case r.URL.Path == "/api/show" && r.Method == http.MethodPost && show != "":
			body, _ := io.ReadAll(r.Body)
			if string(body) != `{"model":"moore"}` {
				t.Errorf("asked with %s", body)
			}
			_, _ = io.WriteString(w, show)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestModels(t *testing.T) {
	list := []string{"qwen3:8b", "llama3.2:latest", "gpt-4o-mini", "claude-sonnet-4-5-20250929", "models/gemini-3-flash"}
	for _, c := range []struct{ model, mend string }{
		{"qwen3:8b", ""},
		{"llama3.2", ""},
		{"gemini-3-flash", ""},
		{"", ""}, // the default
		{"qwen3:80b", "qwen3:8b, "},
		{"qwen", "qwen3:8b, "},
	} {
		var r Report
		checks(map[string]string{"OPENAI_BASE_URL": models(t, "", list...) + "/v1", "OPENAI_MODEL": c.model}).Keys(context.Background(), &r)
		if c.mend == "" {
			require.Len(t, r.Findings, 1, c.model)
			continue
		}
		require.Len(t, r.Findings, 2, c.model)
		require.Equal(t, natsbus.Warning, r.Findings[1].Level)
		require.Contains(t, r.Findings[1].What, "does not list the model "+c.model)
		require.Contains(t, r.Findings[1].Mend, "set OPENAI_MODEL to one of the server's models: "+c.mend)
	}
	var r Report
	checks(map[string]string{"ANTHROPIC_BASE_URL": models(t, "", list...)}).Keys(context.Background(), &r)
	require.Len(t, r.Findings, 1, "a name with a date is the model's")
}

func TestOllama(t *testing.T) {
	for name, c := range map[string]struct {
		show  string
		level []natsbus.Level
		says  []string
	}{
		"tools and context": {`{"capabilities":["completion","tools"],"parameters":"stop \"x\"\nnum_ctx                        8192"}`,
			[]natsbus.Level{natsbus.Good}, []string{"a context of 8192 tokens"}},
		"neither": {`{"capabilities":["completion"],"parameters":""}`,
			[]natsbus.Level{natsbus.Warning, natsbus.Warning}, []string{"llm: {text: true}", "PARAMETER num_ctx"}},
		"another server": {`{"hello":"world"}`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var r Report
			checks(map[string]string{"OPENAI_BASE_URL": models(t, c.show, "moore:latest") + "/v1", "OPENAI_MODEL": "moore"}).Keys(context.Background(), &r)
			require.Len(t, r.Findings, 1+len(c.level))
			for i, level := range c.level {
				f := r.Findings[1+i]
				require.Equal(t, level, f.Level, f.What)
				require.Contains(t, f.What+f.Mend, c.says[i])
			}
		})
	}
}

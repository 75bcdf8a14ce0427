//go:build unix

package ollama

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
)

// executable returns the Ollama to test with. Without one it skips the test.
func executable(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: it starts many processes
	}
	out, err := exec.Command("sh", "build.sh", "path").Output()
	require.NoError(t, err)
	path := strings.TrimSpace(string(out))
	if _, err := os.Stat(path); err != nil {
		t.Skipf("reason: there is no %s; `make ollama` builds one, and MOOREBUS_OLLAMA names another one", path)
	}
	return path
}

// server is an Ollama process on the loopback with models of its own.
type server struct {
	t       *testing.T
	binary  string
	address string
	dir     string
	cmd     *exec.Cmd
	ended   <-chan struct{}
}

// start starts an Ollama that is killed at the end of the test.
func start(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, binary: executable(t), dir: t.TempDir()}
	addresses, err := freeport.Addresses(1)
	require.NoError(t, err)
	s.address = addresses[0]
	s.serve()
	t.Cleanup(func() { s.kill() })
	return s
}

// serve starts the process and returns when it listens.
func (s *server) serve() {
	s.t.Helper()
	s.cmd = exec.Command(s.binary, "serve")
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + os.TempDir(), "OLLAMA_HOST=" + s.address,
		"OLLAMA_KEEP_ALIVE=10m", "OLLAMA_NUM_PARALLEL=2", "OLLAMA_MAX_LOADED_MODELS=8", "OLLAMA_NOPRUNE=1"}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it starts a process for each model
	said, writer, err := os.Pipe()
	require.NoError(s.t, err)
	s.cmd.Stderr = writer
	s.ended, err = commandtest.Start(s.cmd)
	require.NoError(s.t, err)
	require.NoError(s.t, writer.Close())
	listens := make(chan bool, 1)
	go func() {
		defer func() { _ = said.Close() }()
		for lines := bufio.NewReader(said); ; {
			line, err := lines.ReadString('\n')
			if strings.Contains(line, "Listening on") {
				listens <- true
			}
			if err != nil {
				return
			}
		}
	}()
	select {
	case <-listens:
	case <-s.ended:
		s.t.Fatalf("%s serve ended: %s", s.binary, s.cmd.ProcessState)
	case <-time.After(time.Minute):
		s.t.Fatalf("%s serve does not listen", s.binary)
	}
}

// kill kills the process and those of its models.
func (s *server) kill() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may be over already
	<-s.ended
}

func (s *server) post(path string, body []byte) {
	s.t.Helper()
	res, err := http.Post("http://"+s.address+path, "application/octet-stream", bytes.NewReader(body))
	require.NoError(s.t, err)
	defer func() { _ = res.Body.Close() }()
	said, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, 2, res.StatusCode/100, "%s: %s", path, said)
	require.NotContains(s.t, string(said), `"error"`, path)
}

// The chat templates. Ollama takes from them what a model can do: the words around
// .ToolCalls tell how it calls tools, those around .Thinking how it thinks.
const (
	head = `{{- range $i, $_ := .Messages }}
{{- if eq .Role "system" }}<|system|>{{ .Content }}
{{- else if eq .Role "user" }}<|user|>{{ .Content }}
{{- else if eq .Role "assistant" }}<|assistant|>THINKING{{ .Content }}`
	tail = `
{{- end }}
{{- end }}`
	calls = `{{ if .ToolCalls }}{{ range .ToolCalls }}<tool_call>{"name": "{{ .Function.Name }}", ` +
		`"arguments": {{ .Function.Arguments }}}</tool_call>{{ end }}{{ end }}
{{- else if eq .Role "tool" }}<|tool|>{{ .Content }}<|answer|>`
	thoughts  = `{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}`
	withTools = `{{- if .Tools }}<|tools|>{{ json .Tools }}{{ end }}` + head + calls + tail
)

// blob uploads a model's file and returns its name there.
func (s *server) blob(file []byte) string {
	s.t.Helper()
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(file))
	s.post("/api/blobs/"+digest, file)
	return digest
}

// model makes a model of a blob. A context is a number of tokens.
func (s *server) model(name, blob, template string, context int) {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": name, "stream": false, "files": map[string]string{"model.gguf": blob}, "template": template,
		// With more threads, those that wait for each other make a busy machine very slow.
		"parameters": map[string]any{"num_ctx": context, "num_thread": 1},
	})
	require.NoError(s.t, err)
	s.post("/api/create", body)
}

// models makes all models of the tests.
func (s *server) models() {
	s.t.Helper()
	markov := newMarkov()
	quick, slow := s.blob(markov.file(1)), s.blob(markov.file(16))
	template := func(thinking, more string) string {
		return strings.Replace(withTools, "THINKING", thinking, 1) + more
	}
	s.model("moore", quick, template("", ""), 8192)
	s.model("moore-think", quick, template(thoughts, ""), 8192)
	s.model("moore-mute", quick, template("", "<|mute|>"), 8192)
	s.model("moore-final", quick, strings.Replace(template("", ""), "<|answer|>", "<|final|>", 1), 8192)
	s.model("moore-small", quick, template("", ""), 512)
	s.model("moore-text", quick, strings.Replace(head, "THINKING", "", 1)+tail+
		"{{ if gt (len .Messages) 3 }}<|second|>{{ else }}<|first|>{{ end -}}", 8192)
	s.model("moore-slow", slow, template("", ""), 8192)
}

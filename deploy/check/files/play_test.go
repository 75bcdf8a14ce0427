package files

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// patience bounds every wait.
const patience = time.Minute

// play runs the services of a project as processes of this machine.
type play struct {
	project *types.Project
	site    string
	// here has this machine's addresses for those of the containers.
	here *strings.Replacer
	http string
}

// TestComposePlays starts what compose starts, without Docker: three servers with their file, init, and
// each role with its command, variables and mounted files. A run then goes through all of them.
func TestComposePlays(t *testing.T) {
	project, err := load(t, types.Mapping{"MOOREBUS_TOKEN": "secret"})
	require.NoError(t, err)
	p := &play{project: project, site: makeSite(t, project), http: free(t)}
	p.servers(t)
	out, err := p.command(t, "init").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "the log lies on 3 servers")
	for _, name := range []string{"gateway", "planner", "observer", "actor-default", "actor-web"} {
		cmd := p.command(t, name)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		ended, err := commandtest.Start(cmd)
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, cmd.Process.Signal(os.Interrupt), "%s had ended: %s", name, &said)
			<-ended
			require.Zero(t, cmd.ProcessState.ExitCode(), "%s: %s", name, &said)
			require.NotContains(t, said.String(), "violation", "%s may do what it does", name)
		})
	}
	status := 0
	require.Eventually(t, func() bool { status, _ = p.ask("GET", "/readyz", "", ""); return status == http.StatusOK }, patience, 50*time.Millisecond)
	status, _ = p.ask("GET", "/v1/runs", "", "")
	require.Equal(t, http.StatusUnauthorized, status, "it wants the token")
	task := `{"agent": {"name": "adder", "tools": ["calculator"], "llm": {"provider": "scripted", "script":
		[{"calls": [{"name": "calculator", "arguments": {"expression": "40 + 2"}, "id": "sum"}]}, {"text": "It is {{observation -1}}."}]}}, "task": "Add."}`
	var run struct {
		ID     string `json:"run_id"`
		State  string `json:"state"`
		Memory struct {
			Answer string `json:"final_answer"`
		} `json:"memory"`
	}
	require.Eventually(t, func() bool {
		status, body := p.ask("POST", "/v1/runs", "secret", task)
		return status/100 == 2 && json.Unmarshal(body, &run) == nil
	}, patience, 100*time.Millisecond, "tools and providers are announced")
	require.Eventually(t, func() bool {
		status, body := p.ask("GET", "/v1/runs/"+run.ID, "secret", "")
		return status == http.StatusOK && json.Unmarshal(body, &run) == nil && run.State == "done"
	}, patience, 50*time.Millisecond)
	require.Contains(t, run.Memory.Answer, "42")
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// servers starts the three servers.
func (p *play) servers(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.site, "nats.conf"))
	require.NoError(t, err)
	var pairs []string
	own := map[string][]string{}
	for i := range 3 {
		name := fmt.Sprintf("nats-%d", i+1)
		for _, port := range []string{"4222", "6222", "8222"} {
			at := free(t)
			pairs = append(pairs, name+":"+port, at)
			own[name] = append(own[name], "0.0.0.0:"+port, at)
		}
	}
	p.here = strings.NewReplacer(append(pairs, ":8080", p.http)...)
	for name, pairs := range own {
		conf := filepath.Join(p.site, name+".conf")
		text := p.here.Replace(strings.NewReplacer(append(pairs, "/data", t.TempDir())...).Replace(string(text)))
		require.NoError(t, os.WriteFile(conf, []byte(text), 0o600))
		t.Setenv("SERVER_NAME", name)
		o, err := server.ProcessConfigFile(conf)
		require.NoError(t, err)
		o.NoSigs, o.NoLog = true, true
		s, err := server.NewServer(o)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		require.True(t, s.ReadyForConnections(patience), name)
	}
}

// command returns a service's command, with files and addresses of this machine.
func (p *play) command(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	s := p.project.Services[name]
	var paths []string
	for _, v := range s.Volumes {
		from := v.Source
		if v.Type == types.VolumeTypeVolume {
			from = filepath.Join(p.site, v.Volume.Subpath)
		}
		paths = append(paths, v.Target, from)
	}
	mounted := strings.NewReplacer(paths...)
	args := make([]string, len(s.Command))
	for i, arg := range s.Command {
		args[i] = p.here.Replace(mounted.Replace(arg))
	}
	cmd := exec.Command(moorebus(t), args...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	for key, value := range s.Environment {
		if value != nil && key != "MOOREBUS_METRICS_LISTEN" {
			cmd.Env = append(cmd.Env, key+"="+p.here.Replace(mounted.Replace(*value)))
		}
	}
	return cmd
}

// ask sends the gateway a request; status 0: it does not answer.
func (p *play) ask(method, path, token, body string) (status int, answer []byte) {
	request, err := http.NewRequest(method, "http://"+p.http+path, strings.NewReader(body))
	if err != nil {
		return 0, nil
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	got, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = got.Body.Close() }()
	answer, err = io.ReadAll(got.Body)
	if err != nil {
		return 0, nil
	}
	return got.StatusCode, answer
}

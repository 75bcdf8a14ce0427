package helm

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patience bounds every wait.
const patience = time.Minute

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "moorebus-")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "moorebus")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, "./cmd/moorebus")
	cmd.Dir = "../../.."
	said, err := cmd.CombinedOutput()
	if err != nil {
		_, _ = os.Stderr.Write(said)
	}
	return out, err
})

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm says of each symbolic link that it follows it
	code := m.Run()
	if binary, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(binary))
	}
	os.Exit(code)
}

// moorebus builds the command of this tree.
func moorebus(t *testing.T) string {
	t.Helper()
	binary, err := build()
	require.NoError(t, err)
	return binary
}

// The commands know every argument that a container has, and take its value.
func TestArguments(t *testing.T) {
	each(t, func(t *testing.T, _ example, all []v1.Object) {
		for _, p := range own(all) {
			c := p.Spec.Containers[0]
			require.Empty(t, c.Command, "%s: the image has its entry point", p.owner)
			out, err := exec.CommandContext(t.Context(), moorebus(t), append(c.Args, "--help")...).CombinedOutput()
			require.NoError(t, err, "%s: moorebus %s\n%s", p.owner, strings.Join(c.Args, " "), out)
			require.Contains(t, string(out), "moorebus "+c.Args[0], p.owner)
		}
	})
	out, err := exec.CommandContext(t.Context(), moorebus(t), "planner", "--drian=30s", "--help").CombinedOutput()
	require.Error(t, err, "%s: this test sees no wrong flag", out)
}

// bus is a nats-server with the users that the chart's pods are.
type bus struct {
	server *server.Server
	// keys is the folder of the users' nkeys, and head what the example says of its Secrets.
	keys, head string
}

// permissions is what init prints for the pools and shards of the Job, with keys in a folder.
func permissions(t *testing.T, job *batch.Job, keys string) string {
	t.Helper()
	args := []string{"init", "--print-permissions", "--credentials", keys}
	for _, arg := range job.Spec.Template.Spec.Containers[0].Args {
		for _, flag := range []string{"--pools=", "--shards=", "--storage="} {
			if strings.HasPrefix(arg, flag) {
				args = append(args, arg)
			}
		}
	}
	printed, err := exec.CommandContext(t.Context(), moorebus(t), args...).Output()
	require.NoError(t, err)
	return string(printed)
}

// startBus starts a server with the permissions that init prints for the pools of the Job.
func startBus(t *testing.T, job *batch.Job) *bus {
	t.Helper()
	dir := t.TempDir()
	b := &bus{keys: filepath.Join(dir, "keys")}
	conf := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(conf, []byte("jetstream { store_dir: "+filepath.Join(dir, "data")+" }\n"+permissions(t, job, b.keys)), 0o600))
	options, err := server.ProcessConfigFile(conf)
	require.NoError(t, err)
	options.Host, options.Port, options.HTTPHost, options.HTTPPort, options.NoSigs = "127.0.0.1", server.RANDOM_PORT, "127.0.0.1", server.RANDOM_PORT, true
	b.server, err = server.NewServer(options)
	require.NoError(t, err)
	b.server.Start()
	t.Cleanup(func() { b.server.Shutdown(); b.server.WaitForShutdown() })
	require.True(t, b.server.ReadyForConnections(patience))
	return b
}

// command is what the container would run, with this machine's addresses and files for those
// of the pod.
func (b *bus) command(t *testing.T, p pod, files map[string]*core.ConfigMap) (cmd *exec.Cmd, addresses map[string]string) {
	t.Helper()
	c := p.Spec.Containers[0]
	paths := map[string]string{}
	for _, m := range c.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if v.Name != m.Name {
				continue
			}
			dir := t.TempDir()
			paths[m.MountPath] = dir
			if v.ConfigMap != nil {
				for name, text := range files[v.ConfigMap.Name].Data {
					require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
				}
			}
			if v.Secret != nil && v.Name == "nkey" {
				user := strings.ReplaceAll(strings.TrimPrefix(v.Secret.SecretName, "moorebus-nkey-"), "-", "_")
				key, err := os.ReadFile(filepath.Join(b.keys, user+".nk"))
				require.NoError(t, err, "init makes a key of each user")
				require.NoError(t, os.WriteFile(filepath.Join(dir, v.Secret.Items[0].Path), key, 0o600))
			}
		}
	}
	here := func(text string) string {
		for there, dir := range paths {
			if rest, ok := strings.CutPrefix(text, there+"/"); ok {
				return filepath.Join(dir, rest)
			}
		}
		return text
	}
	addresses = map[string]string{}
	var args []string
	for _, arg := range c.Args {
		for _, port := range c.Ports {
			if rest, ok := strings.CutSuffix(arg, ":"+map[string]string{"metrics": "9090", "http": "8080"}[port.Name]); ok {
				addresses[port.Name] = freeAddress(t)
				arg = rest + addresses[port.Name]
			}
		}
		args = append(args, here(arg))
	}
	cmd = exec.CommandContext(t.Context(), moorebus(t), args...)
	cmd.Env = []string{"NATS_URL=" + b.server.ClientURL()}
	for _, e := range c.Env {
		switch {
		case e.Name == "NATS_URL" || e.Name == "NATS_CA":
		case e.ValueFrom != nil:
			cmd.Env = append(cmd.Env, e.Name+"=secret")
		default:
			cmd.Env = append(cmd.Env, e.Name+"="+here(e.Value))
		}
	}
	for _, from := range c.EnvFrom {
		key := regexp.MustCompile(from.SecretRef.Name + ` \(([A-Z_]+)\)`).FindStringSubmatch(b.head)
		require.NotNil(t, key, "the head of the example does not say what %s has", from.SecretRef.Name)
		cmd.Env = append(cmd.Env, key[1]+"=secret")
	}
	return cmd, addresses
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// initialize runs what the Job runs, for the one server that there is.
func (b *bus) initialize(t *testing.T, job *batch.Job) {
	t.Helper()
	cmd, _ := b.command(t, pod{job.Name, job.Spec.Template}, nil)
	cmd.Args = append(cmd.Args, "--replicas=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// Every container of two shards and three pools starts with its own user and files, and its
// probes answer as Kubernetes will ask them.
func TestRolesGetReady(t *testing.T) {
	e := named(t, "shards-and-pools")
	all := objects(t, e, false)
	job := of[*batch.Job](all)[0]
	b := startBus(t, job)
	b.head = e.text
	b.initialize(t, job)
	files := configMaps(all)
	deployments := of[*apps.Deployment](all)
	require.Len(t, deployments, 7)
	for _, d := range deployments {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			p := pod{d.Name, d.Spec.Template}
			cmd, addresses := b.command(t, p, files)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			defer func() {
				if !t.Failed() {
					require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
					require.NoError(t, <-ended, "%s", &said)
				}
			}()
			for _, probe := range []*core.Probe{p.Spec.Containers[0].LivenessProbe, p.Spec.Containers[0].ReadinessProbe} {
				url := "http://" + addresses[probe.HTTPGet.Port.StrVal] + probe.HTTPGet.Path
				for status := 0; status != http.StatusOK; status = ask(ctx, url) {
					select {
					case err := <-ended:
						ended <- err
						t.Fatalf("it ended: %v\n%s", err, &said)
					case <-ctx.Done():
						t.Fatalf("%s does not answer 200", url)
					case <-time.After(50 * time.Millisecond):
					}
				}
			}
			require.Equal(t, http.StatusOK, ask(ctx, "http://"+addresses["metrics"]+"/metrics"))
		})
	}
}

// configMaps are those of a chart by name.
func configMaps(all []v1.Object) map[string]*core.ConfigMap {
	found := map[string]*core.ConfigMap{}
	for _, c := range of[*core.ConfigMap](all) {
		found[c.Name] = c
	}
	return found
}

// ask returns the status of an answer, or 0.
func ask(ctx context.Context, url string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close() // only the status counts
	return answer.StatusCode
}

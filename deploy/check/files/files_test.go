package files

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/coreos/go-systemd/v22/unit"
	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// root is the folder of the project.
const root = "../../.."

// binary is the command of this tree.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "moorebus-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "moorebus")
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// TestDockerfile runs the build of the Dockerfile without Docker: the line that builds is run here,
// the binary is static, and everything that is copied is there.
func TestDockerfile(t *testing.T) {
	text, err := os.Open(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	parsed, err := parser.Parse(text)
	require.NoError(t, err)
	require.NoError(t, text.Close())
	require.Empty(t, parsed.Warnings)
	stages, _, err := instructions.Parse(parsed.AST, nil)
	require.NoError(t, err)
	require.Len(t, stages, 2)
	require.Regexp(t, `^gcr\.io/distroless/static-debian\d+:nonroot$`, stages[1].BaseName)
	built, user := false, ""
	for _, stage := range stages {
		for _, c := range stage.Commands {
			switch c := c.(type) {
			case *instructions.CopyCommand:
				for _, from := range c.SourcePaths {
					if c.From == "" {
						require.FileExists(t, filepath.Join(root, from, map[bool]string{true: "go.mod"}[from == "."]))
					}
				}
			case *instructions.UserCommand:
				user = c.User
			case *instructions.RunCommand:
				if line := strings.Join(c.CmdLine, " "); strings.Contains(line, "go build") {
					buildAs(t, line)
					built = true
				}
			case *instructions.EntrypointCommand:
				require.Equal(t, []string{"/usr/local/bin/moorebus"}, []string(c.CmdLine))
			}
		}
	}
	require.True(t, built)
	require.Equal(t, "65532:65532", user)
	goLine, err := exec.Command("go", "-C", root, "list", "-m", "-f", "{{.GoVersion}}").Output()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(goLine), strings.TrimPrefix(stages[0].BaseName, "golang:")), "the Go of the image is that of go.mod")
}

// buildAs builds the binary with a line of the Dockerfile.
func buildAs(t *testing.T, line string) {
	t.Helper()
	_, line, _ = strings.Cut(line, "CGO_ENABLED")
	line = "CGO_ENABLED" + strings.ReplaceAll(line, "/out/moorebus", binary)
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", line, out)
	libraries, err := exec.Command("go", "version", "-m", binary).Output()
	require.NoError(t, err)
	require.Contains(t, string(libraries), "CGO_ENABLED=0")
}

// moorebus returns the binary, and builds it if that was not tested yet.
func moorebus(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(binary); err != nil {
		buildAs(t, "CGO_ENABLED=0 go build -trimpath -ldflags=\"-s -w\" -o /out/moorebus ./cmd/moorebus")
	}
	return binary
}

// accepts fails unless the command of this tree takes the arguments.
func accepts(t *testing.T, where string, args []string) {
	t.Helper()
	require.NoError(t, commandtest.Accepts(moorebus(t), args...), where)
}

// TestCompose: the file is valid, and what it names is there: files, commands, flags, keys of users
// that the permissions have. Its servers' configuration is read as nats-server reads it.
func TestCompose(t *testing.T) {
	project, err := load(t, types.Mapping{"MOOREBUS_TOKEN": "secret"})
	require.NoError(t, err)
	_, err = load(t, types.Mapping{})
	require.ErrorContains(t, err, "set the token", "nobody starts it open")

	site := makeSite(t, project)
	roles := 0
	for name, s := range project.Services {
		for _, v := range s.Volumes {
			switch {
			case v.Type == types.VolumeTypeBind:
				require.FileExists(t, v.Source, name)
			case v.Source == "site" && v.Volume != nil && v.Volume.Subpath != "":
				require.FileExists(t, filepath.Join(site, v.Volume.Subpath), name)
				require.True(t, v.ReadOnly, name)
			}
		}
		if !strings.Contains(s.Image, "moorebus") {
			continue
		}
		accepts(t, name, s.Command)
		require.True(t, s.ReadOnly && slices.Equal(s.CapDrop, []string{"ALL"}), name)
		for _, p := range s.Ports {
			require.Equal(t, "127.0.0.1", p.HostIP, name)
		}
		if prefix := s.Environment["NATS_INBOX_PREFIX"]; prefix != nil {
			roles++
			key := filepath.Base(*s.Environment["NATS_NKEY"])
			require.Equal(t, "_INBOX_"+strings.TrimSuffix(key, ".nk"), *prefix, name)
			mounted := slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
				return v.Target == *s.Environment["NATS_NKEY"] && v.Volume.Subpath == "keys/"+key
			})
			require.True(t, mounted, "%s has its key and no other", name)
			require.Len(t, keysOf(s), 1, name)
		}
	}
	require.GreaterOrEqual(t, roles, 5)
}

// load reads the file as Docker does, with all profiles.
func load(t *testing.T, env types.Mapping) (*types.Project, error) {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(root, "deploy", "compose"))
	require.NoError(t, err)
	file := filepath.Join(dir, "compose.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: file, Content: text}}, Environment: env,
	}, loader.WithProfiles([]string{"*"}))
}

func keysOf(s types.ServiceConfig) (keys []string) {
	for _, v := range s.Volumes {
		if v.Volume != nil && strings.HasPrefix(v.Volume.Subpath, "keys/") {
			keys = append(keys, v.Volume.Subpath)
		}
	}
	return keys
}

// makeSite runs the two services that make certificates and permissions, and reads the configuration
// of each server with them.
func makeSite(t *testing.T, project *types.Project) string {
	t.Helper()
	site := t.TempDir()
	for _, name := range []string{"certs", "permissions"} {
		args := slices.Clone(project.Services[name].Command)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "/etc/moorebus", site)
		}
		out, err := exec.Command(moorebus(t), args...).CombinedOutput()
		require.NoError(t, err, "%s\n%s", name, out)
	}
	conf, err := os.ReadFile(filepath.Join(root, "deploy", "compose", "nats.conf"))
	require.NoError(t, err)
	text := strings.NewReplacer("/etc/moorebus", site, "../moorebus/", "").Replace(string(conf))
	at := filepath.Join(site, "nats.conf")
	require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
	for _, name := range []string{"nats-1", "nats-2", "nats-3"} {
		t.Setenv("SERVER_NAME", *project.Services[name].Environment["SERVER_NAME"])
		o, err := server.ProcessConfigFile(at)
		require.NoError(t, err)
		require.Equal(t, name, o.ServerName)
		require.Len(t, o.Routes, 3)
		require.Equal(t, 4222, o.Port)
		require.Contains(t, strings.Join(project.Services[name].HealthCheck.Test, " "), "127.0.0.1:8222/healthz")
		require.Equal(t, 8222, o.HTTPPort)
		for _, route := range o.Routes {
			require.Contains(t, project.Services, route.Hostname())
		}
	}
	return site
}

// TestUnits: every unit can be read, its command and flags exist, and it is stopped later than it
// drains.
func TestUnits(t *testing.T) {
	units, err := filepath.Glob(filepath.Join(root, "deploy", "systemd", "*.service"))
	require.NoError(t, err)
	require.Len(t, units, 6)
	for _, path := range units {
		name := filepath.Base(path)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		options, err := unit.DeserializeOptions(strings.NewReader(string(text)))
		require.NoError(t, err, name)
		has := map[string]string{}
		for _, o := range options {
			has[o.Name] = o.Value
		}
		line := strings.Fields(strings.NewReplacer("%i", "web", "${STATE_DIRECTORY}", "/var/lib/moorebus").Replace(has["ExecStart"]))
		require.Equal(t, "/usr/bin/moorebus", line[0], name)
		last := line[len(line)-1]
		require.Regexp(t, `^\$MOOREBUS_[A-Z]+_ARGS$`, last, name)
		accepts(t, name, line[1:len(line)-1])
		for _, key := range []string{"NoNewPrivileges", "DynamicUser", "ProtectHome", "PrivateTmp"} {
			require.Equal(t, "yes", has[key], "%s: %s", name, key)
		}
		require.Equal(t, "strict", has["ProtectSystem"], name)
		if strings.Contains(has["ExecStart"], "--drain 30s") {
			require.Equal(t, "45", has["TimeoutStopSec"], name)
		}
		if user := regexp.MustCompile(`NATS_INBOX_PREFIX=_INBOX_(\S+)`).FindStringSubmatch(string(text)); user != nil {
			require.Contains(t, string(text), "LoadCredential=nkey:/etc/moorebus/keys/"+user[1]+".nk\n", name)
		} else {
			require.Equal(t, "moorebus-server.service", name)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is not here: the units are read by another program only")
		return
	}
	dir := t.TempDir() // the binary is where it is here
	for i, path := range units {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		units[i] = filepath.Join(dir, filepath.Base(path))
		require.NoError(t, os.WriteFile(units[i], []byte(strings.ReplaceAll(string(text), "/usr/bin/moorebus", moorebus(t))), 0o600))
	}
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestRelease: goreleaser reads its file strictly, and what it packs is there.
func TestRelease(t *testing.T) {
	file, err := os.Open(filepath.Join(root, ".goreleaser.yaml"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(file)
	require.NoError(t, err)
	project, err := config.LoadReader(strings.NewReader(string(text)))
	require.NoError(t, err)
	require.Len(t, project.Builds, 1)
	require.DirExists(t, filepath.Join(root, project.Builds[0].Main))
	exists := func(pattern string) {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(root, strings.ReplaceAll(pattern, "/**", "")))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
	}
	for _, f := range project.Archives[0].Files {
		exists(f.Source)
	}
	for _, c := range project.NFPMs[0].Contents {
		if c.Source != "" {
			exists(c.Source)
		}
	}
	require.NotEmpty(t, project.SBOMs)
	_, err = json.Marshal(project)
	require.NoError(t, err)
	_, err = config.LoadReader(strings.NewReader(string(text) + "\nbuildz: []\n"))
	require.Error(t, err, "it is read strictly")
}

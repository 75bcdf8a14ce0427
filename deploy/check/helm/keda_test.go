package helm

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
)

// parameters are the names that a scaler of KEDA knows, from its source.
func parameters(t *testing.T, scaler string) []string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kedacore/keda/v2").Output()
	require.NoError(t, err)
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg", "scalers", scaler+"_scaler.go"))
	require.NoError(t, err)
	var names []string
	for _, found := range regexp.MustCompile("`keda:\"name=([A-Za-z]+),").FindAllStringSubmatch(string(source), -1) {
		names = append(names, found[1])
	}
	require.NotEmpty(t, names)
	return names
}

// KEDA asks the monitoring for a consumer of a stream of an account. Each consumer that it
// asks for is one that the Job made, and each of the Job's that wakes a role is asked for.
func TestKEDAFindsEveryConsumer(t *testing.T) {
	withKeys := map[string]any{"keda": map[string]any{"enabled": true, "endpoint": "nats.example.org:8222"}}
	e := named(t, "shards-and-pools")
	maps.Copy(e.values, withKeys)
	all := objects(t, e, false)
	job := of[*batch.Job](all)[0]
	b := startBus(t, job)
	b.initialize(t, job)
	known := map[string][]string{"nats-jetstream": parameters(t, "nats_jetstream"), "prometheus": parameters(t, "prometheus")}
	metrics, err := os.ReadFile("../../../docs/metrics.md")
	require.NoError(t, err)
	asked := map[string]bool{}
	for _, s := range of[*keda.ScaledObject](append(all, objects(t, named(t, "keda-prometheus"), false)...)) {
		for _, trigger := range s.Spec.Triggers {
			require.Subset(t, known[trigger.Type], slices.Collect(maps.Keys(trigger.Metadata)), "%s: %s", s.Name, trigger.Type)
			for _, metric := range regexp.MustCompile(`moorebus_\w+`).FindAllString(trigger.Metadata["query"], -1) {
				require.Contains(t, string(metrics), "| `"+metric+"` |", "docs/metrics.md has no such metric")
			}
		}
	}
	for _, s := range of[*keda.ScaledObject](all) {
		for _, trigger := range s.Spec.Triggers {
			m := trigger.Metadata
			require.Equal(t, "LOG", m["account"])
			require.Contains(t, consumers(t, b, m["account"], m["stream"]), m["consumer"], s.Name)
			asked[m["stream"]+" "+m["consumer"]] = true
		}
	}
	// Gateways are not scaled by what wakes them.
	gateway := []string{"waiting_for_human", "acting_client"}
	for _, stream := range []string{"MOORE_0", "MOORE_1"} {
		for consumer := range consumers(t, b, "LOG", stream) {
			require.Equal(t, !slices.Contains(gateway, consumer), asked[stream+" "+consumer], "%s of %s", consumer, stream)
		}
	}
}

// The consumers of the pool of agents, without credentials.
func TestKEDAFindsTheConsumersOfAgents(t *testing.T) {
	all := objects(t, named(t, "keda-prometheus"), false)
	job := of[*batch.Job](all)[0]
	dir := t.TempDir()
	open, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, HTTPHost: "127.0.0.1", HTTPPort: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true})
	require.NoError(t, err)
	open.Start()
	t.Cleanup(func() { open.Shutdown(); open.WaitForShutdown() })
	require.True(t, open.ReadyForConnections(patience))
	b := &bus{server: open}
	b.initialize(t, job)
	agents := 0
	for _, s := range of[*keda.ScaledObject](all) {
		for _, trigger := range s.Spec.Triggers {
			if m := trigger.Metadata; trigger.Type == "nats-jetstream" {
				require.Contains(t, consumers(t, b, m["account"], m["stream"]), m["consumer"], s.Name)
				if strings.HasSuffix(m["consumer"], "_agents") {
					agents++
				}
			}
		}
	}
	require.Equal(t, 4, agents)
}

// A run that waits for a planner is a lag of one: with that KEDA starts a planner.
func TestAWaitingRunIsLag(t *testing.T) {
	e := named(t, "shards-and-pools")
	all := objects(t, e, false)
	job := of[*batch.Job](all)[0]
	b := startBus(t, job)
	b.head = e.text
	b.initialize(t, job)
	lag := func() (sum int) {
		for _, stream := range []string{"MOORE_0", "MOORE_1"} {
			sum += consumers(t, b, "LOG", stream)["planning"]
		}
		return sum
	}
	started, api := map[string]*exec.Cmd{}, ""
	for _, d := range of[*apps.Deployment](all) {
		if d.Name != "moorebus-gateway" && d.Name != "moorebus-planner" {
			continue
		}
		cmd, addresses := b.command(t, pod{d.Name, d.Spec.Template}, configMaps(all))
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // the test may have killed it
		started[d.Name] = cmd
		if addresses["http"] != "" {
			api = "http://" + addresses["http"] + "/v1/runs"
		}
	}
	start := func() bool { return post(t, api) == http.StatusCreated }
	require.Eventually(t, start, patience, 50*time.Millisecond, "the planner announces its providers")
	require.Eventually(t, func() bool { return lag() == 0 }, patience, 50*time.Millisecond)
	require.NoError(t, started["moorebus-planner"].Process.Kill())
	require.True(t, start(), "what it announced outlives it for a while")
	require.Equal(t, 1, lag())
}

// post starts a run with the token of the Secret, and returns the status of the answer, or 0.
func post(t *testing.T, api string) int {
	body := strings.NewReader(`{"agent": {"name": "demo", "llm": {"provider": "scripted", "script": [{"text": "Hello."}]}}, "task": "Say hello."}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api, body)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer secret")
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close() // only the status counts
	return answer.StatusCode
}

// consumers are those of a stream as KEDA asks the monitoring for them, with their lag.
func consumers(t *testing.T, b *bus, account, stream string) map[string]int {
	t.Helper()
	said, err := http.Get("http://" + b.server.MonitorAddr().String() + "/jsz?acc=" + account + "&consumers=true&config=true")
	require.NoError(t, err)
	defer func() { _ = said.Body.Close() }()
	// The fields that KEDA reads.
	var answer struct {
		Accounts []struct {
			Name    string `json:"name"`
			Streams []struct {
				Name      string `json:"name"`
				Consumers []struct {
					Name          string `json:"name"`
					NumPending    *int   `json:"num_pending"`
					NumAckPending *int   `json:"num_ack_pending"`
				} `json:"consumer_detail"`
			} `json:"stream_detail"`
		} `json:"account_details"`
	}
	require.NoError(t, json.NewDecoder(said.Body).Decode(&answer))
	lags := map[string]int{}
	for _, a := range answer.Accounts {
		for _, s := range a.Streams {
			if a.Name != account || s.Name != stream {
				continue
			}
			for _, c := range s.Consumers {
				require.NotNil(t, c.NumPending)
				require.NotNil(t, c.NumAckPending)
				lags[c.Name] = *c.NumPending + *c.NumAckPending
			}
		}
	}
	require.NotEmpty(t, lags, "stream %s of account %s", stream, account)
	return lags
}

package helm

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
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
		for _, consumer := range consumers(t, b, "LOG", stream) {
			require.Equal(t, !slices.Contains(gateway, consumer), asked[stream+" "+consumer], "%s of %s", consumer, stream)
		}
	}
}

// The consumers of the pool of agents, without credentials.
func TestKEDAFindsTheConsumersOfAgents(t *testing.T) {
	all := objects(t, named(t, "keda-prometheus"), false)
	job := of[*batch.Job](all)[0]
	dir := t.TempDir()
	open, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true})
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

// consumers are those of a stream as the monitoring shows them to KEDA.
func consumers(t *testing.T, b *bus, account, stream string) []string {
	t.Helper()
	said, err := b.server.Jsz(&server.JSzOptions{Account: account, Consumer: true, Config: true})
	require.NoError(t, err)
	text, err := json.Marshal(said)
	require.NoError(t, err)
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
	require.NoError(t, json.Unmarshal(text, &answer))
	var names []string
	for _, a := range answer.Accounts {
		for _, s := range a.Streams {
			if a.Name != account || s.Name != stream {
				continue
			}
			for _, c := range s.Consumers {
				require.NotNil(t, c.NumPending)
				require.NotNil(t, c.NumAckPending)
				names = append(names, c.Name)
			}
		}
	}
	require.NotEmpty(t, names, "stream %s of account %s", stream, account)
	return names
}

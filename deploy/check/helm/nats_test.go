package helm

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With a copy of the chart of NATS: its objects are where this chart looks for them.
func TestTheBusOfTheChart(t *testing.T) {
	if os.Getenv(natsChart) == "" {
		t.Skip("set " + natsChart + " to a copy of the chart of NATS")
	}
	each(t, func(t *testing.T, e example, all []v1.Object) {
		if e.values["nats"] == nil {
			t.Skip("the bus is another one")
		}
		ports := map[string]bool{}
		for _, s := range of[*core.Service](all) {
			for _, port := range s.Spec.Ports {
				ports[(&url.URL{Host: s.Name + "." + namespace + ".svc"}).Host+":"+port.TargetPort.StrVal] = true
			}
		}
		for _, p := range own(all) {
			for _, env := range p.Spec.Containers[0].Env {
				if env.Name == "NATS_URL" {
					at, err := url.Parse(env.Value)
					require.NoError(t, err)
					require.Equal(t, "4222", at.Port())
					require.True(t, ports[at.Hostname()+":nats"], env.Value)
					require.True(t, ports[at.Hostname()+":monitor"], "init asks there how much may be stored")
				}
			}
		}
		for _, s := range of[*keda.ScaledObject](all) {
			endpoint := s.Spec.Triggers[0].Metadata["natsServerMonitoringEndpoint"]
			require.True(t, ports[strings.TrimSuffix(endpoint, ":8222")+":monitor"], endpoint)
			require.Contains(t, endpoint, "-headless.")
		}
		guarded := 0
		for _, n := range of[*networking.NetworkPolicy](all) {
			if n.Name == "moorebus-bus" {
				guarded = len(selected(pods(all), n.Spec.PodSelector.MatchLabels))
				for _, rule := range n.Spec.Ingress {
					for _, port := range rule.Ports {
						number, _ := portOf(selected(pods(all), n.Spec.PodSelector.MatchLabels)[0], *port.Port)
						require.True(t, number != 0 || port.Port.IntVal == 6222, "port %s", port.Port)
					}
				}
			}
		}
		require.Equal(t, 1, guarded, "the StatefulSet of NATS")
		for _, c := range of[*core.ConfigMap](all) {
			if text := c.Data["nats.conf"]; text != "" {
				file := filepath.Join(t.TempDir(), "nats.conf")
				require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, "$SERVER_NAME", "n1")), 0o600))
				options, err := server.ProcessConfigFile(file)
				require.NoError(t, err, text)
				require.True(t, options.JetStream)
				require.Equal(t, options.Cluster.Name == "", options.SyncAlways, "a single server flushes")
			}
		}
	})
}

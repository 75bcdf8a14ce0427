package helm

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With a copy of the chart of NATS: its objects are where this chart looks for them.
func TestTheBusOfTheChart(t *testing.T) {
	if os.Getenv(natsChart) == "" {
		t.Skip("set " + natsChart + " to a copy of the chart of NATS") // reason: its repository is not reached from everywhere
	}
	each(t, func(t *testing.T, e example, all []v1.Object) {
		if e.values["nats"] == nil {
			t.Skip("the bus is another one") // reason: an example without the chart of NATS has nothing of it to hold
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
				checkServer(t, all, text)
			}
		}
	})
}

// checkServer reads the configuration of the servers, with what it includes.
func checkServer(t *testing.T, all []v1.Object, text string) {
	t.Helper()
	dir := t.TempDir()
	certificate, key := selfSigned(t)
	for name, content := range map[string]string{
		"nats/tls.crt": certificate, "nats/tls.key": key,
		"nats-config/nats.conf":             strings.NewReplacer("$SERVER_NAME", "n1", "/etc/nats-certs", dir).Replace(text),
		"nats-permissions/permissions.conf": permissions(t, of[*batch.Job](all)[0], dir),
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	options, err := server.ProcessConfigFile(filepath.Join(dir, "nats-config", "nats.conf"))
	require.NoError(t, err, text)
	require.True(t, options.JetStream)
	require.Equal(t, options.Cluster.Name == "", options.SyncAlways, "a single server flushes")
	require.Equal(t, strings.Contains(text, "include"), len(options.Nkeys) > 0, "users")
}

// selfSigned returns any certificate and its key, which the server only reads.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

package helm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
)

const (
	chartDir    = "../../helm/moorebus"
	examplesDir = "../../helm/examples"
	namespace   = "agents"
	// natsChart is the variable with a copy of the official chart of NATS (a folder or an
	// archive), which is not in this repository. With it that chart's objects are checked as well.
	natsChart = "NATS_CHART"
)

// example is one file of values, and what it is for people.
type example struct {
	name, text string
	values     map[string]any
}

func examples(t *testing.T) []example {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(examplesDir, "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all []example
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		values, err := chartutil.ReadValues(text)
		require.NoError(t, err, file)
		all = append(all, example{strings.TrimSuffix(filepath.Base(file), ".yaml"), string(text), values})
	}
	return all
}

func named(t *testing.T, name string) example {
	t.Helper()
	for _, e := range examples(t) {
		if e.name == name {
			return e
		}
	}
	t.Fatalf("no example %s", name)
	return example{}
}

// render returns the documents that Helm makes of the values, after the schema has taken them.
func render(values map[string]any, upgrade bool) (documents []string, err error) {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	if path := os.Getenv(natsChart); path != "" {
		nats, err := loader.Load(path)
		if err != nil {
			return nil, err
		}
		c.AddDependency(nats)
	}
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "moorebus", Namespace: namespace, Revision: 1, IsInstall: !upgrade, IsUpgrade: upgrade}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"}
	all, err := chartutil.ToRenderValuesWithSchemaValidation(c, values, release, capabilities, false)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: os.Getenv(natsChart) == ""}.Render(c, all)
	if err != nil {
		return nil, err
	}
	for file, text := range files {
		if filepath.Ext(file) != ".yaml" {
			continue // notes and named templates
		}
		for _, document := range releaseutil.SplitManifests(text) {
			documents = append(documents, document)
		}
	}
	return documents, nil
}

func TestLint(t *testing.T) {
	for _, e := range examples(t) {
		t.Run(e.name, func(t *testing.T) {
			for _, m := range lint.All(chartDir, e.values, namespace, true).Messages {
				missing := strings.Contains(fmt.Sprint(m.Err), "missing these dependencies") || strings.Contains(fmt.Sprint(m.Err), "missing in charts/")
				if m.Severity >= support.WarningSev && !missing {
					t.Error(m)
				}
			}
		})
	}
}

// Every value of values.yaml is in the schema with a description, and the other way round.
func TestTheSchemaDescribesEveryValue(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	schema, err := chartutil.ReadValues(c.Schema)
	require.NoError(t, err)
	definitions := schema["definitions"].(map[string]any)
	var compare func(at string, schema, values map[string]any)
	compare = func(at string, schema, values map[string]any) {
		if ref, ok := schema["$ref"].(string); ok {
			schema = definitions[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
		}
		if schema["description"] == "" || schema["description"] == nil {
			t.Errorf("%s has no description", at)
		}
		properties, _ := schema["properties"].(map[string]any)
		if len(properties) == 0 || at == ".nats" {
			return
		}
		require.Equal(t, false, schema["additionalProperties"], "%s takes any name", at)
		for name, property := range properties {
			value, there := values[name]
			if !there && at+"."+name != ".global" {
				t.Errorf("%s.%s has no default in values.yaml", at, name)
			}
			below, _ := value.(map[string]any)
			compare(at+"."+name, property.(map[string]any), below)
		}
	}
	compare("", schema, c.Values)
}

func TestTheSchemaRefusesMistakes(t *testing.T) {
	for mistake, why := range map[string]string{
		"plannr: {replicas: 2}":                            "plannr",
		"planner: {replica: 2}":                            "replica",
		"planner: {replicas: two}":                         "replicas",
		"planner: {autoscaling: {minReplicas: 0}}":         "minReplicas",
		"planner: {tools: x}":                              "tools",
		"gateway: {secrets: [model-keys]}":                 "secrets",
		"observer: {secrets: [model-keys]}":                "secrets",
		"actors: {pools: {Web: {}}}":                       "Web",
		"actors: {pools: {a-pool-with-a-name: {}}}":        "a-pool-with-a-name",
		"actors: {pools: {client: {}}}":                    "client",
		"actors: {pools: {web: {pools: {}}}}":              "pools",
		"bus: {url: 'http://nats.example.org'}":            "url",
		"bus: {shards: 0}":                                 "shards",
		"bus: {nkeys: {secret: x}}":                        "secret",
		"init: {maxBytes: 200 gigabytes}":                  "maxBytes",
		"keda: {endpoint: 'http://nats:8222'}":             "endpoint",
		"keda: {tokens: {prometheus: prometheus:9090}}":    "prometheus",
		"image: {digest: latest}":                          "digest",
		"log: {format: xml}":                               "format",
		"networkPolicy: {busPorts: []}":                    "busPorts",
		"actors: {pools: {web: {strategy: BlueGreen}}}":    "strategy",
		"telemetry: {enabled: true, concurrency: 3}":       "concurrency",
		"metrics: {serviceMonitor: {interval: sometimes}}": "interval",
	} {
		values, err := chartutil.ReadValues([]byte("nats: {enabled: true}\n" + mistake))
		require.NoError(t, err, mistake)
		_, err = render(values, false)
		require.ErrorContains(t, err, "schema", mistake)
		require.ErrorContains(t, err, why, mistake)
	}
	for mistake, why := range map[string]string{
		"planner: {replicas: 1}":                               "bus.url",
		"{bus: {url: 'nats://x:4222'}, nats: {enabled: true}}": "use one of them",
		"{bus: {url: 'nats://x:4222'}, keda: {enabled: true}}": "keda.endpoint",
	} {
		values, err := chartutil.ReadValues([]byte(mistake))
		require.NoError(t, err, mistake)
		_, err = render(values, false)
		require.ErrorContains(t, err, why, mistake)
	}
}

package helm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
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

// chartOfNATS returns the copy of the chart that the variable names, else one without objects.
func chartOfNATS() (*chart.Chart, error) {
	if path := os.Getenv(natsChart); path != "" {
		return loader.Load(path)
	}
	return &chart.Chart{Metadata: &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "nats", Version: "2.14.2"}}, nil
}

// render returns the documents that Helm makes of the values, after the schema has taken them.
func render(values map[string]any, upgrade bool) (documents []string, err error) {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	if enabled, _ := chartutil.Values(values).PathValue("nats.enabled"); enabled == true {
		nats, err := chartOfNATS()
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
			dir := chartDir
			if e.values["nats"] != nil { // with a chart of NATS, which has no objects here
				dir = filepath.Join(t.TempDir(), "moorebus")
				require.NoError(t, os.CopyFS(dir, os.DirFS(chartDir)))
				alerts := filepath.Join("files", "alerts.yml") // a link out of the chart
				text, err := os.ReadFile(filepath.Join(chartDir, alerts))
				require.NoError(t, err)
				require.NoError(t, os.Remove(filepath.Join(dir, alerts)))
				require.NoError(t, os.WriteFile(filepath.Join(dir, alerts), text, 0o600))
				require.NoError(t, os.MkdirAll(filepath.Join(dir, "charts", "nats", "templates"), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "charts", "nats", "Chart.yaml"), []byte("apiVersion: v2\nname: nats\nversion: 2.14.2\nicon: https://nats.io/icon.png\n"), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "charts", "nats", "values.yaml"), nil, 0o600))
			}
			for _, m := range lint.All(dir, e.values, namespace, true).Messages {
				unlisted := strings.Contains(m.Err.Error(), "missing these dependencies: nats") // on purpose, see TestNoDependency
				if m.Severity >= support.WarningSev && !unlisted {
					t.Error(m)
				}
			}
		})
	}
}

// TestNoDependency: with an external bus the chart is rendered as it is, without other charts,
// and what charts/ has and the values say must agree.
func TestNoDependency(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	require.Empty(t, c.Metadata.Dependencies, "helm template refuses a chart whose dependencies are missing, also those that are not enabled")
	documents, err := render(named(t, "external-nats").values, false)
	require.NoError(t, err)
	require.NotEmpty(t, documents)

	rendered := func(values map[string]any, nats *chart.Chart) error {
		c, err := loader.LoadDir(chartDir)
		require.NoError(t, err)
		if nats != nil {
			c.AddDependency(nats)
		}
		all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "moorebus", Namespace: namespace, IsInstall: true}, nil)
		require.NoError(t, err)
		_, err = engine.Render(c, all)
		return err
	}
	require.ErrorContains(t, rendered(named(t, "minimal").values, nil), "helm pull nats")
	nats, err := chartOfNATS()
	require.NoError(t, err)
	require.ErrorContains(t, rendered(named(t, "external-nats").values, nats), "would be installed too")
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

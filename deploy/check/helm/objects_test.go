package helm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	disruption "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	security "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// kinds are the types of all objects that the chart makes, by apiVersion and kind.
var kinds = map[string]func() meta.Object{
	"v1 Pod":                                  func() meta.Object { return &core.Pod{} },
	"v1 Service":                              func() meta.Object { return &core.Service{} },
	"v1 ServiceAccount":                       func() meta.Object { return &core.ServiceAccount{} },
	"v1 ConfigMap":                            func() meta.Object { return &core.ConfigMap{} },
	"apps/v1 Deployment":                      func() meta.Object { return &apps.Deployment{} },
	"apps/v1 StatefulSet":                     func() meta.Object { return &apps.StatefulSet{} },
	"batch/v1 Job":                            func() meta.Object { return &batch.Job{} },
	"policy/v1 PodDisruptionBudget":           func() meta.Object { return &disruption.PodDisruptionBudget{} },
	"networking.k8s.io/v1 Ingress":            func() meta.Object { return &networking.Ingress{} },
	"keda.sh/v1alpha1 ScaledObject":           func() meta.Object { return &keda.ScaledObject{} },
	"networking.k8s.io/v1 NetworkPolicy":      func() meta.Object { return &networking.NetworkPolicy{} },
	"monitoring.coreos.com/v1 ServiceMonitor": func() meta.Object { return &monitoring.ServiceMonitor{} },
	"monitoring.coreos.com/v1 PrometheusRule": func() meta.Object { return &monitoring.PrometheusRule{} },
}

// objects renders an example and decodes it. A field that the type does not have is an error.
func objects(t *testing.T, e example, upgrade bool) []meta.Object {
	t.Helper()
	documents, err := render(e.values, upgrade)
	require.NoError(t, err)
	var all []meta.Object
	seen := map[string]bool{}
	for _, document := range documents {
		var head meta.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(document), &head), document)
		make := kinds[head.APIVersion+" "+head.Kind]
		require.NotNil(t, make, "%s %s is no kind of this chart", head.APIVersion, head.Kind)
		object := make()
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), object), document)
		id := head.Kind + " " + object.GetName()
		require.False(t, seen[id], "%s is there twice", id)
		seen[id] = true
		require.Empty(t, validation.IsDNS1123Subdomain(object.GetName()), id)
		checkLabels(t, id, object.GetLabels())
		all = append(all, object)
	}
	return all
}

func checkLabels(t *testing.T, id string, all map[string]string) {
	t.Helper()
	for key, value := range all {
		require.Empty(t, validation.IsQualifiedName(key), "%s: label %s", id, key)
		require.Empty(t, validation.IsValidLabelValue(value), "%s: label %s: %s", id, key, value)
	}
}

// of returns the objects of one type.
func of[T meta.Object](all []meta.Object) []T {
	var found []T
	for _, o := range all {
		if o, ok := o.(T); ok {
			found = append(found, o)
		}
	}
	return found
}

// pod is a pod that somebody starts, with the name of its owner.
type pod struct {
	owner string
	core.PodTemplateSpec
}

func pods(all []meta.Object) []pod {
	var found []pod
	for _, d := range of[*apps.Deployment](all) {
		found = append(found, pod{d.Name, d.Spec.Template})
	}
	for _, j := range of[*batch.Job](all) {
		found = append(found, pod{j.Name, j.Spec.Template})
	}
	for _, s := range of[*apps.StatefulSet](all) {
		found = append(found, pod{s.Name, s.Spec.Template})
	}
	return found
}

// own are the pods of this chart: not those of NATS.
func own(all []meta.Object) []pod {
	var found []pod
	for _, p := range pods(all) {
		if p.Labels["app.kubernetes.io/name"] == "moorebus" {
			found = append(found, p)
		}
	}
	return found
}

func selected(all []pod, by map[string]string) []pod {
	var found []pod
	for _, p := range all {
		if labels.SelectorFromSet(by).Matches(labels.Set(p.Labels)) {
			found = append(found, p)
		}
	}
	return found
}

// portOf returns the number of a port of the pod, by name or number.
func portOf(p pod, port intstr.IntOrString) (number int32, protocol core.Protocol) {
	for _, c := range p.Spec.Containers {
		for _, its := range c.Ports {
			if port.Type == intstr.String && its.Name == port.StrVal || port.Type == intstr.Int && its.ContainerPort == port.IntVal {
				return its.ContainerPort, its.Protocol
			}
		}
	}
	return 0, ""
}

// each runs a test for every example, installed and upgraded.
func each(t *testing.T, test func(t *testing.T, e example, all []meta.Object)) {
	for _, e := range examples(t) {
		for _, upgrade := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/upgrade=%t", e.name, upgrade), func(t *testing.T) { test(t, e, objects(t, e, upgrade)) })
		}
	}
}

func TestSelectorsFindTheirPods(t *testing.T) {
	each(t, func(t *testing.T, _ example, all []meta.Object) {
		ours := own(all)
		for _, d := range of[*apps.Deployment](all) {
			require.Len(t, selected(ours, d.Spec.Selector.MatchLabels), 1, d.Name)
			// An instance is named after its host and process; it must not lose the end.
			require.LessOrEqual(t, len(d.Name+"-1234567890-12345"+"-1"), 63, d.Name)
			checkLabels(t, d.Name, d.Spec.Template.Labels)
			for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
				require.Equal(t, d.Spec.Selector, c.LabelSelector, d.Name)
			}
		}
		guarded := 0
		for _, b := range of[*disruption.PodDisruptionBudget](all) {
			found := selected(pods(all), b.Spec.Selector.MatchLabels)
			require.Len(t, found, 1, b.Name)
			guarded++
		}
		require.GreaterOrEqual(t, guarded, len(of[*apps.Deployment](all)), "each Deployment has a budget")
		isolated := map[string]int{}
		for _, n := range of[*networking.NetworkPolicy](all) {
			for _, p := range selected(ours, n.Spec.PodSelector.MatchLabels) {
				isolated[p.owner]++
				for _, rule := range n.Spec.Ingress {
					for _, port := range rule.Ports {
						number, _ := portOf(p, *port.Port)
						require.NotZero(t, number, "%s: port %s", n.Name, port.Port)
					}
				}
			}
		}
		for _, d := range of[*apps.Deployment](all) {
			require.Equal(t, 1, isolated[d.Name], "%s has one NetworkPolicy", d.Name)
		}
	})
}

func TestPortsAgree(t *testing.T) {
	each(t, func(t *testing.T, _ example, all []meta.Object) {
		services := map[string]*core.Service{}
		for _, s := range of[*core.Service](all) {
			services[s.Name] = s
			if s.Spec.Selector["app.kubernetes.io/name"] != "moorebus" {
				continue
			}
			found := 0
			for _, p := range selected(own(all), s.Spec.Selector) {
				if number, _ := portOf(p, s.Spec.Ports[0].TargetPort); number != 0 {
					found++
				}
			}
			require.NotZero(t, found, "%s leads nowhere", s.Name)
		}
		for _, i := range of[*networking.Ingress](all) {
			require.NotEmpty(t, i.Spec.Rules, i.Name)
			for _, rule := range i.Spec.Rules {
				to := rule.HTTP.Paths[0].Backend.Service
				require.Contains(t, services, to.Name)
				require.Equal(t, to.Port.Name, services[to.Name].Spec.Ports[0].Name)
			}
		}
		for _, m := range of[*monitoring.ServiceMonitor](all) {
			found := 0
			for _, s := range services {
				if labels.SelectorFromSet(m.Spec.Selector.MatchLabels).Matches(labels.Set(s.Labels)) {
					require.Equal(t, m.Spec.Endpoints[0].Port, s.Spec.Ports[0].Name)
					found++
				}
			}
			require.Equal(t, 1, found, "Services of %s", m.Name)
		}
		for _, d := range of[*apps.Deployment](all) {
			c := d.Spec.Template.Spec.Containers[0]
			for _, probe := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe} {
				require.NotNil(t, probe, d.Name)
				number, _ := portOf(pod{d.Name, d.Spec.Template}, probe.HTTPGet.Port)
				require.NotZero(t, number, "%s: port %s of a probe", d.Name, &probe.HTTPGet.Port)
			}
		}
	})
}

func TestVolumesAreThere(t *testing.T) {
	each(t, func(t *testing.T, _ example, all []meta.Object) {
		maps := configMaps(all)
		for _, p := range own(all) {
			volumes, used := map[string]core.Volume{}, map[string]bool{}
			for _, v := range p.Spec.Volumes {
				volumes[v.Name] = v
				if v.ConfigMap != nil {
					require.Contains(t, maps, v.ConfigMap.Name, p.owner)
				}
			}
			for _, m := range p.Spec.Containers[0].VolumeMounts {
				require.Contains(t, volumes, m.Name, p.owner)
				used[m.Name] = true
			}
			require.Len(t, used, len(volumes), "%s mounts every volume", p.owner)
		}
	})
}

// Kubernetes's own rules of the level restricted, and what they do not ask for.
func TestPodsMayDoNothing(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	level := security.LevelVersion{Level: security.LevelRestricted, Version: security.LatestVersion()}
	each(t, func(t *testing.T, _ example, all []meta.Object) {
		require.NotEmpty(t, own(all))
		for _, p := range own(all) {
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &p.ObjectMeta, &p.Spec))
			require.True(t, result.Allowed, "%s: %s", p.owner, result.ForbiddenDetail())
			require.False(t, *p.Spec.AutomountServiceAccountToken, p.owner)
			for _, c := range p.Spec.Containers {
				require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, p.owner)
				require.NotEmpty(t, c.Resources.Requests, p.owner)
				require.Contains(t, c.Resources.Limits, core.ResourceMemory, p.owner)
			}
		}
		for _, a := range of[*core.ServiceAccount](all) {
			require.False(t, *a.AutomountServiceAccountToken)
		}
	})
}

// A role ends within some seconds of its drain; a pod that is killed before loses its work.
func TestPodsHaveTimeToDrain(t *testing.T) {
	each(t, func(t *testing.T, _ example, all []meta.Object) {
		for _, d := range of[*apps.Deployment](all) {
			c := d.Spec.Template.Spec.Containers[0]
			before := time.Duration(0)
			if c.Lifecycle != nil {
				before = time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
			}
			drains := 0
			for _, arg := range c.Args {
				if text, ok := strings.CutPrefix(arg, "--drain="); ok {
					drain, err := time.ParseDuration(text)
					require.NoError(t, err)
					require.GreaterOrEqual(t, time.Duration(*d.Spec.Template.Spec.TerminationGracePeriodSeconds)*time.Second, before+drain+10*time.Second, d.Name)
					drains++
				}
			}
			require.Equal(t, 1, drains, d.Name)
		}
	})
}

// secretsOf are the names of the Secrets that a pod has, with the variable or the file.
func secretsOf(p pod) map[string]string {
	found := map[string]string{}
	for _, v := range p.Spec.Volumes {
		if v.Secret != nil {
			found[v.Secret.SecretName] = v.Name
		}
	}
	c := p.Spec.Containers[0]
	for _, from := range c.EnvFrom {
		found[from.SecretRef.Name] = "*"
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			found[e.ValueFrom.SecretKeyRef.Name] = e.Name
		}
	}
	return found
}

// Each pod has its own secrets alone, and the head of each example says which there have to be.
func TestSecrets(t *testing.T) {
	each(t, func(t *testing.T, e example, all []meta.Object) {
		head, _, _ := strings.Cut(e.text, "\n\n")
		for _, i := range of[*networking.Ingress](all) {
			for _, tls := range i.Spec.TLS {
				require.Contains(t, head, tls.SecretName)
			}
		}
		for _, p := range own(all) {
			component := p.Labels["app.kubernetes.io/component"]
			for secret, as := range secretsOf(p) {
				if user, ok := strings.CutPrefix(secret, "moorebus-nkey-"); ok {
					want := component
					if component == "init" {
						want = "operator"
					}
					require.Equal(t, want, user, "the key of %s", p.owner)
					require.Contains(t, head, "moorebus-nkey-USER")
					require.Contains(t, head, user)
					continue
				}
				require.Contains(t, head, secret, "the head of the example does not name it")
				switch as {
				case "MOOREBUS_TOKEN":
					require.Equal(t, "gateway", component)
				case "*":
					require.True(t, component == "planner" || component == "telemetry" || strings.HasPrefix(component, "actor-"), component)
				default:
					require.Equal(t, "bus-ca", as)
				}
			}
		}
	})
}

// The Job that sets up the bus ends before what needs it, unless its bus comes with it.
func TestInitRunsFirst(t *testing.T) {
	each(t, func(t *testing.T, e example, all []meta.Object) {
		jobs := of[*batch.Job](all)
		require.Len(t, jobs, 1)
		bundled := e.values["nats"] != nil
		upgrade := strings.HasSuffix(t.Name(), "upgrade=true")
		if bundled && !upgrade {
			require.NotContains(t, jobs[0].Annotations, "helm.sh/hook")
			require.Contains(t, jobs[0].Spec.Template.Spec.Containers[0].Args, "--wait")
			return
		}
		require.Equal(t, "pre-install,pre-upgrade", jobs[0].Annotations["helm.sh/hook"])
		require.Equal(t, "default", jobs[0].Spec.Template.Spec.ServiceAccountName, "the chart's account comes after the hook")
		for _, v := range jobs[0].Spec.Template.Spec.Volumes {
			require.Nil(t, v.ConfigMap, "the chart's ConfigMaps come after the hook")
		}
	})
}

// The rules are those that promtool's code has read, and their job is the ServiceMonitor's.
func TestTheAlertsAreThere(t *testing.T) {
	text, err := os.ReadFile("../../prometheus/alerts.yml")
	require.NoError(t, err)
	var want monitoring.PrometheusRuleSpec
	require.NoError(t, yaml.UnmarshalStrict(text, &want))
	require.NotEmpty(t, want.Groups)
	all := objects(t, named(t, "keda-prometheus"), false)
	rules := of[*monitoring.PrometheusRule](all)
	require.Len(t, rules, 1)
	require.Equal(t, want, rules[0].Spec)
	monitors := of[*monitoring.ServiceMonitor](all)
	require.Len(t, monitors, 1)
	for _, s := range of[*core.Service](all) {
		if s.Name == "moorebus-metrics" {
			require.Equal(t, "moorebus", s.Labels[monitors[0].Spec.JobLabel])
		}
	}
}

func TestScaledObjectsHaveTheirDeployment(t *testing.T) {
	all := objects(t, named(t, "keda-prometheus"), false)
	deployments := map[string]*apps.Deployment{}
	for _, d := range of[*apps.Deployment](all) {
		deployments[d.Name] = d
	}
	scaled := of[*keda.ScaledObject](all)
	require.Len(t, scaled, 4, "planner, observer and two pools")
	for _, s := range scaled {
		d := deployments[s.Spec.ScaleTargetRef.Name]
		require.NotNil(t, d, s.Name)
		require.Nil(t, d.Spec.Replicas, "%s: an upgrade would undo what KEDA did", d.Name)
		require.GreaterOrEqual(t, *s.Spec.MinReplicaCount, int32(1))
		require.Greater(t, *s.Spec.MaxReplicaCount, *s.Spec.MinReplicaCount)
		require.Equal(t, "currentReplicasIfHigher", s.Spec.Fallback.Behavior)
		require.NoError(t, keda.ValidateTriggers(s.Spec.Triggers), s.Name)
		delete(deployments, d.Name)
	}
	for _, d := range deployments {
		require.NotNil(t, d.Spec.Replicas, d.Name)
	}
}

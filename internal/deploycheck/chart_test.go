package deploycheck

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const folder = "../../deploy/helm/semel"

var update = flag.Bool("update", false, "write testdata/rendered.yaml")

// values reads testdata/values.yaml, and has each of the YAML texts override it.
func values(t *testing.T, overrides ...string) map[string]any {
	t.Helper()
	text, err := os.ReadFile("testdata/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	for _, text := range append([]string{string(text)}, overrides...) {
		one := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &one); err != nil {
			t.Fatal(err)
		}
		all = chartutil.MergeTables(one, all) // the first one wins
	}
	return all
}

// render returns the manifests by file, without those that are empty.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "orders", Namespace: "shop", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	manifests, err := engine.Engine{Strict: true}.Render(chart, all)
	for name, text := range manifests {
		if strings.TrimSpace(text) == "" || filepath.Base(name) == "NOTES.txt" {
			delete(manifests, name)
		}
	}
	return manifests, err
}

// objects are what the chart makes.
type objects struct {
	deployment *appsv1.Deployment
	configMap  *corev1.ConfigMap
	services   []*corev1.Service
	budget     *policyv1.PodDisruptionBudget
	policy     *networkingv1.NetworkPolicy
	monitor    *monitoringv1.ServiceMonitor
}

// decode reads manifests as the API's types, with every field known.
func decode(t *testing.T, manifests map[string]string) (o objects) {
	t.Helper()
	for name, text := range manifests {
		for _, document := range strings.Split(text, "\n---\n") {
			var kind struct {
				APIVersion, Kind string
				Metadata         struct {
					Name   string
					Labels map[string]string
				}
			}
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatal(name, err)
			}
			into := map[string]any{
				"apps/v1 Deployment": &o.deployment, "v1 ConfigMap": &o.configMap, "policy/v1 PodDisruptionBudget": &o.budget,
				"networking.k8s.io/v1 NetworkPolicy": &o.policy, "monitoring.coreos.com/v1 ServiceMonitor": &o.monitor,
			}[kind.APIVersion+" "+kind.Kind]
			if kind.APIVersion+" "+kind.Kind == "v1 Service" {
				o.services = append(o.services, nil)
				into = &o.services[len(o.services)-1]
			}
			if into == nil {
				t.Fatalf("%s: nobody knows %s %s", name, kind.APIVersion, kind.Kind)
			}
			// As the API server does it: what differs in a capital is another field.
			text, err := yaml.YAMLToJSONStrict([]byte(document))
			if err != nil {
				t.Fatal(name, err)
			}
			unknown, err := json.UnmarshalStrict(text, into)
			for _, err := range append(unknown, err) {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if wrong := utilvalidation.IsDNS1035Label(kind.Metadata.Name); len(wrong) > 0 {
				t.Errorf("%s: the name %s: %v", name, kind.Metadata.Name, wrong)
			}
			for _, err := range validation.ValidateLabels(kind.Metadata.Labels, field.NewPath("labels")) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	return o
}

func TestLint(t *testing.T) {
	linter := lint.All(folder, values(t), "shop", true)
	for _, m := range linter.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestChart holds each object that the chart makes against the others: names that
// lead somewhere, ports that are there, times that fit.
func TestChart(t *testing.T) {
	manifests, err := render(t, values(t))
	if err != nil {
		t.Fatal(err)
	}
	o := decode(t, manifests)
	if t.Failed() {
		return
	}
	pod := o.deployment.Spec.Template
	c := pod.Spec.Containers[0]

	// Whatever selects pods selects these, and the deployment's selector is fixed for
	// good: it has no version in it.
	selectors := map[string]map[string]string{
		"deployment": o.deployment.Spec.Selector.MatchLabels, "budget": o.budget.Spec.Selector.MatchLabels,
		"policy": o.policy.Spec.PodSelector.MatchLabels, "spread": pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	}
	for _, s := range o.services {
		selectors["service "+s.Name] = s.Spec.Selector
	}
	for what, s := range selectors {
		if len(s) != 2 || !labels.SelectorFromSet(s).Matches(labels.Set(pod.Labels)) {
			t.Errorf("the %s selects %v; the pods have %v", what, s, pod.Labels)
		}
	}

	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for what, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		if probe == nil || probe.HTTPGet == nil || ports[probe.HTTPGet.Port.StrVal] == 0 {
			t.Errorf("the %s probe is %+v; the ports are %v", what, probe, ports)
		}
	}
	var admin *corev1.Service
	for _, s := range o.services {
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort.StrVal] == 0 {
				t.Errorf("the service %s leads to the port %s; there are %v", s.Name, p.TargetPort.StrVal, ports)
			}
		}
		if labels.SelectorFromSet(o.monitor.Spec.Selector.MatchLabels).Matches(labels.Set(s.Labels)) {
			admin = s
		}
	}
	if admin == nil || admin.Spec.Ports[0].Name != o.monitor.Spec.Endpoints[0].Port || admin.Spec.Type != corev1.ServiceTypeClusterIP {
		t.Errorf("the monitor's service is %+v", admin)
	}
	if s := o.monitor.Spec.Endpoints[0].Authorization.Credentials; s.Name != "semel-admin" || s.Key != "token" {
		t.Errorf("the monitor's token is %v", s)
	}
	for _, rule := range o.policy.Spec.Ingress {
		if name := rule.Ports[0].Port.StrVal; ports[name] == 0 || len(rule.From) != 1 {
			t.Errorf("the policy is about the port %s from %v", name, rule.From)
		}
	}

	// Each mount has its volume, and the file is where the gateway looks.
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	mounts := map[string]corev1.Volume{}
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			t.Errorf("there is no volume %s", m.Name)
		}
		mounts[m.MountPath] = v
	}
	if len(mounts) != 3 || len(volumes) != 3 {
		t.Errorf("mounts are %v of %v", mounts, volumes)
	}
	file := c.Args[len(c.Args)-1]
	if v := mounts[filepath.Dir(file)]; v.ConfigMap == nil || v.ConfigMap.Name != o.configMap.Name || o.configMap.Data[filepath.Base(file)] == "" {
		t.Errorf("%s is not in %+v", file, v)
	}
	var config struct {
		Spool             struct{ Dir, Max string }
		Drain, DrainDelay string
		Upstreams         []struct {
			MaxConns any `json:"max_conns"`
		}
	}
	if err := yaml.Unmarshal([]byte(o.configMap.Data[filepath.Base(file)]), &config); err != nil {
		t.Fatal(err)
	}
	spool := mounts[config.Spool.Dir]
	if spool.EmptyDir == nil || spool.EmptyDir.SizeLimit.String() != "3Gi" || config.Spool.Max != "2GiB" {
		t.Errorf("the spool is %v of %+v", config.Spool, spool)
	}
	if got := *pod.Spec.TerminationGracePeriodSeconds; got != 55 {
		t.Errorf("a pod is killed after %d s", got)
	}
	if got := fmt.Sprint(config.Upstreams[0].MaxConns); got != "1e+06" && got != "1000000" || !strings.Contains(o.configMap.Data["gateway.yaml"], "max_conns: 1000000\n") {
		t.Errorf("a large number became %s", got)
	}

	// A pod that can do little.
	s, p := c.SecurityContext, pod.Spec.SecurityContext
	if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.Privileged != nil ||
		!*p.RunAsNonRoot || *p.RunAsUser == 0 || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("the security contexts are %+v and %+v", s, p)
	}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("the volume %s is of the host", v.Name)
		}
	}
	// No secret is in a manifest: only where it is.
	for _, e := range c.Env[:2] {
		if e.Value != "" || e.ValueFrom.SecretKeyRef == nil {
			t.Errorf("%s is not of a Secret", e.Name)
		}
	}
	if u := o.deployment.Spec.Strategy.RollingUpdate; u.MaxUnavailable.IntValue() != 0 || u.MaxSurge.IntValue() != 1 {
		t.Errorf("a rollout is %+v", u)
	}

	var all bytes.Buffer
	names := make([]string, 0, len(manifests))
	for name := range manifests {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&all, "---\n# %s\n%s\n", filepath.Base(name), strings.TrimSpace(manifests[name]))
	}
	const golden = "testdata/rendered.yaml"
	if *update {
		if err := os.WriteFile(golden, all.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(golden); err != nil || !bytes.Equal(have, all.Bytes()) {
		t.Errorf("%s is not what the chart makes (%v): run go test -run TestChart -update in internal/deploycheck, and read the difference", golden, err)
	}
}

// TestChartVaries holds what other values make.
func TestChartVaries(t *testing.T) {
	one := func(override string) objects {
		t.Helper()
		manifests, err := render(t, values(t, override))
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, manifests)
	}
	base := one("")
	sum := func(o objects) string { return o.deployment.Spec.Template.Annotations["checksum/config"] }
	if o := one("config: {dry_run: true}"); sum(o) == sum(base) {
		t.Error("a changed file replaces no pods")
	}
	if o := one("replicas: 5"); sum(o) != sum(base) || *o.deployment.Spec.Replicas != 5 {
		t.Error("another number of pods replaces the pods")
	}
	off := one("{podDisruptionBudget: {enabled: false}, networkPolicy: {enabled: false}, serviceMonitor: {enabled: false}}")
	if off.budget != nil || off.policy != nil || off.monitor != nil {
		t.Errorf("what is off is there: %+v", off)
	}
	if o := one("networkPolicy: {from: [], adminFrom: []}"); len(o.policy.Spec.Ingress) != 1 || len(o.policy.Spec.Ingress[0].From) != 0 || o.policy.Spec.Ingress[0].Ports[0].Port.StrVal != "http" {
		t.Errorf("the policy is %+v", o.policy.Spec)
	}
	digest := "sha256:" + strings.Repeat("ab", 32)
	if o := one("image: {digest: " + digest + "}"); o.deployment.Spec.Template.Spec.Containers[0].Image != "example.com/semel@"+digest {
		t.Errorf("the image is %s", o.deployment.Spec.Template.Spec.Containers[0].Image)
	}
	if o := one("{drainSeconds: 120, drainDelaySeconds: 0}"); *o.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds != 135 || !strings.Contains(o.configMap.Data["gateway.yaml"], "drain: 120s\ndrain_delay: 0s\n") {
		t.Errorf("drains of 120 s make %s", o.configMap.Data["gateway.yaml"])
	}
	if o := one(`admin: {host: "::"}`); !strings.Contains(o.configMap.Data["gateway.yaml"], "listen: '[::]:9090'\n") {
		t.Errorf("an IPv6 host makes %s", o.configMap.Data["gateway.yaml"])
	}
	minimal, err := render(t, map[string]any{
		"image": map[string]any{"repository": "semel"}, "store": map[string]any{"secret": "s"}, "admin": map[string]any{"secret": "a"},
		"config": map[string]any{"principal": map[string]any{"shared": map[string]any{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if o := decode(t, minimal); o.deployment.Spec.Template.Spec.Containers[0].Image == "semel:" || o.budget == nil || o.policy != nil || o.monitor != nil {
		t.Errorf("the defaults make %+v", o)
	}
}

// TestChartRefuses holds that what cannot work is refused before anything is installed.
func TestChartRefuses(t *testing.T) {
	for override, want := range map[string]string{
		"image: {repository: ''}":                        "image.repository is not set",
		"store: {secret: ''}":                            "store.secret is not set",
		"admin: {secret: ''}":                            "admin.secret is not set",
		"config: {listen: ':80'}":                        "invalid propertyName 'listen'",
		"config: {drain: 1h}":                            "invalid propertyName 'drain'",
		"config: {store: {url: 'postgres://u:p@db/x'}}":  "invalid propertyName 'store'",
		"replica: 3":                                     "replica",
		"replicas: 0":                                    "replicas",
		"image: {digest: latest}":                        "digest",
		"runAsUser: 0":                                   "runAsUser",
		"ports: {http: 80}":                              "http",
		"env: [{name: SEMEL_ADMIN_TOKEN, value: guess}]": "env",
	} {
		if _, err := render(t, values(t, override)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", override, err)
		}
	}
	empty := values(t)
	delete(empty, "config")
	if _, err := render(t, empty); err == nil || !strings.Contains(err.Error(), "config is not set") {
		t.Errorf("without config: %v", err)
	}
}

// TestExample holds that the chart takes the values that docs/operations.md shows.
func TestExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "```yaml\n# values.yaml\n")
	text, _, ok2 := strings.Cut(text, "```")
	example := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &example); err != nil || !ok || !ok2 {
		t.Fatal("the page has no values", err)
	}
	manifests, err := render(t, example)
	if err != nil {
		t.Fatal(err)
	}
	if o := decode(t, manifests); o.deployment == nil || !strings.Contains(o.configMap.Data["gateway.yaml"], "match: POST /orders\n") {
		t.Errorf("the example makes %v", manifests)
	}
}

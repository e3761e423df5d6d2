package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/internal/testenv"
)

// deployed is a gateway as a file of deploy would start it.
type deployed struct {
	file        string // the text of its configuration
	env         []string
	http, admin int           // the ports that are said to be its own
	killed      time.Duration // after SIGTERM
}

// start holds the file against the settings around it, checks it and starts a
// gateway by it, on addresses and in a folder of the test's, before the services.
func (d deployed) start(t *testing.T, services string) *process {
	t.Helper()
	var said struct {
		Drain time.Duration
		Delay time.Duration `yaml:"drain_delay"`
	}
	noError(t, yaml.Unmarshal([]byte(d.file), &said))
	if said.Drain == 0 || said.Delay == 0 || d.killed < said.Drain+said.Delay+10*time.Second {
		t.Errorf("it is killed after %v, and a drain can take %v and %v", d.killed, said.Delay, said.Drain)
	}
	text := d.file
	for old, put := range map[string]string{
		fmt.Sprintf("listen: :%d\n", d.http):              "listen: 127.0.0.1:0\n",
		fmt.Sprintf(`listen: "?0\.0\.0\.0:%d"?`, d.admin): "listen: 127.0.0.1:0",
		`/var/cache/semel`:                                t.TempDir(),
		`http://(orders\.shop\.svc|charges):[0-9]+`:       services,
	} {
		pattern := regexp.MustCompile(old)
		if !pattern.MatchString(text) {
			t.Fatalf("the file does not have %s:\n%s", old, d.file)
		}
		text = pattern.ReplaceAllString(text, put)
	}
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	noError(t, os.WriteFile(file, []byte(text), 0o600))
	if out := semelWith(d.env, "", "gateway", "check", file); out.code != exitOK {
		t.Fatalf("semel gateway check: %s", out.stderr)
	}
	return startGatewayBy(t, file, d.env...)
}

// TestChartsGateway starts a gateway by what the Helm chart makes, and asks it what
// Kubernetes' probes ask.
func TestChartsGateway(t *testing.T) {
	text, err := os.ReadFile("../../internal/deploycheck/testdata/rendered.yaml")
	noError(t, err)
	type probe struct {
		HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
		Timeout int                         `yaml:"timeoutSeconds"`
	}
	var configMap struct{ Data map[string]string }
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct {
						Args []string
						Env  []struct {
							Name, Value string
							From        struct {
								Secret struct{ Name, Key string } `yaml:"secretKeyRef"`
							} `yaml:"valueFrom"`
						}
						Ports []struct {
							Name string
							Port int `yaml:"containerPort"`
						}
						Startup   probe `yaml:"startupProbe"`
						Readiness probe `yaml:"readinessProbe"`
						Liveness  probe `yaml:"livenessProbe"`
					}
				}
			}
		}
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var kind struct{ Kind string }
		noError(t, yaml.Unmarshal([]byte(document), &kind))
		switch kind.Kind {
		case "ConfigMap":
			noError(t, yaml.Unmarshal([]byte(document), &configMap))
		case "Deployment":
			noError(t, yaml.Unmarshal([]byte(document), &deployment))
		}
	}
	pod := deployment.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("there are %d containers", len(pod.Containers))
	}
	c := pod.Containers[0]
	want(t, "the arguments", fmt.Sprint(c.Args), "[gateway --config /etc/semel/gateway.yaml]")
	secrets := map[string]string{"semel-store/url": "memory:", "semel-admin/token": "0123456789abcdef", "bank/secret": "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}
	d := deployed{file: configMap.Data["gateway.yaml"], killed: time.Duration(pod.Grace) * time.Second}
	for _, e := range c.Env {
		value := e.Value
		if s := e.From.Secret; s.Name != "" {
			value = secrets[s.Name+"/"+s.Key]
		}
		d.env = append(d.env, e.Name+"="+value)
	}
	for _, p := range c.Ports {
		switch p.Name {
		case "http":
			d.http = p.Port
		case "admin":
			d.admin = p.Port
		}
	}
	status := func(g *process, p probe) int {
		t.Helper()
		want(t, "the probe's port", p.HTTPGet.Port, "admin")
		if p.Timeout < 3 { // a look in the store may take two seconds
			t.Errorf("the probe of %s waits for %d s", p.HTTPGet.Path, p.Timeout)
		}
		return ask(t, g.admin()+p.HTTPGet.Path, "").status
	}
	t.Run("in order", func(t *testing.T) {
		g := d.start(t, "http://127.0.0.1:1")
		for _, p := range []probe{c.Startup, c.Readiness, c.Liveness} {
			want(t, p.HTTPGet.Path, status(g, p), 200)
		}
		want(t, "metrics without the token", ask(t, g.admin()+"/metrics", "").status, 401)
		want(t, "metrics", ask(t, g.admin()+"/metrics", "Authorization: Bearer 0123456789abcdef").status, 200)
		// It is no service that lives on while its pods are to go.
		g.terminate()
		g.await("not ready any more")
		want(t, "ready while it drains", status(g, c.Readiness), 503)
		want(t, "alive while it drains", status(g, c.Liveness), 200)
	})
	// A rollout does not go on, and what serves goes on to say so.
	t.Run("without its store", func(t *testing.T) {
		d := d
		d.env = append([]string(nil), d.env...)
		for i, e := range d.env {
			if strings.HasPrefix(e, "SEMEL_STORE_URL=") {
				d.env[i] = "SEMEL_STORE_URL=postgres://semel@127.0.0.1:1/semel"
			}
		}
		g := d.start(t, "http://127.0.0.1:1")
		want(t, "started", status(g, c.Startup), 503)
		want(t, "ready", status(g, c.Readiness), 200)
		want(t, "alive", status(g, c.Liveness), 200)
		want(t, "another exclusion", ask(t, g.admin()+"/readyz?exclude=stor", "").status, 400)
		want(t, "in words", ask(t, g.admin()+"/readyz?verbose&exclude=store", "Authorization: Bearer 0123456789abcdef").body, "drain ok\nstore excluded\nok\n")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/orders", strings.NewReader("{}"))
		noError(t, err)
		req.Header = http.Header{"Authorization": {"Bearer ann"}, "Idempotency-Key": {"order-17"}, "Content-Type": {"application/json"}}
		res, err := http.DefaultClient.Do(req)
		noError(t, err)
		noError(t, res.Body.Close())
		want(t, "a protected request", res.StatusCode, 503)
	})
}

// TestComposesGateways starts what the Compose file says, but for the containers, and
// does what is written at its head: a key that was used at one gateway is known to
// the other.
func TestComposesGateways(t *testing.T) {
	text, err := os.ReadFile("../../deploy/compose.yaml")
	noError(t, err)
	var compose struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
			Ports       []string
			Stop        time.Duration `yaml:"stop_grace_period"`
			Volumes     []string
			Tmpfs       []string
		}
	}
	noError(t, yaml.Unmarshal([]byte(text), &compose))
	mounted := func(volume, at string) string {
		t.Helper()
		from, to, _ := strings.Cut(volume, ":")
		want(t, "the mount", to, at+":ro")
		return filepath.Join("../../deploy", from)
	}

	charges := compose.Services["charges"]
	python, err := exec.LookPath("python3")
	if err != nil {
		python = testenv.Program(t, "python3")
	}
	want(t, "the service's command", fmt.Sprint(charges.Command), "[python3 /service.py 9100 0.0.0.0]")
	service := exec.Command(python, mounted(charges.Volumes[0], "/service.py"), "0", "127.0.0.1")
	stdout, err := service.StdoutPipe()
	noError(t, err)
	noError(t, service.Start())
	t.Cleanup(func() { _ = service.Process.Kill(); _ = service.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	noError(t, err)
	_, at, _ := strings.Cut(strings.TrimSpace(line), " on ")

	store := testenv.Postgres(t)
	var gateways []*process
	for _, name := range []string{"gateway-a", "gateway-b"} {
		s := compose.Services[name]
		want(t, "the command", fmt.Sprint(s.Command), "[gateway --config /etc/semel/gateway.yaml]")
		file, err := os.ReadFile(mounted(s.Volumes[0], "/etc/semel/gateway.yaml"))
		noError(t, err)
		d := deployed{file: string(file), killed: s.Stop}
		for _, p := range s.Ports {
			var outside int
			inside := &d.http
			if strings.HasSuffix(p, ":9090") {
				inside = &d.admin
			}
			if _, err := fmt.Sscanf(p, "127.0.0.1:%d:%d", &outside, inside); err != nil {
				t.Fatal(p, err)
			}
		}
		want(t, "the spool's place", strings.HasPrefix(s.Tmpfs[0], "/var/cache/semel:size=1g,"), true)
		for variable := range s.Environment {
			value := map[string]string{"SEMEL_STORE_URL": store, "SEMEL_ADMIN_TOKEN": "0123456789abcdef"}[variable]
			d.env = append(d.env, variable+"="+value)
		}
		g := d.start(t, at)
		eventually(t, g.admin()+"/readyz", 200)
		gateways = append(gateways, g)
	}
	for i, g := range gateways {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/charges", strings.NewReader(`{"amount":100}`))
		noError(t, err)
		req.Header = http.Header{"Authorization": {"Bearer ann"}, "Idempotency-Key": {`"order-17"`}}
		res, err := http.DefaultClient.Do(req)
		noError(t, err)
		noError(t, res.Body.Close())
		want(t, "the status", res.StatusCode, 201)
		want(t, "replayed", res.Header.Get("Idempotency-Replayed") == "true", i == 1)
	}
	want(t, "the charges", ask(t, gateways[0].url+"/charges", "").body, `[{"amount": 100, "id": 1}]`)
}

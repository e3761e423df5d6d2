package deploycheck

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

func load(t *testing.T, env ...string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../../deploy/compose.yaml"}, cli.WithEnv(env), cli.WithResolvedPaths(true), cli.WithName("semel"))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

// TestCompose holds that Compose takes the file, that what it mounts is there, and
// that the gateways are two of the same and can do little.
func TestCompose(t *testing.T) {
	if _, err := load(t); err == nil || !strings.Contains(err.Error(), "POSTGRES_PASSWORD") {
		t.Errorf("without a password: %v", err)
	}
	p, err := load(t, "POSTGRES_PASSWORD=secret", "SEMEL_ADMIN_TOKEN=0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	if names := p.ServiceNames(); !slices.Equal(names, []string{"charges", "gateway-a", "gateway-b", "postgres"}) {
		t.Fatalf("the services are %v", names)
	}
	published := map[string]bool{}
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if info, err := os.Stat(v.Source); err != nil || info.IsDir() || !filepath.IsAbs(v.Source) || !v.ReadOnly {
				t.Errorf("%s mounts %s: %v", name, v.Source, err)
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" || published[port.Published] {
				t.Errorf("%s is published at %s:%s", name, port.HostIP, port.Published)
			}
			published[port.Published] = true
		}
		if s.Restart != "unless-stopped" || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: restart %q, security %v", name, s.Restart, s.SecurityOpt)
		}
		for to := range s.DependsOn {
			if _, ok := p.Services[to]; !ok {
				t.Errorf("%s depends on %s", name, to)
			}
		}
	}
	a, b := p.Services["gateway-a"], p.Services["gateway-b"]
	for _, s := range []types.ServiceConfig{a, b} {
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.User == "" || strings.HasPrefix(s.User, "0") || s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) < 50*time.Second {
			t.Errorf("%s is %+v", s.Name, s)
		}
		if len(s.Ports) != 2 {
			t.Errorf("%s has the ports %v", s.Name, s.Ports)
		}
	}
	a.Name, b.Name, a.Ports, b.Ports = "", "", nil, nil
	if !reflect.DeepEqual(a, b) {
		t.Error("the gateways differ in more than their ports")
	}
	// A database that is read by a health check, and outlives its container.
	pg := p.Services["postgres"]
	if pg.HealthCheck == nil || len(pg.Volumes) != 1 || p.Volumes[pg.Volumes[0].Source].Name == "" || len(pg.Ports) != 0 {
		t.Errorf("the database is %+v", pg)
	}
}

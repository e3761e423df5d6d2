package main

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.yaml.in/yaml/v4"

	semelotel "github.com/semelhq/semel/adapter/otel"
	"github.com/semelhq/semel/outbox"
)

// scraped are the series of a scrape: by metric, their labels.
type scraped map[string][]map[string]string

var (
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? [^ ]+$`)
	labelPair  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"`)
)

func (s scraped) add(text string) {
	for line := range strings.Lines(text) {
		m := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		labels := map[string]string{}
		for _, l := range labelPair.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[3]
		}
		s[m[1]] = append(s[m[1]], labels)
	}
}

var (
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(\{[^}]*\})?`)
	grouping = regexp.MustCompile(`\b(by|without|on|ignoring)\s*\(([^)]*)\)`)
	duration = regexp.MustCompile(`\[[^\]]*\]`)
)

// fromPrometheus are labels that a scrape does not have: Prometheus adds them.
var fromPrometheus = []string{"instance", "job"}

// check returns what is wrong with an expression: a metric that nobody scrapes, a
// selector that fits no series, a group by a label that the metrics do not have.
func (s scraped) check(expr string) (wrong []string, used []string) {
	var groups []string
	expr = strings.ReplaceAll(expr, "$__rate_interval", "5m")
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[2], ",") {
			groups = append(groups, strings.TrimSpace(label))
		}
	}
	expr = duration.ReplaceAllString(grouping.ReplaceAllString(expr, ""), "")
	labels := map[string]bool{}
	for _, at := range selector.FindAllStringSubmatchIndex(expr, -1) {
		if at[0] == at[1] || at[2] < 0 {
			continue // nothing, or a selector of all metrics
		}
		name, matchers := expr[at[2]:at[3]], ""
		if at[4] >= 0 {
			matchers = expr[at[4]:at[5]]
		}
		if rest := strings.TrimSpace(expr[at[1]:]); strings.HasPrefix(rest, "(") || slices.Contains([]string{"or", "and", "unless", "bool"}, name) {
			continue // a function or an operator
		}
		series, ok := s[name]
		if !ok {
			wrong = append(wrong, "nobody has the metric "+name)
			continue
		}
		used = append(used, name)
		fits := false
		for _, have := range series {
			ok := true
			for _, m := range labelPair.FindAllStringSubmatch(matchers, -1) {
				if slices.Contains(fromPrometheus, m[1]) {
					continue
				}
				pattern := regexp.MustCompile("^(?:" + m[3] + ")$")
				switch value := have[m[1]]; m[2] {
				case "=":
					ok = ok && value == m[3]
				case "!=":
					ok = ok && value != m[3]
				case "=~":
					ok = ok && pattern.MatchString(value)
				case "!~":
					ok = ok && !pattern.MatchString(value)
				}
			}
			fits = fits || ok
			for label := range have {
				labels[label] = true
			}
		}
		if !fits {
			wrong = append(wrong, name+matchers+" selects nothing")
		}
	}
	for _, label := range groups {
		if !labels[label] && !slices.Contains(fromPrometheus, label) {
			wrong = append(wrong, "no metric has the label "+label)
		}
	}
	return wrong, used
}

// scrapeAll is what a real gateway serves, and a relay that tells this package's
// observers.
func scrapeAll(t *testing.T) scraped {
	t.Helper()
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", newStore(t), "--admin", ":0", "--require-key")
	post(t, g.url, "a", "{}")
	post(t, g.url, "a", "{}")
	sendTo(t, "POST", g.url+"/orders", "", "{}", "")
	s := scraped{}
	// Records are counted soon after the start, but not at it.
	for len(s["semel_records"]) < 2 {
		clear(s)
		s.add(ask(t, g.admin()+"/metrics", "").body)
		if t.Context().Err() != nil {
			t.Fatal("records are never counted")
		}
	}
	gone := startGateway(t, "--upstream", "http://127.0.0.1:1", "--store", newStore(t), "--admin", ":0")
	post(t, gone.url, "a", "{}")
	s.add(ask(t, gone.admin()+"/metrics", "").body)
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo(), promexporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	noError(t, err)
	telemetry, err := semelotel.New(semelotel.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))})
	noError(t, err)
	relay := telemetry.Outbox(nil)
	relay.Status(t.Context(), []outbox.TopicStatus{{Topic: "mail", OldestAge: time.Minute}})
	relay.Delivered(t.Context(), outbox.Attempted{Topic: "mail"})
	relay.StoreFailed(t.Context(), "exchange", os.ErrDeadlineExceeded)
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	s.add(rec.Body.String())
	return s
}

type alertRules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

// anchors are the headings of a page, as links name them.
func anchors(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	noError(t, err)
	var all []string
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			all = append(all, strings.ReplaceAll(strings.ToLower(strings.TrimSpace(heading)), " ", "-"))
		}
	}
	return all
}

// TestDashboardAndRules: every metric, label and value that the dashboard and the
// alerts name is in a scrape of a real gateway, or of a relay's; and what to do
// about each alert is written down.
func TestDashboardAndRules(t *testing.T) {
	s := scrapeAll(t)
	text, err := os.ReadFile("../../deploy/prometheus/semel-rules.yml")
	noError(t, err)
	var rules alertRules
	noError(t, yaml.Unmarshal(text, &rules))
	pages := anchors(t, "../../docs/operations.md")
	used, alerts := map[string]bool{}, 0
	check := func(what, expr string) {
		t.Helper()
		wrong, names := s.check(expr)
		for _, w := range wrong {
			t.Errorf("%s: %s: %s", what, w, expr)
		}
		for _, name := range names {
			used[name] = true
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			alerts++
			check(r.Alert, r.Expr)
			anchor := strings.ToLower(r.Alert)
			if !slices.Contains(pages, anchor) || !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/operations.md#"+anchor) {
				t.Errorf("%s: docs/operations.md does not say what to do, or the alert does not lead there", r.Alert)
			}
			if severity := r.Labels["severity"]; severity != "critical" && severity != "warning" || r.Annotations["summary"] == "" {
				t.Errorf("%s has the severity %q and the summary %q", r.Alert, severity, r.Annotations["summary"])
			}
		}
	}
	if alerts < 10 {
		t.Errorf("there are %d alerts", alerts)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err = os.ReadFile("../../deploy/grafana/semel.json")
	noError(t, err)
	noError(t, json.Unmarshal(text, &dashboard))
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			check("the panel "+p.Title, target.Expr)
		}
	}
	// And the other way: what is measured is to be seen.
	for name := range s {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if strings.HasPrefix(name, "semel_") && !used[name] && !used[base+"_bucket"] {
			t.Errorf("neither the dashboard nor an alert shows %s", name)
		}
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "../../deploy/prometheus/semel-rules.yml").CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
}

// TestDashboardCheckFinds: the check above can fail.
func TestDashboardCheckFinds(t *testing.T) {
	s := scraped{}
	s.add("# HELP x y\nsemel_records{semel_state=\"unknown\"} 0\nsemel_waiters 1\n")
	for expr, want := range map[string]string{
		`max(semel_records{semel_state="unknown"}) > 0`:                                   "[]",
		`sum by (instance) (rate(semel_waiters{instance=~"$instance"}[5m])) or vector(0)`: "[]",
		`max(semel_record{semel_state="unknown"})`:                                        "[nobody has the metric semel_record]",
		`max(semel_records{semel_state="unknwon"})`:                                       `[semel_records{semel_state="unknwon"} selects nothing]`,
		`max(semel_records{semel_state!="unknown"})`:                                      `[semel_records{semel_state!="unknown"} selects nothing]`,
		`max by (semel_stat) (semel_records)`:                                             "[no metric has the label semel_stat]",
		`semel_waiters / semel_waiter_limit`:                                              "[nobody has the metric semel_waiter_limit]",
	} {
		wrong, _ := s.check(expr)
		if got := fmt.Sprint(wrong); got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
}

// TestSystemdUnit: the unit is one that systemd takes, and leaves a gateway little
// that it could do.
func TestSystemdUnit(t *testing.T) {
	const name = "../../deploy/systemd/semel-gateway.service"
	text, err := os.ReadFile(name)
	noError(t, err)
	setting := func(key string) string {
		m := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
		if m == nil {
			return ""
		}
		return string(m[1])
	}
	seconds := func(s string) time.Duration {
		d, err := time.ParseDuration(s)
		noError(t, err)
		return d
	}
	drain := seconds(setting("Environment=SEMEL_DRAIN")) + seconds(setting("Environment=SEMEL_DRAIN_DELAY"))
	if stop := seconds(setting("TimeoutStopSec")); stop < drain+10*time.Second {
		t.Errorf("systemd kills after %v, and a drain can take %v", stop, drain)
	}
	// The flags that its variables stand for are there.
	help := ok(t, "gateway", "--help")
	for _, m := range regexp.MustCompile(`(?m)^Environment=(SEMEL_[A-Z_]+)=`).FindAllSubmatch(text, -1) {
		if !strings.Contains(help, "[$"+string(m[1])+"]") {
			t.Errorf("no flag has the variable %s", m[1])
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("there is no systemd-analyze here")
		return
	}
	out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", name).CombinedOutput()
	if err != nil {
		t.Errorf("the exposure is over 2: %v\n%s", err, out)
	}
	// It looks whether the program is there; this one is.
	unit := t.TempDir() + "/semel-gateway.service"
	noError(t, os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/semel", binary(t))), 0o600))
	if out, err := exec.CommandContext(t.Context(), analyze, "verify", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

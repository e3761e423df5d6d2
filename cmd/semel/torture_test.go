package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/cmd/semel/internal/torture"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/testenv"
)

// envTorture is the environment variable that says how long the tests with PostgreSQL
// torture.
const envTorture = "SEMEL_TORTURE_DURATION"

// unsynced is for servers that are killed. A kill loses nothing that was passed to the
// system: only a crash of the machine needs fsync.
var unsynced = testenv.PostgresOptions{Parameters: map[string]string{"fsync": "off"}}

// torment runs a torture and leaves its timeline if the test fails.
func torment(t *testing.T, c torture.Config) *torture.Report {
	t.Helper()
	c.Binary, c.Dir, c.Seed = binary(t), t.TempDir(), 20261121
	report, err := torture.Run(t.Context(), c)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if timeline, err := os.ReadFile(filepath.Join(c.Dir, torture.TimelineFile)); err == nil {
			t.Logf("the end of the timeline:\n%s", timeline[max(0, len(timeline)-4000):])
		}
	})
	noError(t, err)
	return report
}

// TestTortureFinds gives the gateways a defect and strikes with what exposes it. The
// gateways are processes of this test, which alone has the defects.
func TestTortureFinds(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	tests := []struct {
		defect  string
		onCrash string
		lease   time.Duration
		slow    int // one in so many effects is slow
		large   int // one in so many keys has a response that is not small
		nemesis torture.Nemesis
		checks  []string // one of them must be found
		faults  []string // one of them, if any, must have struck the key by then
	}{
		{
			defect: defectNoFence, onCrash: "retry", large: -1, lease: 500 * time.Millisecond, slow: 2,
			nemesis: torture.Nemesis{Every: 800 * time.Millisecond, PauseGateway: 8},
			checks:  []string{"responses-differ", "acknowledgement-lost"}, faults: []string{"pause gateway"},
		},
		{
			defect: defectRelease, onCrash: "hold", large: -1,
			nemesis: torture.Nemesis{Every: time.Second, CutFront: 0.3},
			checks:  []string{"second-effect"}, faults: []string{"cut front", "client left"},
		},
		{
			// A stall of a quarter of the lease would excuse it.
			defect: defectRequestContext, onCrash: "hold", large: -1, lease: 3 * time.Second,
			nemesis: torture.Nemesis{Every: time.Second, CutFront: 0.3},
			checks:  []string{"unknown-without-cause"}, faults: []string{"cut front", "client left"},
		},
		{
			defect: defectResend, onCrash: "hold", large: -1,
			nemesis: torture.Nemesis{Every: time.Second, CutBack: 0.1},
			checks:  []string{"second-effect"}, faults: []string{"cut back after the request"},
		},
		{
			// A duplicate during the stream is told that the operation completed.
			defect: defectEarly, onCrash: "hold", large: 1, slow: 3,
			nemesis: torture.Nemesis{Every: time.Second, CutFront: 0.1, CutBack: 0.3},
			checks:  []string{"effect-missing"},
		},
		{
			defect: defectRecover, onCrash: "hold", large: 1,
			nemesis: torture.Nemesis{Every: time.Second, CutBack: 0.2},
			// The latter if only the last chunk was lost.
			checks: []string{"torn-response", "acknowledgement-lost"}, faults: []string{"cut back within the response"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.defect, func(t *testing.T) {
			if runtime.GOOS == "windows" && tt.nemesis.PauseGateway > 0 {
				t.Skip("processes cannot be paused here")
			}
			t.Parallel()
			report := torment(t, torture.Config{
				Instead: defective(t, tt.defect), OnCrash: tt.onCrash, Lease: tt.lease, SlowEvery: tt.slow, LargeEvery: tt.large, Gateways: 3, Nemesis: &tt.nemesis, Duration: 3 * time.Minute, FailFast: true,
			})
			if len(report.Violations) == 0 {
				t.Fatalf("the defect was not found; figures: %+v", report.Figures)
			}
			// A defect can break more than one promise. The expected one must be among
			// them, with the fault that exposed it.
			i := slices.IndexFunc(report.Violations, func(v torture.Violation) bool {
				return slices.Contains(tt.checks, v.Check) && (len(tt.faults) == 0 || slices.ContainsFunc(v.Faults, func(struck string) bool {
					return slices.ContainsFunc(tt.faults, func(f string) bool { return strings.HasPrefix(struck, f) })
				}))
			})
			if i < 0 {
				for _, v := range report.Violations {
					t.Errorf("found %s, exposed by %q; want one of %v, exposed by one of %q: %s\n%s",
						v.Check, v.Faults, tt.checks, tt.faults, v.Detail, strings.Join(v.Timeline, "\n"))
				}
				return
			}
			v := report.Violations[i]
			if !slices.ContainsFunc(v.Timeline, func(line string) bool { return strings.Contains(line, " attempt ") }) {
				t.Errorf("the timeline has no attempt:\n%s", strings.Join(v.Timeline, "\n"))
			}
			t.Logf("%s after %.1f s: %s, exposed by %v", tt.defect, report.Seconds, v.Check, v.Faults)
		})
	}
}

// TestTorture has the program torture itself, as make torture does.
func TestTorture(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	var stdout, stderr bytes.Buffer
	dir := t.TempDir()
	cmd := exec.Command(binary(t), "torture", "--duration", "10s", "--longest", "2m", "--seed", "20261121", "--json", "--quiet", "--dir", dir)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		timeline, _ := os.ReadFile(filepath.Join(dir, torture.TimelineFile))
		t.Fatalf("torture: %v\n%s\n%s\nthe end of its timeline:\n%s", err, stderr.String(), stdout.String(), timeline[max(0, len(timeline)-4000):])
	}
	var report torture.Report
	noError(t, json.Unmarshal(stdout.Bytes(), &report))
	want(t, "violations", len(report.Violations), 0)
	want(t, "what makes it inconclusive", len(report.Inconclusive), 0)
	logFigures(t, &report)
	timeline, err := os.ReadFile(filepath.Join(dir, torture.TimelineFile))
	noError(t, err)
	for _, kind := range []string{"kill", "pause", "cut", "attempt", "response"} {
		if !bytes.Contains(timeline, []byte(" "+kind+" ")) {
			t.Errorf("the timeline has no line of kind %s", kind)
		}
	}
}

// TestTorturePostgres tortures gateways that share a database, and the database.
func TestTorturePostgres(t *testing.T) {
	t.Parallel()
	tormentPostgres(t, torture.Config{})
}

// TestTorturePayments tortures the payments example: record and rows in one
// transaction.
func TestTorturePayments(t *testing.T) {
	t.Parallel()
	payments := filepath.Join(t.TempDir(), "payments")
	if runtime.GOOS == "windows" {
		payments += ".exe"
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", payments, "./payments")
	build.Dir = filepath.Join("..", "..", "examples")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the example does not build: %v\n%s", err, out)
	}
	tormentPostgres(t, torture.Config{Payments: payments})
}

func tormentPostgres(t *testing.T, c torture.Config) {
	t.Helper()
	server := testenv.StartPostgres(t, unsynced)
	c.Postgres, c.RestartDatabase = server.NewDatabase(t), func(ctx context.Context) error {
		if err := server.Kill(); err != nil {
			return err
		}
		// It does not start before its last session is gone.
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(time.Minute); ; {
			err := server.Start()
			if err == nil || ctx.Err() != nil || time.Now().After(end) {
				return err
			}
			<-tick.C
		}
	}
	c.Duration, c.Longest = 10*time.Second, 2*time.Minute
	if given := os.Getenv(envTorture); given != "" {
		var err error
		c.Duration, err = time.ParseDuration(given)
		noError(t, err)
		c.Progress = os.Stderr
	}
	report := torment(t, c)
	logFigures(t, report)
	for _, v := range report.Violations {
		t.Errorf("%s: %s; faults: %v\n%s", v.Check, v.Detail, v.Faults, strings.Join(v.Timeline, "\n"))
	}
	want(t, "what makes it inconclusive", strings.Join(report.Inconclusive, "; "), "")
}

// logFigures logs a report without its violations, which are reported elsewhere.
func logFigures(t *testing.T, r *torture.Report) {
	t.Helper()
	figures := *r
	figures.Violations = nil
	var text strings.Builder
	figures.Write(&text)
	t.Logf("figures:\n%s", text.String())
}

// TestTortureShop tortures shops: services that use all of the packages for services. If
// envTorture is set, their whole clocks are wrong.
func TestTortureShop(t *testing.T) {
	t.Parallel()
	c := torture.Config{Shop: true}
	if os.Getenv(envTorture) != "" { // the first build takes minutes
		c.Skewed, c.SkewVariable = testenv.BuildSkewed(t, "build", "."), testenv.EnvSkew
	}
	tormentPostgres(t, c)
}

// TestNoDefectIsReleased checks that the program has neither the names nor the flag of
// the planted defects.
func TestNoDefectIsReleased(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile(binary(t))
	noError(t, err)
	names := []string{defectNoFence, defectRelease, defectRequestContext, defectResend, defectEarly, defectRecover}
	for _, name := range append(names, slices.Collect(maps.Keys(shopDefects()))...) {
		if bytes.Contains(program, []byte(name)) {
			t.Errorf("the program knows of %q", name)
		}
	}
	for _, args := range [][]string{{"torture", "--defect", defectNoFence}, {"torture", "gateway"}, {instead, defectNoFence, "gateway"}} {
		if code := run(t.Context(), args, nil, strings.NewReader(""), io.Discard, io.Discard); code != exitUsage {
			t.Errorf("%q ends with %d", args, code)
		}
	}
}

// TestTortureFindsInShop gives the shops a defect, one after the other.
func TestTortureFindsInShop(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t, unsynced)
	tests := []struct {
		defect string
		check  string
		says   string // what the violation is about, as a regular expression
	}{
		{defectStepEarly, "second-effect", "reservations"},
		{defectChildKey, "second-effect", "charges"},
		{defectEntryKeys, "second-effect", "reservations"},
		// Messages of the attempt that was rolled back, alone or with those of the next.
		{defectEnqueueOutside, "effect-of-rolled-back|second-effect", "rolled back|notices|events"},
		// A settled message lets the next of its lane go.
		{defectSettleFirst, "effect-missing|out-of-order", `message is "delivered"|took effect after it`},
		{defectNoLane, "out-of-order", "took effect after it"},
		{defectInboxFirst, "effect-missing", `notice message is "delivered"`},
		{defectInboxMemory, "second-effect", "notices"},
		{defectDeliveryID, "second-effect", "events"},
		// Its effect is in no transaction. If the record cannot be written after the
		// response, the webhook is sent again; if the process dies, there is no effect.
		{defectAnswerFirst, "effect-missing|second-effect", `event message is "delivered"|events`},
		{defectJobOutside, "second-effect", "effects of one job"},
		{defectTrusted, "effect-after-refusal", "revoked before the job was due"},
	}
	for _, tt := range tests {
		t.Run(tt.defect, func(t *testing.T) {
			t.Parallel()
			report := torment(t, torture.Config{
				Shop: true, Gateways: 2, Instead: defective(t, tt.defect), Postgres: server.NewDatabase(t), Lease: 500 * time.Millisecond, Duration: 3 * time.Minute, FailFast: true,
			})
			if !slices.ContainsFunc(report.Violations, func(v torture.Violation) bool {
				return slices.Contains(strings.Split(tt.check, "|"), v.Check) && regexp.MustCompile(tt.says).MatchString(v.Detail)
			}) {
				t.Errorf("no %s about %q was found; figures: %+v", tt.check, tt.says, report.Figures.Shop)
			}
			for _, v := range report.Violations {
				t.Logf("after %.1f s: %s: %s; faults: %v", report.Seconds, v.Check, v.Detail, v.Faults)
			}
		})
	}
}

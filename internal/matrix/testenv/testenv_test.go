// Package testenv_test checks the servers of internal/testenv with a driver, which
// the root module does not have.
package testenv_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/testenv"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func query[T any](t *testing.T, c *pgx.Conn, sql string) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestDatabasesAreFreshAndApart(t *testing.T) {
	a, b := connect(t, testenv.Postgres(t)), connect(t, testenv.Postgres(t))
	if _, err := a.Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
		t.Fatal(err)
	}
	if query[int](t, b, "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'") != 0 {
		t.Fatal("two databases share a table")
	}
	if got := query[string](t, a, "SHOW fsync"); got != "off" {
		t.Errorf("fsync is %s", got)
	}
}

func TestKilledServerKeepsWhatWasCommitted(t *testing.T) {
	s := testenv.StartPostgres(t, testenv.PostgresOptions{Parameters: map[string]string{"max_connections": "17"}})
	url := s.NewDatabase(t)
	c := connect(t, url)
	if got := query[string](t, c, "SHOW max_connections"); got != "17" {
		t.Fatalf("max_connections is %s", got)
	}
	if got := query[string](t, c, "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	if _, err := c.Exec(t.Context(), "CREATE TABLE kept (n int)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()); err == nil {
		t.Fatal("a killed server answers")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	query[int](t, connect(t, url), "SELECT count(*) FROM kept")
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	query[int](t, connect(t, url), "SELECT count(*) FROM kept")
}

func TestPgBouncerSharesConnections(t *testing.T) {
	url := testenv.PgBouncer(t, testenv.Postgres(t))
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	pids := map[int]bool{}
	for range 5 {
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		pids[query[int](t, c, "SELECT pg_backend_pid()")] = true
	}
	if len(pids) != 1 {
		t.Fatalf("5 idle clients in a row had %d sessions; want one shared by all", len(pids))
	}
}

// TestServersEndWithTheBinary runs itself in another process, which it kills.
func TestServersEndWithTheBinary(t *testing.T) {
	const marker = "SEMEL_TESTENV_VICTIM"
	if os.Getenv(marker) != "" {
		s := testenv.StartPostgres(t, testenv.PostgresOptions{})
		fmt.Printf("server %s %s\n", s.URL(), s.Socket())
		select {}
	}
	_ = testenv.StartPostgres(t, testenv.PostgresOptions{}) // or skip
	victim := exec.Command(os.Args[0], "-test.run=^TestServersEndWithTheBinary$")
	victim.Env = append(os.Environ(), marker+"=1")
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var url, folder string
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "server %s %s", &url, &folder); err != nil {
			url = ""
		}
	}
	if !strings.HasPrefix(url, "postgres://") {
		t.Fatal("the other process started no server")
	}
	connect(t, url)
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		c, dialErr := pgx.Connect(ctx, url)
		if dialErr == nil {
			_ = c.Close(ctx)
		}
		_, statErr := os.Stat(folder)
		if dialErr != nil && os.IsNotExist(statErr) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("30 s after its test binary was killed the server runs on (%v), or %s is still there (%v)", dialErr == nil, folder, statErr)
		}
	}
}

func TestProxyMutesAndCuts(t *testing.T) {
	s := testenv.StartPostgres(t, testenv.PostgresOptions{})
	p := testenv.NewProxy(t, s.Addr())
	url := strings.Replace(s.URL(), s.Addr(), p.Addr(), 1)

	cut := connect(t, url)
	query[int](t, cut, "SELECT 1")
	p.OnWrite(func(b []byte) testenv.Verdict {
		if strings.Contains(string(b), "CREATE TABLE before") {
			return testenv.CutBefore
		}
		if strings.Contains(string(b), "CREATE TABLE after") {
			return testenv.CutAfter
		}
		return testenv.Pass
	})
	if _, err := cut.Exec(t.Context(), "CREATE TABLE before ()"); err == nil {
		t.Fatal("a statement on a cut connection was answered")
	}
	if _, err := connect(t, url).Exec(t.Context(), "CREATE TABLE after ()"); err == nil {
		t.Fatal("an answer passed a cut")
	}
	direct := connect(t, s.URL())
	if got := query[string](t, direct, "SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = 'public'"); got != "after" {
		t.Fatalf("the server saw tables %q; want after alone", got)
	}

	muted := connect(t, url)
	pid := query[int](t, muted, "SELECT pg_backend_pid()")
	p.Mute()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := muted.Ping(ctx); err == nil {
		t.Fatal("a muted connection answers")
	}
	if query[int](t, direct, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", pid)) != 1 {
		t.Fatal("the server noticed the end of a muted connection")
	}
}

// A program built with a skewed clock tells another time than this process, by
// just so much; its timers run as ever.
func TestBuildSkewed(t *testing.T) {
	const marker = "SEMEL_TESTENV_CLOCK"
	if os.Getenv(marker) != "" {
		start := time.Now()
		<-time.After(time.Millisecond)
		took := time.Since(start)
		fmt.Printf("clock %d %t\n", time.Now().Unix(), took >= time.Millisecond && took < time.Minute)
		return
	}
	program := testenv.BuildSkewed(t, "test", "-c", ".")
	for skew, want := range map[string]time.Duration{"": 0, "1h": time.Hour, "-1h": -time.Hour} {
		c := exec.CommandContext(t.Context(), program, "-test.run=^TestBuildSkewed$")
		c.Env = append(os.Environ(), marker+"=1", testenv.EnvSkew+"="+skew)
		before := time.Now()
		out, err := c.Output()
		if err != nil {
			t.Fatalf("skew %q: %v\n%s", skew, err, out)
		}
		var (
			unix  int64
			timed bool
		)
		if _, err := fmt.Sscanf(string(out), "clock %d %t\n", &unix, &timed); err != nil {
			t.Fatalf("skew %q: the other process said %q", skew, out)
		}
		if off := time.Unix(unix, 0).Sub(before) - want; off < -time.Minute || off > time.Minute || !timed {
			t.Errorf("skew %q: the other process's clock is off by %v from that, its timers work: %t", skew, off, timed)
		}
	}
	c := exec.CommandContext(t.Context(), program, "-test.run=^TestBuildSkewed$")
	c.Env = append(os.Environ(), marker+"=1", testenv.EnvSkew+"=1.5s")
	if out, err := c.CombinedOutput(); err == nil {
		t.Errorf("a skew that cannot be kept was taken:\n%s", out)
	}
}

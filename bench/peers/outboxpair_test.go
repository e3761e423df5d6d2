package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
)

// serverCPU returns what the processes of a server that runs on this machine, and on
// Linux, have used of the processors so far, but for those that have ended.
func serverCPU(b *testing.B, pool *pgxpool.Pool) time.Duration {
	b.Helper()
	var backend int
	if err := pool.QueryRow(b.Context(), "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		b.Fatal(err)
	}
	parent := func(stat string) string {
		_, rest, _ := strings.Cut(stat, ") ")
		if f := strings.Fields(rest); len(f) > 1 {
			return f[1]
		}
		return ""
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", backend))
	if err != nil {
		return 0
	}
	postmaster := parent(string(stat))
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	var sum time.Duration
	for _, name := range all {
		stat, err := os.ReadFile(name)
		if err != nil || parent(string(stat)) != postmaster {
			continue
		}
		used, err := os.ReadFile(filepath.Join(filepath.Dir(name), "schedstat"))
		if err != nil {
			continue
		}
		ns, _, _ := strings.Cut(string(used), " ")
		n, _ := strconv.ParseInt(ns, 10, 64)
		sum += time.Duration(n)
	}
	return sum
}

func medianOf(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkOutboxPair has the plain loop and semel's relay deliver what waits, in turns
// on one server, and tells the processors' time of a message, here and at the server,
// which depends less on what else the machine does than the rate. One op is a turn of
// each.
func BenchmarkOutboxPair(b *testing.B) {
	const n = 20_000
	pool, exec := outboxServer(b)
	ways := []outboxWay{plainOutbox(b, pool, exec), semelOutbox(b, pool)}
	figures := map[string][]float64{}
	add := func(name string, v float64) { figures[name] = append(figures[name], v) }
	for range b.N {
		took := map[string]time.Duration{}
		for _, w := range ways {
			w.fill(b, n)
			exec(b, "VACUUM ANALYZE")
			exec(b, "CHECKPOINT")
			server, client, wall := serverCPU(b, pool), cpuTime(), time.Now()
			w.work(b, n)
			took[w.name] = time.Since(wall)
			us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / n }
			c, s := us(cpuTime()-client), us(serverCPU(b, pool)-server)
			add(w.name+"-client-us", c)
			add(w.name+"-server-us", s)
			add(w.name+"-us", c+s)
			add(w.name+"-wall-us", us(took[w.name]))
		}
		add("wall-ratio", took["loop"].Seconds()/took["semel"].Seconds())
		at := len(figures["wall-ratio"]) - 1
		add("cpu-ratio", figures["loop-us"][at]/figures["semel-us"][at])
		if testing.Verbose() {
			b.Logf("turn %d: loop %.1f + %.1f us, semel %.1f + %.1f us, wall %.1f, %.1f: cpu %.2f, wall %.2f", at, figures["loop-client-us"][at], figures["loop-server-us"][at],
				figures["semel-client-us"][at], figures["semel-server-us"][at], figures["loop-wall-us"][at], figures["semel-wall-us"][at], figures["cpu-ratio"][at], figures["wall-ratio"][at])
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, v := range figures {
		v = slices.Clone(v)
		b.ReportMetric(medianOf(v), name)
	}
}

// outboxServer is a database on a server that is as safe as a new installation.
func outboxServer(b *testing.B) (*pgxpool.Pool, func(*testing.B, string, ...any)) {
	server := testenv.StartPostgres(b, testenv.PostgresOptions{Parameters: map[string]string{"autovacuum": "on", "shared_buffers": "256MB"}})
	config, err := pgxpool.ParseConfig(server.NewDatabase(b))
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 32
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool, func(b *testing.B, query string, args ...any) {
		if _, err := pool.Exec(b.Context(), query, args...); err != nil {
			b.Fatal(err)
		}
	}
}

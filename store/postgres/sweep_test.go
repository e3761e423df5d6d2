package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// A sweep waits for nobody: what another session has locked, as a second sweep or
// a backup does, is left to the next one, and the rest goes.
func TestSweepSkipsWhatOthersHaveLocked(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{TrailRetention: time.Hour})
	for i := range 5 {
		if err := begin(t, s, fmt.Sprint(i)).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, "UPDATE semel.trail SET at = at - interval '2 hours'")
	for i := range 5 {
		if _, err := begin(t, s, fmt.Sprint(i)).Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
	}
	// Their executions are not old enough to be forgotten at once.
	exec(t, pool, "UPDATE semel.record SET expires_at = settled_at")
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	for _, sql := range []string{
		"SELECT FROM semel.record WHERE key IN ('0', '3') FOR UPDATE",
		"SELECT FROM semel.trail WHERE key IN ('0', '3') FOR UPDATE",
	} {
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	left := func(table string) (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM semel."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if n, err := s.Sweep(ctx, 100); n != 3 || err != nil {
		t.Fatalf("a sweep beside two locked records removed %d, %v; want 3", n, err)
	}
	if r, e := left("record"), left("trail"); r != 2 || e != 2+3 {
		t.Fatalf("it left %d records and %d audit entries; want 2 of each, and the entries of those it removed", r, e)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Sweep(ctx, 100); n != 2 || err != nil {
		t.Fatalf("the next sweep removed %d, %v; want 2", n, err)
	}
	if r, e := left("record"), left("trail"); r != 0 || e != 5 {
		t.Fatalf("it left %d records and %d audit entries; want the entries of 5 records", r, e)
	}
}

func TestRunSweepsUntilTheEnd(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	swept := make(chan postgres.Swept, 100)
	s := open(t, pool, postgres.Config{SweepEvery: 10 * time.Millisecond, TrailRetention: time.Nanosecond, OnSweep: func(d postgres.Swept) { swept <- d }})
	if _, err := begin(t, s, "k").Complete(t.Context(), result("old")); err != nil {
		t.Fatal(err)
	}
	begin(t, s, "running")
	advance(t, pool, "semel", 25*time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	records, entries := 0, 0
	for records < 1 || entries < 1 {
		d := <-swept
		if d.Err != nil {
			t.Fatal(d.Err)
		}
		records, entries = records+d.Records, entries+d.Entries
	}
	cancel()
	if err := <-ended; err != nil || records != 1 || entries != 1 {
		t.Fatalf("Run removed %d records and %d entries and returned %v; want 1, 1, nil", records, entries, err)
	}
}

package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

// Run sweeps at once, to the end, again at its interval, and over failures.
func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	swept := make(chan sqlite.Swept)
	s := open(t, sqlite.Config{
		Path: path, SweepEvery: time.Millisecond, BusyTimeout: time.Millisecond,
		TrailRetention: time.Hour, OnSweep: func(d sqlite.Swept) { swept <- d },
	})
	fill(t, s, 1)
	held, err := s.Begin(t.Context(), attempt("held"))
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Hold(t.Context(), "lost contact"); err != nil {
		t.Fatal(err)
	}
	// More than two batches, long past every time.
	db := raw(t, path)
	mustExec(t, db, `WITH RECURSIVE n(n) AS (VALUES (100000) UNION ALL SELECT n + 1 FROM n WHERE n < 102499)
		INSERT INTO record SELECT n, randomblob(8), state, NULL, token, 1000 + n, NULL, NULL, NULL, begun_at, retention, reopened,
			tenant, actor, operation, key || n, fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id, cause,
			codec, label, reference, tombstone, pieces, pieces_size, head, body
		FROM record, n WHERE key = 'key 0'`)
	mustExec(t, db, `WITH RECURSIVE n(n) AS (VALUES (100000) UNION ALL SELECT n + 1 FROM n WHERE n < 101499)
		INSERT INTO trail SELECT n, instance, seq, 1000 + n, kind, record, record_id, tenant, actor, operation, key, fence,
			request_id, event_id, trace_id, label, cause, count
		FROM trail, n WHERE key = 'held'`)
	mustExec(t, db, "UPDATE counter SET fence = 200000, position = 200000")
	mustExec(t, db, "BEGIN IMMEDIATE")

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	if did := <-swept; did.Err == nil || did.Records != 0 {
		t.Errorf("a sweep of a locked file did %+v", did)
	}
	mustExec(t, db, "ROLLBACK")
	records, entries := 0, 0
	for records < 2500 || entries < 1500 {
		did := <-swept
		records += did.Records
		entries += did.Entries
	}
	if did := <-swept; did != (sqlite.Swept{Took: did.Took}) || records != 2500 || entries != 1500 {
		t.Errorf("%d records and %d entries were swept, then %+v; want 2500 and 1500, then none", records, entries, did)
	}
	go func() {
		for range swept { // until the store is closed
		}
	}()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	rest, err := s.List(t.Context(), semel.Filter{})
	if err != nil || len(rest) != 2 {
		t.Errorf("%d records are left, %v; want 2", len(rest), err)
	}
	trail, err := s.Trail(t.Context(), semel.TrailFilter{})
	if err != nil || len(trail) != 2 {
		t.Errorf("%d entries are left, %v; want 2", len(trail), err)
	}

	go func() { ended <- s.Run(t.Context()) }()
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, sqlite.ErrClosed) {
		t.Errorf("Run ended with %v when the store was closed", err)
	}
}

func TestTrailIsKeptForEver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path, TrailRetention: -1})
	fill(t, s, 3)
	mustExec(t, raw(t, path), "UPDATE executed SET at = 0")
	if _, err := s.Sweep(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if trail, err := s.Trail(t.Context(), semel.TrailFilter{}); err != nil || len(trail) != 3 {
		t.Errorf("%d entries are left, %v; want 3", len(trail), err)
	}
}

// An execution whose record outlives the trail's retention is no entry any more,
// then and when the record is swept.
func TestTrailEndsBeforeItsRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path, TrailRetention: time.Hour})
	fill(t, s, 3)
	db := raw(t, path)
	mustExec(t, db, "UPDATE executed SET at = at - ?", (2 * time.Hour).Microseconds())
	for range 2 {
		if n, err := s.Sweep(t.Context(), 100); err != nil {
			t.Fatal(n, err)
		}
		for _, f := range []semel.TrailFilter{{}, {Key: "key 1"}, {Kind: semel.TrailExecuted}} {
			if trail, err := s.Trail(t.Context(), f); err != nil || len(trail) != 0 {
				t.Errorf("Trail %+v shows %+v, %v", f, trail, err)
			}
		}
		if _, err := s.Find(t.Context(), identity("key 1")); err != nil {
			break
		}
		mustExec(t, db, "UPDATE record SET expires_at = 1")
	}
	// A record that ends before a sweep has come to its entry.
	fill(t, s, 3)
	mustExec(t, db, "UPDATE executed SET at = at - ?", (2 * time.Hour).Microseconds())
	mustExec(t, db, "UPDATE record SET expires_at = 1")
	fill(t, s, 3)
	if trail, err := s.Trail(t.Context(), semel.TrailFilter{Key: "key 2"}); err != nil || len(trail) != 1 || time.Since(trail[0].At) > time.Hour {
		t.Errorf("the trail of a record that was replaced, after its retention: %+v, %v", trail, err)
	}
}

// Positions are not given out again when the trail has been emptied.
func TestPositionsSurviveASweep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path})
	fill(t, s, 3)
	mustExec(t, raw(t, path), "UPDATE executed SET at = 0")
	if _, err := s.Sweep(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	c, err := s.Begin(t.Context(), attempt("next"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	trail, err := s.Trail(t.Context(), semel.TrailFilter{After: 3})
	if err != nil || len(trail) != 1 || trail[0].Position != 4 || trail[0].Seq != 4 {
		t.Errorf("behind an emptied trail of 3 comes %+v, %v", trail, err)
	}
}

// Every filter that is meant to find something particular has an index.
func TestQueriesUseIndexes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	if err := open(t, sqlite.Config{Path: path}).Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	db := raw(t, path)
	for query, index := range sqlite.FilterQueries() {
		rows, err := db.Query("EXPLAIN QUERY PLAN " + query)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(plan, "; "); !strings.Contains(got, "SEARCH") || !strings.Contains(got, index) {
			t.Errorf("%s\nis planned as %s; want a search by %s", query, got, index)
		}
	}
}

// The rows of one id or key may be far apart.
func TestSearchAcrossBuckets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path})
	fill(t, s, 2)
	db := raw(t, path)
	for _, position := range []int{2047, 2048, 2049, 10_000, 1 << 40, 1<<62 + 5} {
		mustExec(t, db, `INSERT INTO trail SELECT ?1, 7, ?1, 0, 'replayed', number, NULL, tenant, actor, operation, key, number,
			NULL, NULL, NULL, NULL, NULL, 1 FROM record WHERE key = 'key 1' AND number < 3`, position)
		mustExec(t, db, `INSERT INTO record SELECT ?1, randomblob(8), state, NULL, token, expires_at, position + ?1, NULL, NULL, begun_at, retention, reopened,
			tenant, actor || ?1, operation, key, fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id, cause,
			codec, label, reference, tombstone, pieces, pieces_size, head, body
			FROM record WHERE key = 'key 1' AND number < 3`, position)
	}
	first, err := s.Find(t.Context(), identity("key 1"))
	if err != nil {
		t.Fatal(err)
	}
	want := []uint64{2047, 2048, 2049, 10_000, 1 << 40, 1<<62 + 5}
	for _, f := range []semel.TrailFilter{{Key: "key 1"}, {RecordID: first.ID}, {Key: "key 1", RecordID: first.ID, Tenant: "acme"}} {
		got, err := s.Trail(t.Context(), f)
		if err != nil || len(got) != len(want)+1 {
			t.Fatalf("Trail %+v found %d entries, %v; want %d", f, len(got), err, len(want)+1)
		}
		for i, position := range want {
			f.After, f.Limit = got[i].Position, 1
			page, err := s.Trail(t.Context(), f)
			if err != nil || len(page) != 1 || page[0].Position != position || got[i+1].Position != position {
				t.Errorf("Trail %+v found %+v, %v; want position %d", f, page, err, position)
			}
		}
		f.After = want[len(want)-1]
		if page, err := s.Trail(t.Context(), f); err != nil || len(page) != 0 {
			t.Errorf("Trail behind its end found %+v, %v", page, err)
		}
	}
	f := semel.Filter{Key: "key 1", Limit: 1}
	for _, fence := range append([]uint64{first.Fence}, want...) {
		got, err := s.List(t.Context(), f)
		if err != nil || len(got) != 1 || got[0].Fence != fence {
			t.Fatalf("List %+v found %+v, %v; want fence %d", f, got, err, fence)
		}
		f.After = fence
		if byID, err := s.List(t.Context(), semel.Filter{ID: got[0].ID}); err != nil || len(byID) != 1 || byID[0].Fence != fence {
			t.Errorf("List of %s found %+v, %v; want fence %d", got[0].ID, byID, err, fence)
		}
	}
	if page, err := s.List(t.Context(), f); err != nil || len(page) != 0 {
		t.Errorf("List behind its end found %+v, %v", page, err)
	}
	if got, err := s.List(t.Context(), semel.Filter{ID: "nobody's"}); err != nil || len(got) != 0 {
		t.Errorf("List of an unknown id found %+v, %v", got, err)
	}
}

// Bounds are exact, though times are stored in microseconds: Since is
// inclusive, Until is not.
func TestTrailTimeBounds(t *testing.T) {
	s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "semel.db")})
	fill(t, s, 1)
	all, err := s.Trail(t.Context(), semel.TrailFilter{})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	at := all[0].At
	for _, c := range []struct {
		f    semel.TrailFilter
		want int
	}{
		{semel.TrailFilter{Since: at}, 1},
		{semel.TrailFilter{Since: at.Add(1)}, 0},
		{semel.TrailFilter{Since: at.Add(-1)}, 1},
		{semel.TrailFilter{Until: at}, 0},
		{semel.TrailFilter{Until: at.Add(1)}, 1},
		{semel.TrailFilter{Until: at.Add(-1)}, 0},
	} {
		if got, err := s.Trail(t.Context(), c.f); err != nil || len(got) != c.want {
			t.Errorf("Trail from %v to %v around %v found %d entries, %v; want %d", c.f.Since, c.f.Until, at, len(got), err, c.want)
		}
	}
}

// A sweep that is cancelled while the writer is at it leaves it alone. For the
// race detector.
func TestCancelledSweep(t *testing.T) {
	s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "semel.db")})
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := s.Sweep(ctx, 250); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

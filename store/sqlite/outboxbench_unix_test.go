//go:build linux || darwin

package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

// rawBench opens a file with the settings that the store has.
func rawBench(b *testing.B, path string) *sql.DB {
	b.Helper()
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)&_pragma=wal_autocheckpoint(4000)")
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	b.Cleanup(func() { _ = db.Close() })
	return db
}

func benchStore(b *testing.B) (*sqlite.Store, *sql.DB) {
	path := filepath.Join(b.TempDir(), "semel.db")
	s := open(b, sqlite.Config{Path: path})
	db := rawBench(b, path)
	mustExec(b, db, "CREATE TABLE business (n INTEGER PRIMARY KEY, note TEXT) STRICT")
	return s, db
}

// BenchmarkEnqueue is a business transaction of one row: bare, with a message
// without a key, and with one in a lane that others wait in. One op is a transaction.
func BenchmarkEnqueue(b *testing.B) {
	for _, mode := range []string{"bare", "unkeyed", "keyed"} {
		b.Run(mode, func(b *testing.B) {
			_, db := benchStore(b)
			m := outbox.Message{Topic: "t", Payload: body}
			if mode == "keyed" {
				m.Key = "k"
			}
			b.ReportAllocs()
			stop := recorder.CPU(b)
			for b.Loop() {
				tx, err := db.Begin()
				if err != nil {
					b.Fatal(err)
				}
				if _, err := tx.Exec("INSERT INTO business (note) VALUES (?)", "a business row of some length"); err != nil {
					b.Fatal(err)
				}
				if mode != "bare" {
					if err := sqlite.EnqueueTx(b.Context(), tx, m); err != nil {
						b.Fatal(err)
					}
				}
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
			}
			stop()
		})
	}
}

const fillMessages = `
	WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
	INSERT INTO outbox (topic, key, payload) SELECT 't', CASE WHEN ?2 > 0 THEN 'lane ' || (i % ?2) END, ?3 FROM n`

// BenchmarkRelay delivers what waits to a sink that does nothing; one op is a
// message. Beside it a plain loop claims a batch, calls the sink and marks the
// batch as sent, on a table with one index.
func BenchmarkRelay(b *testing.B) {
	const batch = 64
	for _, lanes := range []int{0, 1000, 1} {
		b.Run(fmt.Sprint("relay/lanes=", lanes), func(b *testing.B) {
			s, db := benchStore(b)
			mustExec(b, db, fillMessages, b.N, lanes, body)
			var n atomic.Int64
			ctx, cancel := context.WithCancel(b.Context())
			claims := 0
			observer := &outbox.Observer{Claimed: func(context.Context, outbox.Fetched) { claims++ }}
			r, err := outbox.New(outbox.Config{Store: s.Outbox(), Observer: observer, Routes: []outbox.Route{{MaxInFlight: batch, Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) error {
				if n.Add(1) == int64(b.N) {
					cancel()
				}
				return nil
			})}}})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			stop := recorder.CPU(b)
			if err := r.Run(ctx); err != nil {
				b.Fatal(err)
			}
			stop()
			b.ReportMetric(float64(b.N)/float64(claims), "msg/claim")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
	b.Run("plain loop", func(b *testing.B) {
		_, db := benchStore(b)
		mustExec(b, db, `CREATE TABLE plain (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, state INTEGER NOT NULL DEFAULT 0) STRICT;
			CREATE INDEX plain_pending ON plain (id) WHERE state = 0`)
		mustExec(b, db, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO plain (topic, payload) SELECT 't', ? FROM n", b.N, body)
		claim, err := db.Prepare("UPDATE plain SET state = 1 WHERE id IN (SELECT id FROM plain WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, topic, payload")
		if err != nil {
			b.Fatal(err)
		}
		settle, err := db.Prepare("UPDATE plain SET state = 2 WHERE id = ?")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.ResetTimer()
		stop := recorder.CPU(b)
		for done := 0; done < b.N; {
			rows, err := claim.Query(batch)
			if err != nil {
				b.Fatal(err)
			}
			var ids []int64
			for rows.Next() {
				var (
					id      int64
					topic   string
					payload []byte
				)
				if err := rows.Scan(&id, &topic, &payload); err != nil {
					b.Fatal(err)
				}
				ids = append(ids, id)
			}
			if err := rows.Close(); err != nil {
				b.Fatal(err)
			}
			tx, err := db.Begin()
			if err != nil {
				b.Fatal(err)
			}
			for _, id := range ids {
				if _, err := tx.Stmt(settle).Exec(id); err != nil {
					b.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				b.Fatal(err)
			}
			done += len(ids)
		}
		stop()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
}

// BenchmarkClaim claims and releases 64 messages where many wait: due, leased, for
// later, and in one lane behind its first. One op is a claim with its release.
func BenchmarkClaim(b *testing.B) {
	for _, kind := range []string{"due", "leased", "delayed", "lane"} {
		for _, n := range []int{10_000, 1_000_000} {
			b.Run(fmt.Sprint(kind, "/", n), func(b *testing.B) {
				s, db := benchStore(b)
				mustExec(b, db, "PRAGMA synchronous = OFF")
				lanes := 0
				if kind == "lane" {
					lanes = 1
				}
				mustExec(b, db, fillMessages, n, lanes, body)
				switch kind {
				case "leased":
					mustExec(b, db, "UPDATE outbox SET leased = 1, fence = 7, due = ?", time.Now().Add(time.Hour).UnixMicro())
				case "delayed":
					mustExec(b, db, "UPDATE outbox SET not_before = ?1, due = ?1", time.Now().Add(time.Hour).UnixMicro())
				}
				if kind != "due" {
					mustExec(b, db, fillMessages, 64, 0, body)
				}
				mustExec(b, db, "PRAGMA wal_checkpoint(TRUNCATE)")
				o := s.Outbox()
				b.ResetTimer()
				stop := recorder.CPU(b)
				for b.Loop() {
					got, _, err := o.Exchange(b.Context(), nil, outbox.Claim{Max: 64, Lease: time.Hour})
					if err != nil || len(got) < 64 {
						b.Fatal(len(got), err)
					}
					release := make([]outbox.Settlement, len(got))
					for i, m := range got {
						release[i] = outbox.Settlement{Ref: m.Ref, Outcome: outbox.OutcomeReleased}
					}
					if _, lost, err := o.Exchange(b.Context(), release, outbox.Claim{}); err != nil || len(lost) > 0 {
						b.Fatal(lost, err)
					}
				}
				stop()
			})
		}
	}
}

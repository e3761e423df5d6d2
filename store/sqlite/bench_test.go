package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

var body = make([]byte, 256)

// BenchmarkPair claims and completes fresh identities; one op is one pair.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			run(b, callers, func(ctx context.Context) error {
				c, err := s.Begin(ctx, attempt(semel.NewKey()))
				if err != nil {
					return err
				}
				_, err = c.Complete(ctx, result)
				return err
			})
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkReplay begins one completed identity; one op is one replay.
func BenchmarkReplay(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
			if err != nil {
				b.Fatal(err)
			}
			key := semel.NewKey()
			c, err := s.Begin(b.Context(), attempt(key))
			if err != nil {
				b.Fatal(err)
			}
			if _, err = c.Complete(b.Context(), result); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			run(b, callers, func(ctx context.Context) error {
				if _, err := s.Begin(ctx, attempt(key)); err == nil {
					return fmt.Errorf("granted twice")
				}
				return nil
			})
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

var result = semel.Result{Codec: "http/1", Head: body[:64], Body: body, Label: "201"}

func attempt(key string) semel.Attempt {
	return semel.NewAttempt(identity(key), semel.FingerprintOf([]byte(key)), 15*time.Second, time.Hour)
}

func run(b *testing.B, callers int, one func(context.Context) error) {
	ctx := b.Context()
	var left atomic.Int64
	left.Store(int64(b.N))
	errs := make(chan error, callers)
	b.ResetTimer()
	for range callers {
		go func() {
			for left.Add(-1) >= 0 {
				cctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				err := one(cctx)
				cancel()
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

// BenchmarkPlain is what BenchmarkPair is measured against: the same driver and
// settings, the same bytes in one table without an index beside its key, and a
// loop that commits whatever is waiting. No fences, no conditions, no trail.
func BenchmarkPlain(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			dsn := "file:" + filepath.ToSlash(filepath.Join(b.TempDir(), "plain.db")) +
				"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
			db, err := sql.Open("sqlite", dsn)
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			db.SetMaxOpenConns(1)
			if _, err := db.Exec("CREATE TABLE plain (key TEXT PRIMARY KEY, claim BLOB, result BLOB) WITHOUT ROWID"); err != nil {
				b.Fatal(err)
			}
			type write struct {
				key  string
				done chan error
			}
			claims, results := make(chan write, 1024), make(chan write, 1024)
			go func() {
				for first := range claims {
					tx, err := db.Begin()
					if err != nil {
						b.Error(err)
						return
					}
					insert, _ := tx.Prepare("INSERT INTO plain (key, claim) VALUES (?, ?)")
					update, _ := tx.Prepare("UPDATE plain SET result = ? WHERE key = ?")
					var group []write
					add := func(w write, claim bool) {
						if claim {
							_, err = insert.Exec(w.key, body[:200])
						} else {
							_, err = update.Exec(body, w.key)
						}
						if err != nil {
							b.Error(err)
						}
						group = append(group, w)
					}
					if first.key != "" {
						add(first, true)
					}
					for more := true; more && len(group) < 512; {
						select {
						case w := <-claims:
							if w.key != "" {
								add(w, true)
							}
						case w := <-results:
							add(w, false)
						default:
							more = false
						}
					}
					err = tx.Commit()
					for _, w := range group {
						w.done <- err
					}
				}
			}()
			b.ReportAllocs()
			run(b, callers, func(context.Context) error {
				w := write{semel.NewKey(), make(chan error, 1)}
				claims <- w
				if err := <-w.done; err != nil {
					return err
				}
				results <- w
				select {
				case claims <- write{}: // wakes the loop
				default:
				}
				return <-w.done
			})
			close(claims)
		})
	}
}

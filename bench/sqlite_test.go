package bench

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

// response is what an execution is recorded with: head and body of a small
// JSON answer.
var response = semel.Result{
	Codec: "http/1", Head: make([]byte, 120), Body: make([]byte, 200), Label: "201", Reference: "/orders/1234",
}

// BenchmarkSQLite counts protected operations (claim and completion, both
// durable) in a file with full sync, beside a loop that groups commits of as
// many bytes in two plain inserts, and beside the same without grouping.
func BenchmarkSQLite(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("store/callers=%d", callers), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close(context.Background())
			pairs(b, callers, func(ctx context.Context, i int64) error {
				c, err := s.Begin(ctx, newAttempt(i))
				if err != nil {
					return err
				}
				_, err = c.Complete(ctx, response)
				return err
			})
		})
		for _, grouped := range []bool{true, false} {
			b.Run(fmt.Sprintf("plain/grouped=%v/callers=%d", grouped, callers), func(b *testing.B) {
				p := openPlain(b, grouped)
				pairs(b, callers, func(ctx context.Context, i int64) error {
					if err := p.write(row(newAttempt(i), 0)); err != nil {
						return err
					}
					return p.write(row(newAttempt(i), len(response.Head)+len(response.Body)))
				})
			})
		}
	}
}

// BenchmarkSQLiteReplay asks for one of many completed identities again, beside a
// prepared select by key that reads head and body.
func BenchmarkSQLiteReplay(b *testing.B) {
	const records = 10_000
	b.Run("store", func(b *testing.B) {
		s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close(context.Background())
		fill(b, s, records)
		attempts := make([]semel.Attempt, records)
		for i := range attempts {
			attempts[i] = newAttempt(int64(i) + 1)
		}
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			_, err := s.Begin(b.Context(), attempts[i%records])
			if c, ok := errors.AsType[*semel.ConflictError](err); !ok || len(c.Record.Result.Body) != len(response.Body) {
				b.Fatal(err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		p := openPlain(b, true)
		keys := make([]string, records)
		for i := range keys {
			a := newAttempt(int64(i) + 1)
			keys[i] = a.Identity.Key
			if err := p.write(row(a, len(response.Head)+len(response.Body))); err != nil {
				b.Fatal(err)
			}
		}
		db, err := sql.Open("sqlite", p.path)
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		find, err := db.Prepare("SELECT id, tenant, actor, operation, bytes, at FROM rows WHERE key = ?")
		if err != nil {
			b.Fatal(err)
		}
		defer find.Close()
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			var id, tenant, actor, operation string
			var bytes []byte
			var at int64
			if err := find.QueryRowContext(b.Context(), keys[i%records]).Scan(&id, &tenant, &actor, &operation, &bytes, &at); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSQLiteSize reports how many bytes of the file a record takes with its
// trail, body and head included, once the log is in the file.
func BenchmarkSQLiteSize(b *testing.B) {
	const records = 100_000
	for _, callers := range []int{1, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			n := min(records, callers*2000)
			for range b.N {
				path := filepath.Join(b.TempDir(), "semel.db")
				s, err := sqlite.Open(b.Context(), sqlite.Config{Path: path})
				if err != nil {
					b.Fatal(err)
				}
				fillBy(b, s, n, callers)
				if err := s.Close(context.Background()); err != nil { // which checkpoints
					b.Fatal(err)
				}
				info, err := os.Stat(path)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(info.Size())/float64(n), "bytes/record")
			}
		})
	}
}

// fill completes the first n identities.
func fill(b *testing.B, s *sqlite.Store, n int) { fillBy(b, s, n, 256) }

func fillBy(b *testing.B, s *sqlite.Store, n, callers int) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				c, err := s.Begin(b.Context(), newAttempt(i))
				if err == nil {
					_, err = c.Complete(b.Context(), response)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func newAttempt(i int64) semel.Attempt {
	id := semel.Identity{
		Scope: semel.Scope{Tenant: "acme", Actor: "0123456789abcdef0123456789abcdef", Operation: "POST /orders"},
		Key:   fmt.Sprintf("8e03978e-40d5-43e8-bc93-%012d", i),
	}
	return semel.NewAttempt(id, semel.Fingerprint{Scheme: "request/2"}, 15*time.Second, 24*time.Hour)
}

// pairs runs op b.N times over so many callers.
func pairs(b *testing.B, callers int, op func(ctx context.Context, i int64) error) {
	b.ReportAllocs()
	start := time.Now()
	b.ResetTimer()
	if err := each(b.Context(), callers, int64(b.N), op); err != nil {
		b.Error(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "pairs/s")
}

// each calls op for 1 to n, so many at the same time, until one fails.
func each(ctx context.Context, callers int, n int64, op func(ctx context.Context, i int64) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for failed.Load() == nil {
				i := next.Add(1)
				if i > n {
					return
				}
				if err := op(ctx, i); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// plain is the floor: one goroutine, one connection, one prepared insert.
type plain struct {
	path  string
	queue chan plainWrite
}

type plainWrite struct {
	args []driver.NamedValue
	done chan error
}

func row(a semel.Attempt, result int) []driver.NamedValue {
	bytes := make([]byte, result+len(a.Token)+len(a.Fingerprint.Sum))
	_, _ = rand.Read(bytes[:16])
	values := []any{semel.NewRecordID(), a.Identity.Tenant, a.Identity.Actor, a.Identity.Operation, a.Identity.Key, bytes, time.Now().UnixMicro()}
	args := make([]driver.NamedValue, len(values))
	for i, v := range values {
		args[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return args
}

func openPlain(b *testing.B, grouped bool) *plain {
	path := filepath.Join(b.TempDir(), "plain.db")
	db, err := sql.Open("sqlite", path+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(2) // one writes
	if _, err := db.Exec(`CREATE TABLE rows (n INTEGER PRIMARY KEY, id TEXT, tenant TEXT, actor TEXT, operation TEXT,
		key TEXT, bytes BLOB, at INTEGER) STRICT; CREATE INDEX rows_key ON rows (key)`); err != nil {
		b.Fatal(err)
	}
	conn, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	p := &plain{path: path, queue: make(chan plainWrite, 1024)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := conn.Raw(func(c any) error { return p.run(c.(driver.Conn), grouped) })
		if err != nil {
			b.Error(err)
		}
	}()
	b.Cleanup(func() {
		close(p.queue)
		<-ended
		conn.Close()
		db.Close()
	})
	return p
}

func (p *plain) write(args []driver.NamedValue) error {
	w := plainWrite{args: args, done: make(chan error, 1)}
	p.queue <- w
	return <-w.done
}

func (p *plain) run(c driver.Conn, grouped bool) error {
	insert, err := c.Prepare("INSERT INTO rows (id, tenant, actor, operation, key, bytes, at) VALUES (?,?,?,?,?,?,?)")
	if err != nil {
		return err
	}
	defer insert.Close()
	exec := func(q string) error {
		_, err := c.(driver.ExecerContext).ExecContext(context.Background(), q, nil)
		return err
	}
	var group []plainWrite
	for first := range p.queue {
		group = append(group[:0], first)
		for grouped && len(group) < 512 {
			select {
			case w, ok := <-p.queue:
				if ok {
					group = append(group, w)
					continue
				}
			default:
			}
			break
		}
		if err := exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
		for _, w := range group {
			if _, err := insert.(driver.StmtExecContext).ExecContext(context.Background(), w.args); err != nil {
				return err
			}
		}
		if err := exec("COMMIT"); err != nil {
			return err
		}
		for _, w := range group {
			w.done <- nil
		}
	}
	return nil
}

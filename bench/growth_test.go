package bench

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// Environment variables of TestGrowth. Without them it only shows that it
// works, with few records.
const (
	growthRecords = "SEMEL_GROWTH_RECORDS" // for instance 10000,1000000
	growthStore   = "SEMEL_GROWTH_STORE"   // sqlite, postgres (transactional), postgres-leased; several with commas
	growthJSON    = "SEMEL_GROWTH_JSON"    // a file for the figures
)

const (
	// Many claims are under way at a time, and share commits. Of replays there are
	// as many as cores in most machines that measure: more would only queue for
	// the connections that read, and one's time would be that of the queue.
	claimers  = 16
	replayers = 2
	// Of growthShare records that a store is filled with, one has expired when
	// it is measured, for the sweep.
	growthShare = 10
)

// TestGrowth fills a fresh store with each number of records, and measures it:
// claims with their completion, replays of any of its records, both also while
// a sweep runs, and the room that it takes.
func TestGrowth(t *testing.T) {
	records, stores := "100,300", "sqlite,postgres"
	// How often each way is measured, in turn, and for how long at most.
	cycles, slice := 1, 20*time.Millisecond
	if given := os.Getenv(growthRecords); given != "" {
		records, stores, cycles, slice = given, "sqlite", 5, 2*time.Second
	}
	stores = cmp.Or(os.Getenv(growthStore), stores)
	var sizes []int64
	for field := range strings.SplitSeq(records, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(field), 10, 64)
		if err != nil || n < growthShare || len(sizes) > 0 && n <= sizes[len(sizes)-1] {
			t.Fatalf("%s=%s: want rising numbers, from %d on", growthRecords, records, growthShare)
		}
		sizes = append(sizes, n)
	}

	var all []growth
	for name := range strings.SplitSeq(stores, ",") {
		t.Run(name, func(t *testing.T) {
			open := opener(t, name)
			var of []growth
			for _, n := range sizes {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					g, err := open(t).measure(t.Context(), n, cycles, slice)
					if err != nil {
						t.Fatal(err)
					}
					g.Store = name
					of = append(of, g)
					checkGrowth(t, g)
				})
			}
			if t.Failed() {
				return
			}
			printGrowth(of)
			all = append(all, of...)
		})
	}
	if file := os.Getenv(growthJSON); file != "" {
		text, err := json.MarshalIndent(all, "", "\t")
		if err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// latency is in microseconds.
type latency struct {
	Samples int     `json:"samples"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
}

type growth struct {
	Store   string  `json:"store"`
	Records int64   `json:"records"`
	Copied  int64   `json:"copied,omitempty"` // of the records; the others were claimed
	FillPS  float64 `json:"filled_per_s"`

	Claim       latency `json:"claim"`
	Replay      latency `json:"replay"`
	Recent      latency `json:"replay_recent"`
	ClaimSwept  latency `json:"claim_during_sweep"`
	ReplaySwept latency `json:"replay_during_sweep"`
	ClaimsPS    float64 `json:"claims_per_s"`
	SweptPS     float64 `json:"swept_per_s"`
	Swept       int     `json:"swept"`

	// Bytes on disk: by table or index, for each record that the store was filled
	// with; of a record with its indexes; of an entry of the trail with its own. And
	// what went to the disk (SQLite) or into the log (PostgreSQL) for each claim with
	// its completion, and for each record swept.
	Bytes        map[string]float64 `json:"bytes"`
	Record       float64            `json:"bytes_per_record"`
	Entry        float64            `json:"bytes_per_trail_entry"`
	WrittenClaim float64            `json:"bytes_written_per_claim"`
	WrittenSwept float64            `json:"bytes_written_per_swept"`
	RSS          int64              `json:"rss_bytes"` // this process, 0 where it is not told
}

// growing is a store that is filled, and what only its technology can tell.
type growing struct {
	store interface {
		semel.Store
		semel.Sweeper
	}
	// settle brings the store's files to rest and says how large what in them is,
	// by name, and under "" how large all of it is.
	settle func(ctx context.Context) (map[string]int64, error)
	// entries counts those of the table of the trail.
	entries func(ctx context.Context) (n int64, err error)
	// written counts bytes that were written so far.
	written func(ctx context.Context) (int64, error)

	filled  int64        // identities 1 to filled were claimed; each growthShare-th has expired
	claimed atomic.Int64 // identities that were claimed to be measured
	callers int          // while filling

	// copies makes, of what was filled in since the last call, so many copies
	// under other identities; nil where claims are fast enough.
	copies func(ctx context.Context, copies int64) error
}

// opener returns what opens a fresh store.
func opener(t *testing.T, name string) func(t *testing.T) *growing {
	switch name {
	case "sqlite":
		return growingSQLite
	case "postgres", "postgres-leased":
		mode := postgres.ModeTransactional
		if name == "postgres-leased" {
			mode = postgres.ModeLeased
		}
		server := testenv.StartPostgres(t, testenv.PostgresOptions{Parameters: map[string]string{
			"autovacuum": "on", "shared_buffers": "1GB", "max_wal_size": "4GB",
		}})
		return func(t *testing.T) *growing { return growingPostgres(t, server.NewDatabase(t), mode) }
	}
	t.Fatalf("%s=%s: want sqlite, postgres or postgres-leased", growthStore, name)
	return nil
}

func growingSQLite(t *testing.T) *growing {
	path := filepath.Join(t.TempDir(), "semel.db")
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _, _ = db.Close(), s.Close(context.Background()) })
	return &growing{
		store: s, callers: 512,
		settle:  func(ctx context.Context) (map[string]int64, error) { return sqliteSizes(ctx, db, path) },
		written: func(context.Context) (int64, error) { return processFigure("io", "write_bytes:", 1), nil },
		entries: func(ctx context.Context) (n int64, err error) {
			err = db.QueryRowContext(ctx, "SELECT count(*) FROM trail").Scan(&n)
			return n, err
		},
	}
}

func growingPostgres(t *testing.T, url string, mode postgres.Mode) *growing {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := postgres.New(t.Context(), pool, postgres.Config{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return &growing{
		store: s, callers: 64,
		copies: copier(pool),
		settle: func(ctx context.Context) (map[string]int64, error) { return postgresSizes(ctx, pool) },
		written: func(ctx context.Context) (at int64, err error) {
			err = pool.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&at)
			return at, err
		},
		entries: func(ctx context.Context) (n int64, err error) {
			err = pool.QueryRow(ctx, "SELECT count(*) FROM semel.trail").Scan(&n)
			return n, err
		},
	}
}

// sqliteSizes moves the log into the file and lists tables and indexes.
func sqliteSizes(ctx context.Context, db *sql.DB, path string) (map[string]int64, error) {
	if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	rows, err := db.QueryContext(ctx, "SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var size int64
		if err := rows.Scan(&name, &size); err != nil {
			return nil, err
		}
		sizes[name] = size
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, suffix := range []string{"", "-wal"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			return nil, err
		}
		sizes[""] += info.Size()
	}
	return sizes, nil
}

// copier copies rows of the store's large tables in SQL, whatever columns they
// have, because claims by the million take hours. What must be unique is made
// so: numbers, and the positions that come from the same counter, go on behind the largest; bytes, UUIDs and the first text of an index
// are digests of the old ones. The copies cannot be found by their identities.
func copier(pool *pgxpool.Pool) func(ctx context.Context, copies int64) error {
	copied := map[string]int64{} // by table, the largest number so far
	return func(ctx context.Context, copies int64) error {
		tables, err := pool.Query(ctx, `
			SELECT c.relname, format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s s, generate_series(1, $1::bigint) g WHERE %I > $2',
				c.oid::regclass, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum),
				string_agg(CASE
					WHEN a.attnum = n.attnum OR a.attname = 'position' THEN format('%I + g * $3', a.attname)
					WHEN NOT u.is_unique THEN quote_ident(a.attname)
					WHEN a.atttypid = 'bytea'::regtype THEN format('substr(sha256(%I || int8send(g)), 1, length(%1$I))', a.attname)
					WHEN a.atttypid = 'uuid'::regtype THEN format('md5(%I::text || g)::uuid', a.attname)
					WHEN u.is_first AND a.atttypid = 'text'::regtype THEN format('left(repeat(md5(%I || g), 8), length(%1$I))', a.attname)
					ELSE quote_ident(a.attname) END, ', ' ORDER BY a.attnum), c.oid::regclass, n.attname)
			FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped,
				-- the table's number: the one column of its primary key
				LATERAL (SELECT k.attname, k.attnum FROM pg_index i JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = i.indkey[0]
					WHERE i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1 AND k.atttypid = 'int8'::regtype) n,
				LATERAL (SELECT count(*) > 0 AS is_unique, coalesce(bool_or(i.indkey[0] = a.attnum), false) AS is_first
					FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND a.attnum = ANY (i.indkey)) u
			WHERE c.relnamespace = 'semel'::regnamespace AND c.relkind = 'r'
			GROUP BY c.oid, c.relname, n.attname`)
		if err != nil {
			return err
		}
		type table struct{ Name, Insert string }
		all, err := pgx.CollectRows(tables, pgx.RowToStructByPos[table])
		if err != nil {
			return err
		}
		var last, largest int64
		if err := pool.QueryRow(ctx, "SELECT coalesce(max(last_value), 0) FROM pg_sequences WHERE schemaname = 'semel'").Scan(&last); err != nil {
			return err
		}
		for _, t := range all {
			// The numbers since the last time, and gaps of them.
			if _, err := pool.Exec(ctx, t.Insert, copies, copied[t.Name], last-copied[t.Name]); err != nil {
				return fmt.Errorf("%s: %w", t.Insert, err)
			}
			copied[t.Name] = last + copies*(last-copied[t.Name])
			largest = max(largest, copied[t.Name])
		}
		// All sequences go on behind everything.
		for name := range copied {
			copied[name] = largest
		}
		_, err = pool.Exec(ctx, `SELECT setval(c.oid, $1) FROM pg_class c WHERE c.relnamespace = 'semel'::regnamespace AND c.relkind = 'S'`, max(largest, 1))
		return err
	}
}

// postgresSizes vacuums, as the server would sooner or later, and lists the
// tables and indexes of the store.
func postgresSizes(ctx context.Context, pool *pgxpool.Pool) (map[string]int64, error) {
	for _, command := range []string{"VACUUM ANALYZE", "CHECKPOINT"} {
		if _, err := pool.Exec(ctx, command); err != nil {
			return nil, err
		}
	}
	sizes := map[string]int64{}
	rows, err := pool.Query(ctx, `SELECT c.relname, CASE c.relkind WHEN 'i' THEN pg_relation_size(c.oid) ELSE pg_table_size(c.oid) END
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'semel' AND c.relkind IN ('r', 'i', 'p')`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var size int64
		if err := rows.Scan(&name, &size); err != nil {
			return nil, err
		}
		sizes[name] = size
		sizes[""] += size
	}
	return sizes, rows.Err()
}

// processFigure reads a figure of this process; 0 where there is none.
func processFigure(file, name string, unit int64) int64 {
	text, _ := os.ReadFile("/proc/self/" + file)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == name {
			v, _ := strconv.ParseInt(fields[1], 10, 64)
			return v * unit
		}
	}
	return 0
}

// randomAttempt is on the identity with this number, whose key looks like a
// random UUID: an index over keys in their order is smaller and warmer than one
// that real keys make.
func randomAttempt(i int64) semel.Attempt {
	a := newAttempt(i)
	sum := sha256.Sum256(strconv.AppendInt(nil, i, 10))
	a.Identity.Key = fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	return a
}

// claim takes the identity with this number through a claim to its completion.
func (g *growing) claim(ctx context.Context, i int64, retention time.Duration) error {
	a := randomAttempt(i)
	a.Retention = retention
	c, err := g.store.Begin(ctx, a)
	if err != nil {
		return err
	}
	_, err = c.Complete(c.Context(ctx), response)
	return err
}

// mostClaimed is how many records a store that makes copies is filled with by
// claims, and copiedIn in how many parts, so that they lie among the copies.
const (
	mostClaimed = 100_000
	copiedIn    = 20
)

// fill fills the store. It claims the identities from 1 to g.filled.
func (g *growing) fill(ctx context.Context, n int64) error {
	parts, copies := int64(1), int64(0)
	if g.copies != nil && n > mostClaimed {
		parts, copies = copiedIn, n/mostClaimed-1
	}
	part := n / parts / (copies + 1)
	for range parts {
		from := g.filled
		err := each(ctx, g.callers, part, func(ctx context.Context, i int64) error {
			if i += from; i%growthShare == 0 {
				return g.claim(ctx, i, time.Microsecond)
			}
			return g.claim(ctx, i, 30*24*time.Hour)
		})
		if err == nil && copies > 0 {
			err = g.copies(ctx, copies)
		}
		if err != nil {
			return err
		}
		g.filled += part
	}
	return nil
}

// claimOne claims an identity of its own, whose record has expired at once, so
// that what is measured does not make the store grow.
func (g *growing) claimOne(ctx context.Context) error {
	return g.claim(ctx, -g.claimed.Add(1), time.Microsecond)
}

// mostRecent is how many records replayRecent chooses from. Retries come seconds or
// minutes after the first attempt, not as far back as records are kept.
const mostRecent = 10_000

// replayOne looks up any of the records that the store was filled with.
func (g *growing) replayOne(ctx context.Context) error { return g.replay(ctx, g.filled) }

// replayRecent looks up one of those that it was filled with last.
func (g *growing) replayRecent(ctx context.Context) error {
	return g.replay(ctx, min(mostRecent, g.filled))
}

// replay looks up one of the last records that the store was filled with.
func (g *growing) replay(ctx context.Context, last int64) error {
	i := g.filled - mathrand.Int64N(last)
	if i%growthShare == 0 {
		i--
	}
	_, err := g.store.Begin(ctx, randomAttempt(i))
	taken, ok := errors.AsType[*semel.ConflictError](err)
	if !ok || taken.Record.State != semel.StateCompleted || len(taken.Record.Result.Body) != len(response.Body) {
		return fmt.Errorf("record %d is not there: %v", i, err)
	}
	return nil
}

// way is one kind of call that is measured.
type way struct {
	callers int
	op      func(context.Context) error
	took    []time.Duration
	swept   []time.Duration // while a sweep runs
}

// timed calls w.op until until is closed, or limit calls were made, and adds to
// took how long each call took.
func timed(ctx context.Context, until <-chan struct{}, limit int64, w *way, took *[]time.Duration) error {
	var mu sync.Mutex
	var left atomic.Int64
	left.Store(limit)
	var wg sync.WaitGroup
	var failed error
	for range w.callers {
		wg.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && left.Add(-1) >= 0 {
				select {
				case <-until:
					left.Store(0)
					continue
				default:
				}
				start := time.Now()
				if err = w.op(ctx); err == nil {
					own = append(own, time.Since(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			*took = append(*took, own...)
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	return failed
}

// measure fills the store to n records and measures it.
func (g *growing) measure(ctx context.Context, n int64, cycles int, slice time.Duration) (growth, error) {
	m := growth{Records: n, Bytes: map[string]float64{}}
	debug.FreeOSMemory() // what the store before has left
	start := time.Now()
	if err := g.fill(ctx, n); err != nil {
		return m, err
	}
	m.Copied = n - g.filled
	m.FillPS = float64(n) / time.Since(start).Seconds()
	sizes, err := g.settle(ctx)
	if err != nil {
		return m, err
	}
	for name, size := range sizes {
		if per := float64(size) / float64(n); name != "" && per >= 0.5 {
			m.Bytes[name] = per
		}
	}
	m.Record = float64(sizes[""]-ofTrail(sizes)) / float64(n)

	claim, replay := &way{callers: claimers, op: g.claimOne}, &way{callers: replayers, op: g.replayOne}
	recent := &way{callers: replayers, op: g.replayRecent}
	var claiming, sweeping time.Duration
	var claimed, swept int64 // bytes
	quiet := func(w *way, limit int64) error {
		until := make(chan struct{})
		defer time.AfterFunc(slice, func() { close(until) }).Stop()
		return timed(ctx, until, limit, w, &w.took)
	}
	// While nothing is swept, claims leave no more than a part of what the store
	// holds.
	few := max(n/4, 1000)
	claims := func() error {
		start := time.Now()
		defer func() { claiming += time.Since(start) }()
		return g.writing(ctx, &claimed, func() error { return quiet(claim, few) })
	}
	// As Store.Run does, but not for longer than a slice: the claims that are
	// measured expire as well, so that it might not come to an end.
	during := func(w *way) (removed int, err error) {
		until := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			defer close(until)
			var err error
			start := time.Now()
			for n := 1; n > 0 && err == nil && time.Since(start) < slice; removed += n {
				n, err = g.store.Sweep(ctx, 1000)
			}
			sweeping += time.Since(start)
			ended <- err
		}()
		err = timed(ctx, until, 1<<62, w, &w.swept)
		err = errors.Join(err, <-ended)
		m.Swept += removed
		return removed, err
	}
	alone := 0 // swept while only replays went on, which write nothing
	for range cycles {
		for _, part := range []func() error{
			claims,
			func() error { _, err := during(claim); return err },
			claims,
			func() error { return quiet(replay, 1<<62) },
			func() error { return quiet(recent, 1<<62) },
			func() error {
				return g.writing(ctx, &swept, func() error {
					removed, err := during(replay)
					alone += removed
					return err
				})
			},
		} {
			if err := part(); err != nil {
				return m, err
			}
		}
	}
	m.Claim, m.ClaimSwept = latencyOf(claim.took), latencyOf(claim.swept)
	m.Replay, m.ReplaySwept = latencyOf(replay.took), latencyOf(replay.swept)
	m.Recent = latencyOf(recent.took)
	m.ClaimsPS = float64(len(claim.took)) / claiming.Seconds()
	m.SweptPS = float64(m.Swept) / sweeping.Seconds()
	m.WrittenClaim = float64(claimed) / float64(len(claim.took))
	m.WrittenSwept = float64(swept) / float64(max(alone, 1))
	m.RSS = processFigure("status", "VmRSS:", 1024)

	// By now there are entries of the trail, whether a store writes them with
	// the record or when it sweeps it.
	if sizes, err = g.settle(ctx); err != nil {
		return m, err
	}
	entries, err := g.entries(ctx)
	m.Entry = float64(ofTrail(sizes)) / float64(max(entries, 1))
	return m, err
}

// writing adds to bytes what the store writes meanwhile.
func (g *growing) writing(ctx context.Context, bytes *int64, f func() error) error {
	before, err := g.written(ctx)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := g.written(ctx)
	*bytes += after - before
	return err
}

// ofTrail adds up the table of the trail and its indexes.
func ofTrail(sizes map[string]int64) (sum int64) {
	for name, size := range sizes {
		if strings.HasPrefix(name, "trail") {
			sum += size
		}
	}
	return sum
}

func latencyOf(took []time.Duration) latency {
	if len(took) == 0 {
		return latency{}
	}
	slices.Sort(took)
	at := func(q float64) float64 {
		return float64(took[min(int(q*float64(len(took))), len(took)-1)].Nanoseconds()) / 1000
	}
	return latency{len(took), at(0.5), at(0.99)}
}

// checkGrowth makes sure that something was measured; how fast it was is for
// who reads the figures.
func checkGrowth(t *testing.T, g growth) {
	for name, l := range map[string]latency{"claim": g.Claim, "replay": g.Replay, "replay of a recent record": g.Recent, "claim during a sweep": g.ClaimSwept, "replay during a sweep": g.ReplaySwept} {
		if l.Samples == 0 || l.P50 <= 0 || l.P99 < l.P50 {
			t.Errorf("%s at %d records: %+v", name, g.Records, l)
		}
	}
	if g.Swept == 0 {
		t.Error("nothing was swept")
	}
	if least := float64(len(response.Head) + len(response.Body)); g.Record < least || g.Entry <= 0 || len(g.Bytes) == 0 {
		t.Errorf("%.0f bytes for a record whose result has %.0f, %.0f for an entry of the trail: %v", g.Record, least, g.Entry, g.Bytes)
	}
}

func printGrowth(all []growth) {
	fmt.Printf("\n%s, %d CPUs, %s; %d claim, %d replay; microseconds; the aims are p50 within 1.5 times of the first row's, and p99 during a sweep below 2 times\n",
		all[0].Store, runtime.NumCPU(), runtime.Version(), claimers, replayers)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "records\tclaim p50\tx\tp99\tswept p99\tx\treplay p50\tx\tp99\tswept p99\tx\trecent p50\tx\tclaims/s\tswept/s\tbytes/record\tbytes/entry\twritten/claim\t/swept\tRSS MiB\tfilled/s\t")
	for _, g := range all {
		times := func(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }
		fmt.Fprintf(w, "%d\t%.0f\t%s\t%.0f\t%.0f\t%s\t%.0f\t%s\t%.0f\t%.0f\t%s\t%.0f\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%.0f\t\n", g.Records,
			g.Claim.P50, times(g.Claim.P50, all[0].Claim.P50), g.Claim.P99, g.ClaimSwept.P99, times(g.ClaimSwept.P99, g.Claim.P99),
			g.Replay.P50, times(g.Replay.P50, all[0].Replay.P50), g.Replay.P99, g.ReplaySwept.P99, times(g.ReplaySwept.P99, g.Replay.P99),
			g.Recent.P50, times(g.Recent.P50, all[0].Recent.P50),
			g.ClaimsPS, g.SweptPS, g.Record, g.Entry, g.WrittenClaim, g.WrittenSwept, g.RSS>>20, g.FillPS)
	}
	_ = w.Flush() // to the standard output
	last := all[len(all)-1]
	if last.Copied > 0 {
		fmt.Printf("%d of the %d records are copies made in SQL, which are not replayed\n", last.Copied, last.Records)
	}
	fmt.Printf("bytes on disk for each of %d records:", last.Records)
	for _, name := range slices.SortedFunc(maps.Keys(last.Bytes), func(a, b string) int { return cmp.Compare(last.Bytes[b], last.Bytes[a]) }) {
		fmt.Printf(" %s %.0f", name, last.Bytes[name])
	}
	fmt.Println()
}

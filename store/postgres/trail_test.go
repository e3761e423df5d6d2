package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/store/postgres"
)

// twin does the same to a store in memory, which writes each entry of its trail
// down, as to stores over one schema, for which a completed record is its own.
type twin struct {
	t        *testing.T
	rand     *rand.Rand
	pool     *pgxpool.Pool
	memory   *memory.Store
	leased   *postgres.Store
	within   []*postgres.Store // transactional
	open     []twinClaim       // also stale ones
	records  map[string]string // the ids of the one by those of the other
	fences   map[uint64]uint64
	compared int // how often
}

type twinClaim struct{ memory, leased semel.Claim }

func newTwin(t *testing.T, seed uint64) *twin {
	pool := connect(t, testenv.Postgres(t), nil)
	w := &twin{t: t, rand: rand.New(rand.NewPCG(seed, 0)), pool: pool, records: map[string]string{}, fences: map[uint64]uint64{}}
	var err error
	if w.memory, err = memory.New(memory.Config{}); err != nil {
		t.Fatal(err)
	}
	w.leased = open(t, pool, postgres.Config{TrailRetention: time.Hour})
	for _, name := range slices.Sorted(maps.Keys(levels)) {
		c := transactional()
		levels[name](&c)
		w.within = append(w.within, open(t, pool, c))
	}
	return w
}

// same fails unless both errors are of a kind.
func (w *twin) same(what string, a, b error) (ok bool) {
	w.t.Helper()
	kind := func(err error) string {
		for _, is := range []error{semel.ErrLostClaim, semel.ErrNotFound, semel.ErrStaleFence} {
			if errors.Is(err, is) {
				return is.Error()
			}
		}
		if c, ok := errors.AsType[*semel.ConflictError](err); ok {
			return "in the way is " + c.Record.State.String()
		}
		return fmt.Sprint(err)
	}
	if kind(a) != kind(b) {
		w.t.Fatalf("%s: %v in memory, %v in the database", what, a, b)
	}
	return a == nil
}

func (w *twin) meet(ids [2]string, fences [2]uint64) {
	if old, ok := w.records[ids[0]]; ok && old != ids[1] {
		w.t.Fatalf("one record has the ids %s and %s", old, ids[1])
	}
	w.records[ids[0]], w.fences[fences[0]] = ids[1], fences[1]
}

func pick[T any](w *twin, from ...T) T { return from[w.rand.IntN(len(from))] }

// step does something. A lease or retention of a nanosecond is over at once.
func (w *twin) step() {
	ctx := w.t.Context()
	at := w.rand.IntN(4)
	id := semel.Identity{Scope: semel.Scope{Tenant: []string{"", "t"}[at%2], Actor: "a", Operation: fmt.Sprint("op", at)}, Key: fmt.Sprint("key", at/2)}
	found, _ := w.memory.Find(ctx, id)
	var claim twinClaim
	if len(w.open) > 0 {
		claim = pick(w, w.open...)
	}
	res := semel.Result{Codec: "c", Label: pick(w, "", "201", "402"), Body: []byte("x"), Reference: pick(w, "", "/r")}
	switch do := w.rand.IntN(16); {
	case do < 5: // begins, and takes over what can be
		a := semel.NewAttempt(id, semel.FingerprintOf([]byte("r")), pick(w, time.Nanosecond, time.Hour), pick(w, time.Nanosecond, time.Hour))
		a.Origin = semel.Origin{RequestID: pick(w, "", "r1", "r2"), EventID: pick(w, "", "e1"), TraceID: pick(w, "", "t1", "t2")}
		b := a
		if w.rand.IntN(2) == 0 {
			a.Takeover, b.Takeover = found.Fence, w.fences[found.Fence]
		}
		store, done := w.leased, false
		if w.rand.IntN(3) == 0 {
			store, done = pick(w, w.within...), true
		}
		c, err := w.memory.Begin(ctx, a)
		d, err2 := store.Begin(ctx, b)
		if !w.same("Begin", err, err2) {
			return
		}
		w.meet([2]string{c.RecordID(), d.RecordID()}, [2]uint64{c.Fence(), d.Fence()})
		if done {
			_, err := c.Complete(ctx, res)
			_, err2 := d.Complete(ctx, res)
			w.same("Complete in a transaction", err, err2)
		}
		w.open = append(w.open, twinClaim{c, d})
	case do < 8 && claim.leased != nil && !claim.leased.Transactional():
		if w.rand.IntN(4) == 0 { // it took long
			exec(w.t, w.pool, "UPDATE semel.record SET begun_at = begun_at - interval '1 s' WHERE state <> 2")
		}
		_, err := claim.memory.Complete(ctx, res)
		_, err2 := claim.leased.Complete(ctx, res)
		w.same("Complete", err, err2)
	case do < 9 && claim.leased != nil && !claim.leased.Transactional():
		w.same("Hold", claim.memory.Hold(ctx, "lost contact"), claim.leased.Hold(ctx, "lost contact"))
	case do < 10 && claim.leased != nil && !claim.leased.Transactional():
		w.same("Release", claim.memory.Release(ctx), claim.leased.Release(ctx))
	case do < 14:
		d := semel.Resolution{
			Identity: id, Fence: found.Fence, Result: res, Cause: pick(w, "", "looked"), Origin: semel.Origin{RequestID: pick(w, "", "operator")},
			Decision: pick(w, semel.DecideUnknown, semel.DecideUnknown, semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain),
		}
		r, err := w.memory.Resolve(ctx, d)
		d.Fence = w.fences[d.Fence]
		r2, err2 := w.leased.Resolve(ctx, d)
		if w.same(d.Decision.String(), err, err2) {
			w.meet([2]string{r.ID, r2.ID}, [2]uint64{r.Fence, r2.Fence})
		}
	case do < 15:
		w.sweep(w.rand.IntN(3))
	default:
		e := semel.TrailEntry{
			Kind: semel.TrailReplayed, RecordID: found.ID, Fence: found.Fence, Tenant: id.Tenant, Actor: id.Actor, Operation: id.Operation,
			Key: id.Key, Count: uint64(w.rand.IntN(2) * 7),
		}
		w.memory.Note(e)
		e.RecordID, e.Fence = w.records[e.RecordID], w.fences[e.Fence]
		w.leased.Note(e)
	}
}

func (w *twin) sweep(limit int) {
	n, err := w.memory.Sweep(w.t.Context(), limit)
	n2, err2 := w.leased.Sweep(w.t.Context(), limit)
	if w.same("Sweep", err, err2) && n != n2 {
		w.t.Fatalf("Sweep removed %d records in memory, %d in the database", n, n2)
	}
}

// model returns the trail in memory, in the other's words.
func (w *twin) model() (all []semel.TrailEntry) {
	w.t.Helper()
	for _, e := range trailPages(w.t, w.memory, semel.TrailFilter{}, 1000) {
		e.RecordID, e.Fence = w.records[e.RecordID], w.fences[e.Fence]
		all = append(all, e)
	}
	return all
}

func trailPages(t *testing.T, s semel.Trail, f semel.TrailFilter, size int) (all []semel.TrailEntry) {
	t.Helper()
	for f.Limit = size; ; {
		page, err := s.Trail(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > size {
			t.Fatalf("a page has %d entries; want at most %d", len(page), size)
		}
		for _, e := range page {
			if e.Position <= f.After {
				t.Fatalf("behind position %d comes %d", f.After, e.Position)
			}
			f.After = e.Position
			all = append(all, e)
		}
		if len(page) < size {
			return all
		}
	}
}

// said is what an entry says, whoever wrote it and where.
func said(e semel.TrailEntry) semel.TrailEntry {
	e.Position, e.Instance, e.Seq, e.At = 0, "", 0, time.Time{}
	return e
}

// history is what is said of one key in its order, but for notes, which come when
// they come.
func history(all []semel.TrailEntry, operation string) (h []semel.TrailEntry) {
	for _, e := range all {
		if e.Operation == operation && e.Kind != semel.TrailReplayed {
			h = append(h, said(e))
		}
	}
	return h
}

func byText(a, b semel.TrailEntry) int {
	return cmp.Compare(fmt.Sprintf("%#v", a), fmt.Sprintf("%#v", b))
}

// compare makes sure that the trail says what the model does, and that pages, each
// second time small ones, and filters select of it what they have to.
func (w *twin) compare() (all []semel.TrailEntry) {
	t := w.t
	t.Helper()
	model := w.model()
	await(t, func() bool { // for the notes
		all = trailPages(t, w.leased, semel.TrailFilter{}, 1000)
		return len(all) >= len(model)
	})
	sorted := func(all []semel.TrailEntry) (s []semel.TrailEntry) {
		for _, e := range all {
			s = append(s, said(e))
		}
		slices.SortFunc(s, byText)
		return s
	}
	if a, b := sorted(model), sorted(all); !slices.Equal(a, b) {
		t.Fatalf("the trail says\n%+v\nwant\n%+v", b, a)
	}
	writers := map[string]bool{}
	for _, e := range all {
		writer := fmt.Sprint(e.Instance, " ", e.Seq)
		if e.Instance == "" || e.Seq == 0 || e.At.IsZero() || writers[writer] {
			t.Fatalf("entry %+v has no writer, or one of another entry", e)
		}
		writers[writer] = true
	}
	for at := range 4 {
		op := fmt.Sprint("op", at)
		if a, b := history(model, op), history(all, op); !slices.Equal(a, b) {
			t.Fatalf("of %s the trail says\n%+v\nwant\n%+v", op, b, a)
		}
	}
	filters := []semel.TrailFilter{
		{Tenant: "t"},
		{Operation: "op1"},
		{Key: "key0"},
		{Key: "key1", Tenant: "t"},
		{RequestID: "r1"},
		{RequestID: "operator"},
		{EventID: "e1"},
		{TraceID: "t2", RequestID: "r2"},
		{Kind: semel.TrailExecuted},
		{Kind: semel.TrailHeld},
		{Kind: semel.TrailExecuted, TraceID: "t1"},
		{RecordID: "another store's"},
		{Key: "another"},
		{Actor: "another"},
	}
	for _, id := range w.records {
		filters = append(filters, semel.TrailFilter{RecordID: id})
	}
	if n := len(all); n > 0 {
		filters = append(filters, semel.TrailFilter{Since: all[n/2].At}, semel.TrailFilter{Until: all[n/2].At, Kind: semel.TrailExecuted},
			semel.TrailFilter{Since: all[n/3].At, Until: all[n/2].At}, semel.TrailFilter{After: all[n/2].Position})
	}
	w.compared++
	for i, f := range filters {
		var want []semel.TrailEntry
		for _, e := range all {
			if selects(f, e) {
				want = append(want, e)
			}
		}
		sizes := []int{1000, 1 + i%2}
		if w.compared%2 != 0 {
			sizes = sizes[:1] // small pages take a statement for each entry
		}
		for _, size := range sizes {
			if got := trailPages(t, w.leased, f, size); !slices.Equal(got, want) {
				t.Fatalf("%+v selects in pages of %d\n%+v\nwant\n%+v", f, size, got, want)
			}
		}
	}
	for size := range 2 {
		if got := trailPages(t, w.leased, semel.TrailFilter{}, size+1); !slices.Equal(got, all) {
			t.Fatalf("in pages of %d the trail says\n%+v\nwant\n%+v", size+1, got, all)
		}
	}
	return all
}

func selects(f semel.TrailFilter, e semel.TrailEntry) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	return is(f.RecordID, e.RecordID) && is(f.Tenant, e.Tenant) && is(f.Actor, e.Actor) && is(f.Operation, e.Operation) && is(f.Key, e.Key) &&
		is(f.RequestID, e.RequestID) && is(f.EventID, e.EventID) && is(f.TraceID, e.TraceID) && is(string(f.Kind), string(e.Kind)) &&
		(f.Since.IsZero() || !e.At.Before(f.Since)) && (f.Until.IsZero() || e.At.Before(f.Until)) && e.Position > f.After
}

// The trail says the same as one in which each entry is written down, whether a
// record is still there or not; and what it says of one stays where it was, to the
// letter, when the record goes.
func TestTrailIsTheSameWithoutTheRecords(t *testing.T) {
	for range 8 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newTwin(t, seed)
			for range 3 {
				for range 30 {
					w.step()
				}
				w.compare()
			}
			before := w.compare()
			w.sweep(1000)
			if after := w.compare(); !slices.Equal(after, before) {
				t.Fatalf("before a sweep the trail says\n%+v\nafter it\n%+v", before, after)
			}
			// What is old goes, but for what records say that are still there.
			exec(t, w.pool, "UPDATE semel.trail SET at = at - interval '2 h'")
			w.sweep(1000)
			var want []semel.TrailEntry
			for _, e := range before {
				id := semel.Identity{Scope: semel.Scope{Tenant: e.Tenant, Actor: e.Actor, Operation: e.Operation}, Key: e.Key}
				if r, err := w.leased.Find(t.Context(), id); err == nil && e.Kind == semel.TrailExecuted && r.ID == e.RecordID && r.Fence == e.Fence {
					want = append(want, e)
				}
			}
			if got := trailPages(t, w.leased, semel.TrailFilter{}, 1000); !slices.Equal(got, want) {
				t.Fatalf("after the old has gone the trail says\n%+v\nwant\n%+v", got, want)
			}
		})
	}
}

// Who reads the trail to its end and goes on from there later sees what was
// executed meanwhile, however long that took.
func TestSlowExecutionIsNotBehindItsReader(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	leased := open(t, pool, postgres.Config{})
	stores := map[string]*postgres.Store{"leased": leased}
	for name, level := range levels {
		c := transactional()
		level(&c)
		stores[name] = open(t, pool, c)
	}
	for name, s := range stores {
		slow := begin(t, s, name+" slow")
		if _, err := pool.Exec(t.Context(), "SELECT pg_sleep(0.11)"); err != nil {
			t.Fatal(err)
		}
		if _, err := begin(t, leased, name+" quick").Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
		read := trailPages(t, s, semel.TrailFilter{}, 1000)
		if _, err := slow.Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
		next, err := s.Trail(t.Context(), semel.TrailFilter{After: read[len(read)-1].Position})
		if err != nil || len(next) != 1 || next[0].Key != name+" slow" {
			t.Errorf("%s: behind what was there comes %+v, %v; want what was executed since", name, next, err)
		}
	}
}

// Records that are removed, even by hand, leave their entries in the trail.
func TestDeletedByHandStaysInTheTrail(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{})
	for i := range 3 {
		if _, err := begin(t, s, fmt.Sprint(i)).Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
	}
	before := trailPages(t, s, semel.TrailFilter{}, 1000)
	exec(t, pool, "DELETE FROM semel.record WHERE key <> '1'")
	if after := trailPages(t, s, semel.TrailFilter{}, 1000); len(before) != 3 || !slices.Equal(after, before) {
		t.Fatalf("the trail says\n%+v\nafter\n%+v", after, before)
	}
}

// A sweep, another sweep and claims that replace what they find expired agree on
// who takes a record away: each execution is in the trail once.
func TestSweepsAndReplacementsRace(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	leased := open(t, pool, postgres.Config{})
	for name, level := range levels {
		c := transactional()
		level(&c)
		within := open(t, pool, c)
		const keys, rounds = 8, 12
		executed := 0
		for range rounds {
			var all []func() (executed bool, err error)
			for i := range keys {
				a := attempt(fmt.Sprint(name, i))
				a.Retention = time.Microsecond
				for _, s := range []*postgres.Store{leased, within} {
					all = append(all, func() (bool, error) {
						for {
							claim, err := s.Begin(context.Background(), semel.NewAttempt(a.Identity, a.Fingerprint, a.Lease, a.Retention))
							if _, ok := errors.AsType[*semel.ConflictError](err); ok {
								return false, nil
							}
							if err == nil {
								_, err = claim.Complete(context.Background(), result("done"))
							}
							if errors.Is(err, semel.ErrRolledBack) {
								continue // a leased claim came between, or one of several transactions had to go
							}
							return true, err
						}
					})
				}
			}
			for range 3 {
				all = append(all, func() (bool, error) { _, err := leased.Sweep(context.Background(), 5); return false, err })
			}
			answers := make(chan error, len(all))
			did := make(chan bool, len(all))
			for _, f := range all {
				go func() {
					executed, err := f()
					did <- executed
					answers <- err
				}()
			}
			for range all {
				if <-did {
					executed++
				}
				if err := <-answers; err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		entries := 0
		for i := range keys {
			for _, e := range trailPages(t, leased, semel.TrailFilter{Key: fmt.Sprint(name, i), Kind: semel.TrailExecuted}, 1000) {
				if e.Label != "201" {
					t.Fatalf("%+v", e)
				}
				entries++
			}
		}
		if entries != executed {
			t.Errorf("%s: %d entries tell of %d executions", name, entries, executed)
		}
	}
}

package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
)

var errInjected = errors.New("injected fault")

// faults makes connections whose calls fail where decide says so: instead of
// being carried out, or after it, as when an answer is lost.
type faults struct {
	mu      sync.Mutex
	calls   int
	commits int
	decide  func(call int, query string, args []driver.Value) (before, after bool)
}

func (f *faults) arm(decide func(call int, query string, args []driver.Value) (before, after bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.commits, f.decide = 0, 0, decide
}

func (f *faults) counted() (calls, commits int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.commits
}

func (f *faults) fault(query string, args []driver.Value) (before, after error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if query == "COMMIT" {
		f.commits++
	}
	if f.decide == nil {
		return nil, nil
	}
	instead, lost := f.decide(f.calls, query, args)
	if instead {
		before = errInjected
	}
	if lost {
		after = errInjected
	}
	return before, after
}

func (f *faults) dial(ctx context.Context, path, settings string, shared bool) (*conn, error) {
	before, after := f.fault("dial", nil)
	if before != nil {
		return nil, before
	}
	c, err := connect(ctx, path, settings+"PRAGMA synchronous = OFF;", shared) // these tests lose no power
	if err == nil && after != nil {
		return nil, errors.Join(after, c.close())
	}
	if err == nil {
		c.fault = f.fault
		if shared {
			c.driver = &faultyConn{c.driver, f}
		}
	}
	return c, err
}

// faultyConn fails what handlers do.
type faultyConn struct {
	connection
	faults *faults
}

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	before, after := c.faults.fault(query, nil)
	if before != nil {
		return nil, before
	}
	if r, err = c.connection.ExecContext(ctx, query, args); err == nil && after != nil {
		return nil, after
	}
	return r, err
}

func openFaulty(t *testing.T, f *faults, c Config) *Store {
	t.Helper()
	if c.Path == "" {
		c.Path = filepath.Join(t.TempDir(), "semel.db")
	}
	s, err := open(t.Context(), c, f.dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	// The cache relies on it that the writer leaves completed records alone until
	// they have expired.
	for _, change := range []string{"DELETE", "UPDATE OF number, digest, state, fence, token, position, retention, tenant, actor, operation, key, codec, label, reference, pieces, head, body"} {
		if _, err := write(t.Context(), s, 0, func(t *tx) (int64, error) {
			return t.exec("CREATE TEMP TRIGGER IF NOT EXISTS guard_" + change[:6] + " BEFORE " + change + ` ON main.record
				WHEN old.state = 2 AND old.expires_at > unixepoch('subsec') * 1000000 + 1000000
				BEGIN SELECT raise(ABORT, 'a completed record is changed'); END`)
		}); err != nil && !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
	}
	return s
}

func identity(key string) semel.Identity {
	return semel.Identity{Scope: semel.Scope{Tenant: "acme", Actor: "user-17", Operation: "payments.create"}, Key: key}
}

func attempt(key string) semel.Attempt {
	return semel.NewAttempt(identity(key), semel.Fingerprint{}, time.Minute, time.Hour)
}

// Every statement of a life of records fails once, or is carried out and its
// answer lost. Callers that ask again, as the guard does, get what they asked
// for, once; and the trail tells each change once, without a gap.
func TestEveryFault(t *testing.T) {
	for name, l := range map[string]lives{"records": {liveThrough, verifyLife, 40}, "pieces": {liveInPieces, verifyPieces, 30}, "sweeps": {liveAndExpire, verifyExpired, 30}} {
		for _, mode := range []string{"not carried out", "answer lost"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				l.fail(t, mode == "not carried out")
			})
		}
	}
}

// lives are lives of records, each with a fault at another call.
type lives struct {
	live   func(t *testing.T, s *Store, life string)
	verify func(t *testing.T, s *Store, life string) (trails map[string]string)
	calls  int // that can fail, at least
}

func (l lives) fail(t *testing.T, instead bool) {
	f := &faults{}
	verifier := openFaulty(t, f, Config{})
	reached, position := 0, uint64(0)
	for at := 1; ; at++ {
		if quick.Skips(at, 4) {
			continue
		}
		s := openFaulty(t, f, verifier.config)
		f.arm(func(call int, query string, _ []driver.Value) (before, after bool) {
			if call != at {
				return false, false
			}
			t.Logf("fault %d: %.60s", at, strings.Join(strings.Fields(query), " "))
			return instead, !instead
		})
		life := fmt.Sprint("life ", at, ": ")
		l.live(t, s, life)
		err := s.Close(context.Background())
		calls, _ := f.counted()
		if err != nil {
			t.Errorf("Close: %v", err)
		}
		f.arm(nil)
		position = verifyTrail(t, verifier, life, s.instance, position, l.verify(t, verifier, life))
		if t.Failed() || calls < at {
			break
		}
		reached = at
	}
	if reached < l.calls {
		t.Errorf("the scenario has only %d calls that can fail", reached)
	}
}

// insist calls until it succeeds or fails with one of final.
func insist(t *testing.T, what string, call func() error, final ...error) {
	t.Helper()
	var err error
	for range 5 {
		if err = call(); err == nil || slices.ContainsFunc(final, func(f error) bool { return errors.Is(err, f) }) {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func liveThrough(t *testing.T, s *Store, life string) {
	t.Helper()
	ctx := t.Context()
	begin := func(a semel.Attempt) (c semel.Claim) {
		t.Helper()
		insist(t, "Begin", func() (err error) { c, err = s.Begin(ctx, a); return err })
		return c
	}
	complete := func(c semel.Claim) {
		t.Helper()
		insist(t, "Complete", func() error {
			_, err := c.Complete(ctx, semel.Result{Codec: "test/1", Body: []byte("done")})
			return err
		})
	}
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: life + "note 0"})
	a := begin(attempt(life + "a"))
	insist(t, "Renew", func() error { return a.Renew(ctx) })
	complete(a)

	b := begin(attempt(life + "b"))
	insist(t, "Hold", func() error { return b.Hold(ctx, "lost contact") })
	s.Note(semel.TrailEntry{Kind: semel.TrailUnknown, Key: life + "note 1"})
	var rec semel.Record
	insist(t, "Resolve", func() (err error) {
		_, err = s.Resolve(ctx, semel.Resolution{Identity: identity(life + "b"), Fence: b.Fence(), Decision: semel.DecideExecuteAgain})
		return err
	}, semel.ErrStaleFence)
	insist(t, "Find", func() (err error) { rec, err = s.Find(ctx, identity(life+"b")); return err })
	over := attempt(life + "b")
	over.Takeover = rec.Fence
	b = begin(over)
	complete(b)

	c := begin(attempt(life + "c"))
	insist(t, "Release", func() error { return c.Release(ctx) }, semel.ErrLostClaim)
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: life + "note 2"})
}

func liveInPieces(t *testing.T, s *Store, life string) {
	t.Helper()
	ctx := t.Context()
	begin := func(key string) (c semel.Claim) {
		t.Helper()
		a := attempt(life + key)
		insist(t, "Begin", func() (err error) { c, err = s.Begin(ctx, a); return err })
		return c
	}
	d := begin("d")
	insist(t, "Complete", func() error { _, err := d.Complete(ctx, inPieces('d')); return err })
	e := begin("e")
	insist(t, "Hold", func() error { return e.Hold(ctx, "lost contact") })
	insist(t, "Resolve", func() (err error) {
		_, err = s.Resolve(ctx, semel.Resolution{Identity: identity(life + "e"), Fence: e.Fence(), Decision: semel.DecideResult, Result: inPieces('e')})
		return err
	}, semel.ErrStaleFence)
}

// liveAndExpire has records end: replaced by a new claim, and swept.
func liveAndExpire(t *testing.T, s *Store, life string) {
	t.Helper()
	ctx := t.Context()
	for range 3 {
		for _, key := range []string{"f", "g"} {
			a := attempt(life + key)
			a.Retention = 0
			var c semel.Claim
			insist(t, "Begin", func() (err error) { c, err = s.Begin(ctx, a); return err })
			insist(t, "Complete", func() error {
				// Over at once, so that one that is asked again is told that it lost the claim.
				_, err := c.Complete(ctx, semel.Result{Label: "201"})
				return err
			}, semel.ErrLostClaim)
		}
	}
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: life + "note 0"})
	insist(t, "Sweep", func() error { _, err := s.Sweep(ctx, 1); return err })
	insist(t, "Sweep", func() error { _, err := s.Sweep(ctx, 10); return err })
}

func verifyExpired(t *testing.T, s *Store, life string) map[string]string {
	t.Helper()
	var records, runs int64
	if err := s.read(t.Context(), func(c *conn) error {
		return c.queryOnce(t.Context(), "SELECT (SELECT count(*) FROM record), (SELECT count(*) FROM executed)",
			func(r *row) { records, runs = r.int(), r.int() })
	}); err != nil || records != 0 || runs != 0 {
		t.Errorf("%d records and %d rows of executed are left, %v", records, runs, err)
	}
	return map[string]string{"f": "executed executed executed ", "g": "executed executed executed ", "note 0": "replayed "}
}

func verifyLife(t *testing.T, s *Store, life string) map[string]string {
	t.Helper()
	ctx := t.Context()
	for _, key := range []string{"a", "b"} {
		if r, err := s.Find(ctx, identity(life+key)); err != nil || r.State != semel.StateCompleted || string(r.Result.Body) != "done" {
			t.Errorf("%s reads %+v, %v", key, r, err)
		}
	}
	if _, err := s.Find(ctx, identity(life+"c")); !errors.Is(err, semel.ErrNotFound) {
		t.Errorf("c was released and reads %v", err)
	}
	return map[string]string{
		"a": "executed ", "b": "held resolved taken_over executed ", "c": "released ",
		"note 0": "replayed ", "note 1": "unknown ", "note 2": "replayed ",
	}
}

func verifyPieces(t *testing.T, s *Store, life string) map[string]string {
	t.Helper()
	ctx := t.Context()
	for _, key := range []string{"d", "e"} {
		r, err := s.Find(ctx, identity(life+key))
		if err != nil || r.Result.Pieces == nil {
			t.Errorf("%s reads %+v, %v", key, r, err)
			continue
		}
		wantPieces(t, r, key[0])
	}
	if _, err := s.Sweep(ctx, 1); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, s)
	return map[string]string{"d": "executed ", "e": "held resolved "}
}

// verifyTrail looks at the trail behind position after, and returns how far it came.
func verifyTrail(t *testing.T, s *Store, life string, instance instance, after uint64, want map[string]string) uint64 {
	t.Helper()
	ctx := t.Context()
	told := map[string]string{}
	seq := uint64(0)
	for {
		entries, err := s.Trail(ctx, semel.TrailFilter{After: after, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			after = e.Position
			if e.Instance != instance.String() {
				continue
			}
			told[strings.TrimPrefix(e.Key, life)] += string(e.Kind) + " "
			if seq++; e.Seq != seq {
				t.Errorf("entry %d of the trail has number %d", seq, e.Seq)
			}
		}
	}
	for key, want := range want {
		if told[key] != want {
			t.Errorf("the trail of %s reads %q; want %q", key, told[key], want)
		}
	}
	return after
}

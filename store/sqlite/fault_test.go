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
	t.Cleanup(func() { _ = s.Close() })
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
		err := s.Close()
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

// block occupies the writer until the returned function is called, so that what
// is submitted meanwhile forms a group.
func block(t *testing.T, s *Store) (release func()) {
	t.Helper()
	in, out := make(chan none), make(chan none)
	done := make(chan error, 1)
	go func() {
		_, err := write(context.Background(), s, 0, func(*tx) (none, error) {
			close(in)
			<-out
			return none{}, nil
		})
		done <- err
	}()
	<-in
	return sync.OnceFunc(func() {
		close(out)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// awaitQueued waits until n writes wait for the writer.
func awaitQueued(t *testing.T, s *Store, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(s.queue) < n {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("%d writes are queued; want %d", len(s.queue), n)
		}
	}
}

// beginTogether begins n identities in one group, and then calls inspect.
func beginTogether(t *testing.T, s *Store, n int) []error {
	t.Helper()
	release := block(t, s)
	defer release()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, errs[i] = s.Begin(t.Context(), attempt(fmt.Sprint("key ", i))) })
	}
	awaitQueued(t, s, n)
	release()
	wg.Wait()
	return errs
}

func TestWritesAreGrouped(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, f, Config{MaxGroup: 64})
	f.arm(nil)
	if err := errors.Join(beginTogether(t, s, 128)...); err != nil {
		t.Fatal(err)
	}
	if _, commits := f.counted(); commits != 3 { // the one that blocked, and two of 64
		t.Errorf("128 writes took %d commits; want 3", commits)
	}
}

func TestLargeWritesEndAGroup(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, f, Config{})
	claims := make([]semel.Claim, 4)
	for i := range claims {
		var err error
		if claims[i], err = s.Begin(t.Context(), attempt(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	release := block(t, s)
	f.arm(nil)
	var wg sync.WaitGroup
	for _, c := range claims {
		wg.Go(func() {
			if _, err := c.Complete(t.Context(), semel.Result{Body: make([]byte, maxGroupBytes/2)}); err != nil {
				t.Error(err)
			}
		})
	}
	awaitQueued(t, s, len(claims))
	release()
	wg.Wait()
	if _, commits := f.counted(); commits != 3 {
		t.Errorf("four large results took %d commits; want 3", commits)
	}
}

// A statement that fails takes its own caller down and nobody else.
func TestOneFailureSparesItsGroup(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, f, Config{})
	f.arm(func(_ int, query string, args []driver.Value) (before, after bool) {
		return query == insertRecord && args[9] == "key 5", false
	})
	for i, err := range beginTogether(t, s, 16) {
		if i == 5 {
			if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "nothing was written") {
				t.Errorf("the write that failed was answered %v", err)
			}
		} else if err != nil {
			t.Errorf("write %d of the same group failed: %v", i, err)
		}
	}
	f.arm(nil)
	records, err := s.List(t.Context(), semel.Filter{})
	if err != nil || len(records) != 15 {
		t.Errorf("%d records, %v; want 15", len(records), err)
	}
}

// A commit that fails is reported to everyone who was in it, as open.
func TestFailedCommitIsReportedToAll(t *testing.T) {
	for _, happened := range []bool{false, true} {
		f := &faults{}
		s := openFaulty(t, f, Config{})
		f.arm(func(_ int, query string, _ []driver.Value) (before, after bool) {
			if _, commits := f.calls, f.commits; query != "COMMIT" || commits != 2 { // the first is that of block
				return false, false
			}
			return !happened, happened
		})
		for _, err := range beginTogether(t, s, 16) {
			if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "open") {
				t.Errorf("a write in a commit that failed was answered %v", err)
			}
		}
		records, err := s.List(t.Context(), semel.Filter{})
		if want := map[bool]int{false: 0, true: 16}[happened]; err != nil || len(records) != want {
			t.Errorf("after a commit that failed (happened: %v) there are %d records, %v; want %d", happened, len(records), err, want)
		}
		if _, err := s.Begin(t.Context(), attempt("next")); err != nil {
			t.Errorf("Begin after a failed commit: %v", err)
		}
	}
}

// A caller who stops waiting gets its answer at once; what had not begun has no
// effect.
func TestCallerThatLeaves(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	release := block(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() { _, err := s.Begin(ctx, attempt("dropped")); answer <- err }()
	awaitQueued(t, s, 1)
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "open") {
		t.Errorf("a caller whose turn had not come was answered %v", err)
	}
	release()

	in, out := make(chan none), make(chan none)
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		_, err := write(ctx, s, 0, func(*tx) (none, error) {
			close(in)
			<-out
			return none{}, nil
		})
		answer <- err
	}()
	<-in
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "open") {
		t.Errorf("a caller who left in the middle of its turn was answered %v", err)
	}
	close(out)

	if _, err := s.Find(t.Context(), identity("dropped")); !errors.Is(err, semel.ErrNotFound) {
		t.Errorf("the dropped Begin left a record: %v", err)
	}
}

// A full queue makes callers wait outside, for as long as they please.
func TestFullQueue(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{MaxQueue: 2})
	release := block(t, s)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			if _, err := s.Begin(t.Context(), attempt(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	awaitQueued(t, s, 2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.Begin(ctx, attempt("late")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Begin before a full queue was answered %v", err)
	}
	release()
	wg.Wait()
	if _, err := s.Find(t.Context(), identity("late")); !errors.Is(err, semel.ErrNotFound) {
		t.Errorf("Begin before a full queue left a record: %v", err)
	}
}

// Close ends what waits in good order: writes that were queued are written.
func TestCloseServesTheQueue(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, f, Config{})
	release := block(t, s)
	errs := make(chan error, 8)
	for i := range cap(errs) {
		go func() { _, err := s.Begin(t.Context(), attempt(fmt.Sprint(i))); errs <- err }()
	}
	awaitQueued(t, s, cap(errs))
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "note"})
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	<-s.stop
	if _, err := s.Begin(t.Context(), attempt("late")); !errors.Is(err, ErrClosed) {
		t.Errorf("Begin while closing was answered %v", err)
	}
	release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Errorf("a queued Begin was answered %v", err)
		}
	}
	calls := map[string]func() error{
		"Begin": func() error { _, err := s.Begin(t.Context(), attempt("late")); return err },
		"Find":  func() error { _, err := s.Find(t.Context(), identity("0")); return err },
		"List":  func() error { _, err := s.List(t.Context(), semel.Filter{}); return err },
		"Trail": func() error { _, err := s.Trail(t.Context(), semel.TrailFilter{}); return err },
		"Sweep": func() error { _, err := s.Sweep(t.Context(), 1); return err },
		"Run":   func() error { return s.Run(t.Context()) },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close was answered %v", name, err)
		}
	}
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "late"})
	if err := s.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	s = openFaulty(t, f, s.config)
	records, err := s.List(t.Context(), semel.Filter{})
	if err != nil || len(records) != cap(errs) {
		t.Errorf("%d records, %v; want %d", len(records), err, cap(errs))
	}
	entries, err := s.Trail(t.Context(), semel.TrailFilter{})
	if err != nil || len(entries) != 1 || entries[0].Key != "note" {
		t.Errorf("the trail reads %+v, %v; want the note", entries, err)
	}
}

// Notes never block. What does not fit is counted in its place.
func TestLostNotesAreCounted(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{MaxNotes: 10})
	release := block(t, s)
	for i := range 25 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: fmt.Sprint(i)})
	}
	release()
	entries := awaitTrail(t, s, 11)
	for i := range 3 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: fmt.Sprint("more ", i)})
	}
	entries = append(entries, awaitTrail(t, s, 14)[11:]...)
	seq := uint64(0)
	var read []string
	for _, e := range entries {
		seq++
		if e.Kind == semel.TrailLost {
			seq += e.Count
		}
		if e.Seq != seq {
			t.Errorf("entry %+v has number %d; want %d", e, e.Seq, seq)
		}
		read = append(read, fmt.Sprint(e.Kind, e.Key, e.Count))
	}
	want := []string{"lost15", "replayedmore 00", "replayedmore 10", "replayedmore 20"}
	if !slices.Equal(read[10:], want) {
		t.Errorf("behind the first ten entries the trail reads %q; want %q", read[10:], want)
	}
}

func awaitTrail(t *testing.T, s *Store, n int) []semel.TrailEntry {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		entries, err := s.Trail(t.Context(), semel.TrailFilter{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) >= n {
			return entries
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("the trail holds %d entries; want %d", len(entries), n)
		}
	}
}

// Notes that cannot be written wait, do not fail others, and are written later.
func TestNotesOutlastAFailure(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, f, Config{})
	c, err := s.Begin(t.Context(), attempt("k"))
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan none, 100)
	f.arm(func(_ int, query string, args []driver.Value) (before, after bool) {
		if strings.Contains(query, "INTO trail") && slices.Contains(args, driver.Value("poison")) {
			failed <- none{}
			return true, false
		}
		return false, false
	})
	for i := range 3 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "poison", Label: fmt.Sprint(i)})
	}
	<-failed
	if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
		t.Errorf("Complete beside notes that cannot be written: %v", err)
	}
	f.arm(nil)
	entries := awaitTrail(t, s, 4)
	for i, e := range entries {
		if e.Seq != uint64(i+1) {
			t.Errorf("entry %d has number %d", i+1, e.Seq)
		}
	}
}

// What the promise of durability rests on, and cannot be seen by killing
// processes.
func TestSettings(t *testing.T) {
	s, err := Open(t.Context(), Config{Path: filepath.Join(t.TempDir(), "semel.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(query func(string, func(*row), ...driver.Value) error, pragma, want string) {
		t.Helper()
		var got string
		if err := query("SELECT CAST("+pragma+" AS TEXT) FROM pragma_"+pragma, func(r *row) { got = r.text() }); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", pragma, got, err, want)
		}
	}
	// As after the reopening of a connection that failed.
	for range 2 {
		_, err = write(t.Context(), s, 0, func(tx *tx) (none, error) {
			ask(tx.query, "synchronous", "2")
			ask(tx.query, "journal_mode", "wal")
			ask(tx.query, "fullfsync", "1")
			ask(tx.query, "checkpoint_fullfsync", "1")
			return none{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := write(t.Context(), s, 0, func(tx *tx) (none, error) {
			_, err := tx.exec("SELECT nothing")
			return none{}, err
		}); err == nil {
			t.Fatal("a statement that cannot run was carried out")
		}
	}
	err = s.read(t.Context(), func(c *conn) error {
		_, err := c.exec("DELETE FROM record")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("a reader that writes was answered %v", err)
	}
}

// One turn of a sweep stays short also where results are large.
func TestSweepOfLargeResults(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	const n = 6
	for i := range n {
		a := attempt(fmt.Sprint(i))
		a.Retention = 0
		c, err := s.Begin(t.Context(), a)
		if err == nil {
			_, err = c.Complete(t.Context(), semel.Result{Head: make([]byte, 10), Body: make([]byte, sweepBytes/2)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	removed, err := write(t.Context(), s, 0, func(t *tx) (int, error) {
		n, _, err := t.sweepRecords(sweepRows)
		return n, err
	})
	if err != nil || removed != 2 {
		t.Errorf("one turn removed %d results of half its bytes, %v; want 2", removed, err)
	}
	if removed, err := s.Sweep(t.Context(), 3); err != nil || removed != 3 {
		t.Errorf("Sweep with limit 3 removed %d, %v", removed, err)
	}
	if removed, err := s.Sweep(t.Context(), 100); err != nil || removed != n-5 {
		t.Errorf("Sweep removed the last %d, %v; want %d", removed, err, n-5)
	}
}

// A writer that is alone with its file reads the counters once. Once another
// has written it reads them again, and no number is given out twice.
func TestCountersAreReadWhenOthersWrote(t *testing.T) {
	f := &faults{}
	s, other := openFaulty(t, f, Config{}), (*Store)(nil)
	reads := 0
	f.arm(func(_ int, query string, _ []driver.Value) (before, after bool) {
		if query == selectCounters {
			reads++
		}
		return false, false
	})
	fences := map[uint64]bool{}
	begin := func(s *Store, key string) {
		t.Helper()
		c := mustBegin(t, s, attempt(key))
		if fences[c.Fence()] {
			t.Fatalf("fence %d was given out twice", c.Fence())
		}
		fences[c.Fence()] = true
	}
	for i := range 10 {
		begin(s, fmt.Sprint(i))
	}
	if reads > 1 {
		t.Errorf("ten writes read the counters %d times", reads)
	}
	other = openFaulty(t, f, Config{Path: s.config.Path})
	for i := range 10 {
		begin(other, fmt.Sprint("other ", i))
		begin(s, fmt.Sprint("this ", i))
	}
	if reads < 20 {
		t.Errorf("two handles by turns read the counters %d times", reads)
	}
}

// A duplicate is answered by a look when the writer's turn takes long, of which
// this handle does not know that it is a duplicate.
func TestDuplicateDoesNotWaitForASlowTurn(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, f, Config{})
	mustBegin(t, s, attempt("k"))
	other := openFaulty(t, f, Config{Path: s.config.Path})
	release := block(t, other)
	defer release()
	for range 2 { // the second comes when the turn is slow already
		if _, err := other.Begin(t.Context(), attempt("k")); !isConflict(err) {
			t.Errorf("Begin of a duplicate behind a turn that does not end: %v", err)
		}
	}
}

// A query that takes long ends with its context, and the connection serves on.
func TestLongQueryEndsWithItsContext(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{Readers: 1})
	ctx, cancel := context.WithCancel(t.Context())
	rows := 0
	err := s.read(ctx, func(c *conn) error {
		return c.queryOnce(ctx, "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT n FROM n", func(*row) {
			if rows++; rows == 1000 {
				cancel()
			}
		})
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a query without end was answered %v", err)
	}
	for range 100 {
		if _, err := s.List(t.Context(), semel.Filter{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A value of a type that the schema does not allow is an error, not a zero.
func TestValuesOfAnotherType(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	for _, query := range []string{"SELECT 'text'", "SELECT x'00'", "SELECT 1.5"} {
		if err := s.read(t.Context(), func(c *conn) error {
			return c.query(query, func(r *row) { r.int() })
		}); err == nil || !strings.Contains(err.Error(), "column 1") {
			t.Errorf("%s, read as an integer: %v", query, err)
		}
	}
	if err := s.read(t.Context(), func(c *conn) error {
		return c.query("SELECT 7, 8", func(r *row) { r.text(); r.blob() })
	}); err == nil {
		t.Error("integers were read as a text and a blob")
	}
	err := s.read(t.Context(), func(c *conn) error { return c.query("SELECT ?, ?", func(*row) {}, int64(1)) })
	if err == nil || !strings.Contains(err.Error(), "parameters") {
		t.Errorf("one parameter for two: %v", err)
	}
}

// What is bound is what is read: empty is not missing, and no byte is special.
func TestValuesReadBack(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	long := strings.Repeat("\x00\xff\xc3é", mostBuffer)
	for _, want := range []string{"", "\x00", "a\x00b", "\xff\xfe", long, "short again"} {
		err := s.read(t.Context(), func(c *conn) error {
			return c.query("SELECT ?, ?, ?, ?", func(r *row) {
				text, blob := r.text(), r.blob()
				missing, none := r.blob(), r.text()
				if text != want || string(blob) != want || blob == nil || missing != nil || none != "" {
					t.Errorf("%.10q reads back as text %.10q and blob %.10q; nothing as %q and %q", want, text, blob, missing, none)
				}
			}, want, []byte(want), []byte(nil), nil)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A claim without a token, as who makes its attempt by hand may have, is no less
// lost when its record has moved on.
func TestClaimsWithoutATokenAreFenced(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	a := attempt("k")
	a.Token = semel.Token{}
	old := mustBegin(t, s, a)
	pass(t, s, 2*time.Minute)
	a.Takeover = old.Fence()
	a.Token = semel.Token{1}
	over := mustBegin(t, s, a)
	pass(t, s, 2*time.Minute)
	a.Takeover = over.Fence()
	a.Token = semel.Token{}
	mustBegin(t, s, a)
	for name, call := range map[string]func() error{
		"Complete": func() error { _, err := old.Complete(t.Context(), semel.Result{}); return err },
		"Renew":    func() error { return old.Renew(t.Context()) },
		"Hold":     func() error { return old.Hold(t.Context(), "") },
		"Release":  func() error { return old.Release(t.Context()) },
	} {
		if err := call(); !errors.Is(err, semel.ErrLostClaim) {
			t.Errorf("%s by the claim of another fence: %v", name, err)
		}
	}
}

// A record that is over at once may be replaced in the very commit that completed
// it: its entry is in the trail all the same, ahead of what comes later.
func TestReplacedInItsOwnCommit(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	first, second := attempt("k"), attempt("k")
	first.Retention = 0
	c := mustBegin(t, s, first).(*claim)
	if _, err := write(t.Context(), s, 0, func(t *tx) (none, error) {
		if _, err := c.complete(t, semel.Result{Label: "first"}, nil); err != nil {
			return none{}, err
		}
		again, err := t.begin(&second, s.digest(second.Identity))
		if err == nil {
			_, err = again.complete(t, semel.Result{Label: "second"}, nil)
		}
		return none{}, err
	}); err != nil {
		t.Fatal(err)
	}
	entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: "k"})
	if err != nil || len(entries) != 2 || entries[0].Label != "first" || entries[1].Label != "second" ||
		entries[0].Seq != 1 || entries[1].Seq != 2 || entries[0].RecordID == entries[1].RecordID {
		t.Errorf("the trail of a record that was replaced in its own commit: %+v, %v", entries, err)
	}
}

// What a sweep of the trail reports are entries, also of those that records are.
func TestSweptEntriesAreCounted(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{TrailRetention: time.Hour})
	for i := range 5 {
		c := mustBegin(t, s, attempt(fmt.Sprint(i)))
		if err := c.Hold(t.Context(), "lost contact"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := write(t.Context(), s, 0, func(t *tx) (int64, error) {
		_, err := t.exec("UPDATE executed SET at = 0")
		if err == nil {
			_, err = t.exec("UPDATE trail SET at = 0")
		}
		return 0, err
	}); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, want := range []int{3, 7, 0} {
		records, entries, err := s.sweep(t.Context(), max(want, 3))
		if total += entries; err != nil || records != 0 || entries != want {
			t.Errorf("a sweep removed %d records and %d entries, %v; want %d entries", records, entries, err, want)
		}
	}
	if total != 10 {
		t.Errorf("%d entries were swept; want 10", total)
	}
}

// A sweep's turn ends early where others wait, but removes as many records as share
// its commit, and Run ends where less than a batch is left, though there may be
// more in the meantime.
func TestSweepGivesWay(t *testing.T) {
	f := &faults{}
	swept := make(chan Swept)
	s := openFaulty(t, f, Config{OnSweep: func(d Swept) { swept <- d }})
	const n = 90
	for i := range n {
		if _, err := mustBegin(t, s, attempt(fmt.Sprint(i))).Complete(t.Context(), semel.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	pass(t, s, 100*24*time.Hour)
	waiting := &op{run: func(*tx) {}, done: make(chan struct{})}
	turn := func(callers int, wait bool) (removed int) {
		t.Helper()
		removed, err := write(t.Context(), s, 0, func(t *tx) (int, error) {
			if wait {
				s.queue <- waiting
			}
			t.callers, t.time = callers, t.time.Add(-time.Hour)
			n, more, err := t.sweepRecords(sweepRows)
			if err == nil && !more && n < 50 {
				err = errors.New("that is not all")
			}
			return n, err
		})
		if err != nil {
			t.Error(err)
		}
		return removed
	}
	if got := turn(7, false); got != 7 {
		t.Errorf("a late turn that 7 share removed %d", got)
	}
	if got := turn(1, true); got != 1 {
		t.Errorf("a late turn that another waits for removed %d", got)
	}
	<-waiting.done
	if got := turn(1, false); got != n-8 {
		t.Errorf("a turn that nobody waits for removed %d of %d", got, n-8)
	}

	if _, err := mustBegin(t, s, attempt("one more")).Complete(t.Context(), semel.Result{}); err != nil {
		t.Fatal(err)
	}
	pass(t, s, 100*24*time.Hour)
	turns := 0
	f.arm(func(_ int, query string, _ []driver.Value) (bool, bool) {
		if query == selectExpired {
			turns++
		}
		return false, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	if did := <-swept; did.Records != 1 || turns != 1 {
		t.Errorf("%d records were swept in %d turns; want one in one", did.Records, turns)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

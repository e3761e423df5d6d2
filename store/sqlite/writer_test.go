package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

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
	go func() { closed <- s.Close(context.Background()) }()
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
	if err := s.Close(context.Background()); err != nil {
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

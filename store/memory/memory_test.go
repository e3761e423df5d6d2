package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/storetest"
)

func open(t testing.TB, c memory.Config) *memory.Store {
	t.Helper()
	s, err := memory.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Name:      "memory",
		Virtual:   true,
		SkipTable: "../../storetest/skips.txt",
		New: func(t testing.TB) storetest.Harness {
			s := open(t, memory.Config{})
			return storetest.Harness{
				Store:  s,
				Open:   func() semel.Store { return s },
				Skewed: func(time.Duration) semel.Store { return s },
			}
		},
	})
}

func TestFullStoreFailsClosed(t *testing.T) {
	s := open(t, memory.Config{MaxRecords: 2})
	begin := func(key string) (semel.Claim, error) {
		id := semel.Identity{Scope: semel.Scope{Operation: "op"}, Key: key}
		return s.Begin(t.Context(), semel.NewAttempt(id, semel.Fingerprint{}, time.Minute, time.Nanosecond))
	}
	first, err := begin("1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := begin("2"); err != nil {
		t.Fatal(err)
	}
	if _, err := begin("3"); !errors.Is(err, memory.ErrFull) {
		t.Fatalf("Begin in a full store: %v; want ErrFull", err)
	}
	// An expired record makes room without a sweep.
	if _, err := first.Complete(t.Context(), semel.Result{}); err != nil {
		t.Fatal(err)
	}
	if _, err := begin("3"); err != nil {
		t.Fatalf("Begin beside an expired record: %v", err)
	}
}

// An attempt that was made without NewAttempt has no token, like a record that
// was resolved. That must not pass for ownership.
func TestNoTokenOwnsNothing(t *testing.T) {
	s := open(t, memory.Config{})
	a := semel.NewAttempt(semel.Identity{Scope: semel.Scope{Operation: "op"}, Key: "k"}, semel.Fingerprint{}, time.Minute, time.Minute)
	c, err := s.Begin(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Hold(t.Context(), "lost contact"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(t.Context(), semel.Resolution{Identity: a.Identity, Fence: c.Fence(), Decision: semel.DecideExecuteAgain}); err != nil {
		t.Fatal(err)
	}
	a.Token = semel.Token{}
	if _, err := s.Begin(t.Context(), a); err == nil {
		t.Fatal("a claim was granted for no token")
	}
}

func TestRunSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memory.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		for i := range 2500 { // more than a batch
			id := semel.Identity{Scope: semel.Scope{Operation: "op"}, Key: fmt.Sprint(i)}
			c, err := s.Begin(t.Context(), semel.NewAttempt(id, semel.Fingerprint{}, time.Minute, time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2*time.Minute + time.Second)
		if n, err := s.Sweep(t.Context(), 10_000); n != 0 || err != nil {
			t.Errorf("Run left %d expired records, %v", n, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
}

func TestTrailForgetsTheOldest(t *testing.T) {
	s := open(t, memory.Config{MaxTrail: 20})
	for i := range 100 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: fmt.Sprint(i)})
	}
	entries, err := s.Trail(t.Context(), semel.TrailFilter{})
	if err != nil || len(entries) != 20 {
		t.Fatalf("%d entries, %v; want 20", len(entries), err)
	}
	for i, e := range entries {
		if e.Key != fmt.Sprint(80+i) || e.Position != uint64(81+i) {
			t.Errorf("entry %d is about %s at position %d; want %d", i, e.Key, e.Position, 80+i)
		}
	}
}

func TestConfig(t *testing.T) {
	if _, err := memory.New(memory.Config{MaxRecords: -1}); err == nil {
		t.Fatal("a negative limit was accepted")
	}
}
